"""`penstock admin`: run the stream administration server, make credentials, check policies, and operate it."""

import signal
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import msgspec
import typer

from penstock.admin import AdminConfig
from penstock.admin.live.driver import AdminServer
from penstock.admin.live.server import signing_key
from penstock.base.clock import NS_PER_SECOND, random_bytes
from penstock.base.config import load_toml
from penstock.base.errors import ConfigurationError, ConnectionLostError, PenstockError
from penstock.base.files import make_directory
from penstock.base.log import logger
from penstock.cli.common.interrupt import interruptible
from penstock.net.secret import write_private
from penstock.node.plant import Plant
from penstock.security import Policy, PrivateKey, PublicKey
from penstock.security.core.operating import AuditEntry
from penstock.security.core.policy import NAME
from penstock.security.core.proof import SALT_SIZE, SecretVerifier
from penstock.security.live.client import AdminClient

POLL_SECONDS = 0.1

log = logger("admin")
app = typer.Typer(
    help="Credentials, policies and entitlements: run and operate the administration server.", no_args_is_help=True
)
client_app = typer.Typer(help="Make credentials for clients.", no_args_is_help=True)
policy_app = typer.Typer(help="Check and replace the policy.", no_args_is_help=True)
app.add_typer(client_app, name="client")
app.add_typer(policy_app, name="policy")

Url = Annotated[str, typer.Option("--connect", help="The server: penstock://HOST:PORT, or penstocks:// with TLS.")]
CredentialsFile = Annotated[Path, typer.Option("--credentials", help="Your credentials (TOML, mode 600).")]
ClientName = Annotated[str, typer.Argument(metavar="NAME", help="The client's name in the policy.")]
ServerConfigFile = Annotated[
    Path | None, typer.Option("--config", help="The server's configuration or plant.toml, for its public key.")
]
OutFile = Annotated[Path | None, typer.Option("--out", help="The credentials file to write. Default: NAME.toml.")]


@client_app.command("secret")
def client_secret(name: ClientName, out: OutFile = None) -> None:
    """Make a shared secret: write its credentials file, and print its line for the policy document."""
    _check_name(name)
    path = out or Path(f"{name}.toml")
    secret = random_bytes(32).hex()
    write_private(path, f'client = "{name}"\nsecret = "{secret}"\n'.encode())
    verifier = SecretVerifier.make(secret.encode(), random_bytes(SALT_SIZE))
    _show_entry(name, "secret", verifier.text, path)


@client_app.command("key")
def client_key(
    name: ClientName,
    out: OutFile = None,
    config: ServerConfigFile = None,
    server_key: Annotated[
        str, typer.Option(help="The server's public key, as printed by `penstock admin server-key`.")
    ] = "",
    is_unchecked: Annotated[
        bool,
        typer.Option("--no-server-key", help="Omit the server's key: then only TLS authenticates the server."),
    ] = False,
) -> None:
    """Make a key pair: write its credentials file with the server's public key, and its key file; print the public
    key for the policy document."""
    _check_name(name)
    if (config is not None) + bool(server_key) + is_unchecked != 1:
        raise ConfigurationError(
            "the client could not authenticate the server: its credentials need the server's public key",
            hint="give --config FILE (admin.toml or plant.toml), --server-key KEYor --no-server-key",
        )
    line = ""
    if not is_unchecked:
        trusted = PublicKey.parse(server_key) if config is None else _server_signing_key(config).public
        line = _server_key_line(trusted)
    path = out or Path(f"{name}.toml")
    key = PrivateKey(random_bytes(32))
    key.write(path.with_suffix(".pem"))
    write_private(path, f'client = "{name}"\nkey_file = "{path.with_suffix(".pem").name}"\n{line}'.encode())
    _show_entry(name, "key", key.public.text, path)
    if is_unchecked:
        typer.echo(f"# {path} has no server_key: connect with penstocks:// (TLS), or add server_key", err=True)


