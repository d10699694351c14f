"""`penstock admin`: run the stream administration server, make credentials, check policies, and operate it."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.base.clock import random_bytes
from penstock.base.errors import ConfigurationError
from penstock.net.secret import write_private
from penstock.security import Policy, PrivateKey
from penstock.security.client import AdminClient
from penstock.security.policy import NAME
from penstock.security.proof import SALT_SIZE, SecretVerifier

app = typer.Typer(help="Who may see what: run the administration server and operate it.", no_args_is_help=True)
client_app = typer.Typer(help="Make credentials for clients.", no_args_is_help=True)
policy_app = typer.Typer(help="Check and exchange the policy.", no_args_is_help=True)
app.add_typer(client_app, name="client")
app.add_typer(policy_app, name="policy")

Url = Annotated[str, typer.Option("--connect", help="The server: penstock://HOST:PORT, or penstocks:// with TLS.")]
CredentialsFile = Annotated[Path, typer.Option("--credentials", help="Your credentials (TOML, mode 600).")]
ClientName = Annotated[str, typer.Argument(metavar="NAME", help="The client's name in the policy.")]
OutFile = Annotated[Path | None, typer.Option("--out", help="The credentials file to write; NAME.toml unless told.")]


@client_app.command("secret")
def client_secret(name: ClientName, out: OutFile = None) -> None:
    """Make a shared secret: its credentials file, and what the policy document keeps of it."""
    _check_name(name)
    path = out or Path(f"{name}.toml")
    secret = random_bytes(32).hex()
    write_private(path, f'client = "{name}"\nsecret = "{secret}"\n'.encode())
    verifier = SecretVerifier.make(secret.encode(), random_bytes(SALT_SIZE))
    _show_entry(name, "secret", verifier.text, path)


@client_app.command("key")
def client_key(name: ClientName, out: OutFile = None) -> None:
    """Make a key pair: its credentials file and key file, and the public key for the policy document."""
    _check_name(name)
    path = out or Path(f"{name}.toml")
    key = PrivateKey(random_bytes(32))
    key.write(path.with_suffix(".pem"))
    write_private(path, f'client = "{name}"\nkey_file = "{path.with_suffix(".pem").name}"\n'.encode())
    _show_entry(name, "key", key.public.text, path)


@policy_app.command("check")
def policy_check(path: Annotated[Path, typer.Argument(metavar="FILE", help="The policy document.")]) -> None:
    """Read a policy document and say what it gives to whom, or what is wrong with it."""
    policy = read_policy(path)
    for name, client in policy.clients.items():
        roles = f" ({', '.join(sorted(client.roles))})" if client.roles else ""
        typer.echo(f"{name}{roles}")
        for grant in policy.grants(name):
            delay = f", {grant.delay_s // 60} minutes old" if grant.delay_s else ""
            typer.echo(f"  {grant.action} {grant.pattern}{delay}")


@app.command("status")
def status(connect: Url, credentials: CredentialsFile) -> None:
    """Show the server's role and generation, its adapters and how many subscriptions there are."""
    with AdminClient.connect(connect, credentials) as client:
        answer = client.status()
    typer.echo(f"{answer.node}: {answer.role} of generation {answer.generation}, change {answer.change_number}")
    typer.echo(f"{answer.subscriptions} subscriptions, {answer.denials} revocations")
    for adapter in answer.adapters:
        marks = [adapter.role, f"term {adapter.term}", *(["sealed"] if adapter.sealed else [])]
        typer.echo(f"{adapter.feed}/{adapter.adapter}: {', '.join(marks)}{'' if adapter.is_live else ', not heard of'}")


def read_policy(path: Path) -> Policy:
    try:
        return Policy.parse(path.read_text(encoding="utf-8"), where=str(path))
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigurationError("is not UTF-8 text", where=str(path)) from None


def _check_name(name: str) -> None:
    if NAME.fullmatch(name) is None:
        raise ConfigurationError(f"{name[:80]!r} cannot be a name", hint="1 to 64 letters, digits, and _ . -")


def _show_entry(name: str, key: str, text: str, path: Path) -> None:
    typer.echo(f'[clients.{name if "." not in name else repr(name)}]\n{key} = "{text}"')
    typer.echo(f"# for the policy document; {path} is for {name} alone", err=True)