@policy_app.command("check")
def policy_check(path: Annotated[Path, typer.Argument(metavar="FILE", help="The policy document.")]) -> None:
    """Check a policy document and list the rights of every client."""
    policy = read_policy(path)
    for name, client in policy.clients.items():
        roles = f" ({', '.join(sorted(client.roles))})" if client.roles else ""
        typer.echo(f"{name}{roles}")
        for grant in policy.grants(name):
            delay = f", {grant.delay_s // 60} minutes old" if grant.delay_s else ""
            typer.echo(f"  {grant.action} {grant.pattern}{delay}")


@policy_app.command("set")
def policy_set(
    connect: Url,
    credentials: CredentialsFile,
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="The new policy. Default: the server reads its own file again."),
    ] = None,
) -> None:
    """Replace the policy of a running server. Subscriptions that the new policy does not allow end at once."""
    text = None if path is None else read_policy(path).text
    with AdminClient.connect(connect, credentials) as client:
        answer = client.set_policy(text)
    typer.echo(f"{answer.clients} clients, {len(answer.revoked)} subscriptions ended")


@app.command("serve")
def serve(
    config: Annotated[Path | None, typer.Option("--config", help="The server's configuration (TOML).")] = None,
    policy: Annotated[Path | None, typer.Option("--policy", help="The policy, if there is no configuration.")] = None,
    directory: Annotated[Path, typer.Option(help="The directory of the state, if there is no configuration.")] = Path(
        "admin"
    ),
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="TCP port; 0: any free port.")] = None,
) -> None:
    """Run the administration server until Ctrl-C. SIGHUP makes it read its policy file again."""
    if (config is None) == (policy is None):
        raise ConfigurationError("give either --config or --policy", hint="see docs/how-to/administration.md")
    settings = AdminConfig(directory=str(directory), policy=str(policy)) if config is None else AdminConfig.load(config)
    if port is not None:
        settings = msgspec.structs.replace(settings, port=port)
    wakened = threading.Event()
    hangups: list[int] = []

    def on_hangup(number: int, frame: FrameType | None) -> None:
        hangups.append(number)

    before = signal.signal(signal.SIGHUP, on_hangup)
    try:
        with AdminServer(settings) as server, interruptible() as interrupt:
            typer.echo(f"{server.role} on {server.url}, stop with Ctrl-C")
            sys.stdout.flush()
            while not interrupt.is_wanted and server.is_running:
                wakened.wait(POLL_SECONDS)
                if hangups:
                    hangups.clear()
                    _reload(server)
            if not interrupt.is_wanted:
                raise ConnectionLostError("the server ended unexpectedly", hint="see its log")
    finally:
        signal.signal(signal.SIGHUP, before)


@app.command("server-key")
def show_server_key(
    config: Annotated[Path, typer.Option("--config", help="The server's configuration, or plant.toml.")],
) -> None:
    """Print the server's public key for the credentials of clients with a key pair, which authenticate the server
    with it at every login."""
    typer.echo(_server_key_line(_server_signing_key(config).public), nl=False)


@app.command("token")
def token(
    connect: Url,
    credentials: CredentialsFile,
    topics: Annotated[list[str] | None, typer.Argument(help="Topics that the token's holder may receive.")] = None,
    send: Annotated[
        list[str] | None, typer.Option(help="Topics that the token's holder may send; may be repeated.")
    ] = None,
    subscription: Annotated[str, typer.Option(metavar="ID", help="Renew the token of this subscription.")] = "",
) -> None:
    """Get a token for a party without credentials, such as a page of an edge cache. Prints one line of JSON: the
    token, its expiry, and the subscription id with which it can be renewed."""
    if subscription and (topics or send):
        raise ConfigurationError(
            "topics and --subscription exclude each other", hint="a renewed token has the same topics"
        )
    if not (subscription or topics or send):
        raise ConfigurationError("either topics or --subscription is needed", hint="penstock admin token TOPIC …")
    with AdminClient.connect(connect, credentials) as client:
        brokered = client.renew(subscription) if subscription else client.subscribe(topics or (), send=send or ())
    expires = datetime.fromtimestamp(brokered.expires_ns / NS_PER_SECOND, UTC).isoformat(timespec="seconds")
    told = {"token": brokered.token, "expires": expires, "subscription": brokered.subscription_id}
    typer.echo(msgspec.json.encode(told))


@app.command("revoke")
def revoke(
    name: ClientName,
    reason: Annotated[str, typer.Option(help="The reason, for the client and the audit log.")],
    connect: Url,
    credentials: CredentialsFile,
    topic: Annotated[list[str] | None, typer.Option(help="Only these topics; may be repeated.")] = None,
) -> None:
    """Revoke topics of a client, by default all of them. The client stops receiving and gets the reason."""
    with AdminClient.connect(connect, credentials) as client:
        answer = client.revoke(name, reason, topic or [">"])
    typer.echo(f"{len(answer.subscriptions)} subscriptions ended")


@app.command("restore")
def restore(name: ClientName, connect: Url, credentials: CredentialsFile) -> None:
    """Undo all revocations of a client."""
    with AdminClient.connect(connect, credentials) as client:
        client.restore(name)


@app.command("audit")
def audit(
    connect: Url,
    credentials: CredentialsFile,
    after: Annotated[int, typer.Option(min=0, help="Only lines with higher numbers.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")] = False,
) -> None:
    """Show the audit log: requests, with their clients and outcomes."""
    with AdminClient.connect(connect, credentials) as client:
        while entries := (page := client.audit(after)).entries:
            for entry in entries:
                typer.echo(msgspec.json.encode(entry) if json else _audit_line(entry))
            after = page.next_after


@app.command("promote")
def promote(
    connect: Url,
    credentials: CredentialsFile,
    reason: Annotated[str, typer.Option(help="The reason, for the audit log.")],
) -> None:
    """Make a standby the primary. The old primary becomes its standby when it returns."""
    with AdminClient.connect(connect, credentials) as client:
        answer = client.promote(reason)
    typer.echo(f"{answer.node} is {answer.role} of generation {answer.generation}")


@app.command("status")
def status(connect: Url, credentials: CredentialsFile) -> None:
    """Show the server's role, generation, adapters and number of subscriptions."""
    with AdminClient.connect(connect, credentials) as client:
        answer = client.status()
    typer.echo(f"{answer.node}: {answer.role} of generation {answer.generation}, change {answer.change_number}")
    typer.echo(f"{answer.subscriptions} subscriptions, {answer.denials} revocations")
    for adapter in answer.adapters:
        marks = [adapter.role, f"term {adapter.term}", *(["sealed"] if adapter.sealed else [])]
        typer.echo(f"{adapter.feed}/{adapter.adapter}: {', '.join(marks)}{'' if adapter.is_live else ', no heartbeat'}")


def read_policy(path: Path) -> Policy:
    try:
        return Policy.parse(path.read_text(encoding="utf-8"), where=str(path))
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigurationError("is not UTF-8 text", where=str(path)) from None


def _reload(server: AdminServer) -> None:
    try:
        server.reload_policy()
    except PenstockError as error:
        log.error("policy_refused", reason=str(error))


def _audit_line(entry: AuditEntry) -> str:
    time = datetime.fromtimestamp(entry.time_ns // NS_PER_SECOND, UTC)
    code = f" [{entry.code}]" if entry.code else ""
    who = entry.client or "somebody"
    did = f"{who} {entry.address} {entry.action} {entry.outcome}{code}"
    return f"{entry.number:6} {time:%Y-%m-%d %H:%M:%S} {did} {entry.detail}"


def _check_name(name: str) -> None:
    if NAME.fullmatch(name) is None:
        raise ConfigurationError(f"{name[:80]!r} is not a valid name", hint="1 to 64 letters, digits, and _ . -")


def _server_signing_key(path: Path) -> PrivateKey:
    """Return the signing key of the server in admin.toml or plant.toml; create the key if the server has not run
    yet."""
    if "administration" in load_toml(path, dict[str, Any]):
        server = Plant.load(path).servers[0].beside(path.parent)
    else:
        server = AdminConfig.load(path)
    make_directory(server.directory)
    return signing_key(server, server.role)


def _server_key_line(key: PublicKey) -> str:
    return f'server_key = "{key.text}"\n'


def _show_entry(name: str, key: str, text: str, path: Path) -> None:
    typer.echo(f'[clients.{name if "." not in name else repr(name)}]\n{key} = "{text}"')
    typer.echo(f"# for the policy document; {path} is for {name} alone", err=True)
