"""`penstock init`: write the documents of a first plant, on one host or on two."""

import errno
import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.errors import ConfigurationError
from penstock.base.files import make_directory
from penstock.demo.hosts import CA_KEY, STREAM_SECRET, HostAddress, HostsLayout, write_hosts
from penstock.demo.layout import EDGE, ENDPOINT, MUX, OPERATIONS, PREFIX, Layout, write_layout
from penstock.demo.ports import FIRST_DEFAULT, PORTS, Ports
from penstock.demo.reports import FIRST_PLANT, MINIMAL_PLANT

USER = "alice"
"""The subscriber of a first plant."""


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="A new directory for the plant's documents.")],
    port: Annotated[
        int,
        typer.Option(
            min=1_024,
            max=65_536 - PORTS,
            help=f"First of the {PORTS} ports that the plant uses; the administration server listens there.",
        ),
    ] = FIRST_DEFAULT,
    minimal: Annotated[
        bool,
        typer.Option("--minimal", help="Only an exchange, two feed adapters and the administration server."),
    ] = False,
    hosts: Annotated[
        str,
        typer.Option(
            metavar="HOST,HOST",
            help="A minimal plant on two hosts: IPv4 addresses, names, or NAME=ADDRESS. Makes a directory for each.",
        ),
    ] = "",
    tls: Annotated[
        bool, typer.Option("--tls", help="With --hosts, required: make certificates and secrets for the hosts.")
    ] = False,
) -> None:
    """Write a first plant to try and to change: a generated exchange feed, two adapters, a policy and more."""
    pair = _pair_of_hosts(hosts) if hosts else None
    if tls != bool(hosts):
        raise ConfigurationError(
            "--hosts and --tls require each other", hint="init DIR --hosts 10.0.0.7,10.0.0.8 --tls"
        )
    _make_new(directory)
    ports = Ports.documented(port)
    if pair is not None:
        _tell_hosts(directory, pair, write_hosts(directory, pair, ports=ports, user=USER))
        return
    layout = write_layout(directory, MINIMAL_PLANT if minimal else FIRST_PLANT, ports=ports, user=USER)
    (credentials,) = layout.credentials
    login = f"--connect {layout.url} --credentials {credentials}"
    typer.echo(f"Wrote {layout.plant}, the policy and credentials. Run the plant:\n")
    typer.echo(f"  penstock up {layout.plant}")
    if minimal:
        typer.echo(f"\nIn another terminal, subscribe as {USER}:\n")
        typer.echo(f"  penstock sub {login} 'md.us.eq.AAPL.>'")
    else:
        _tell_ways_to_subscribe(layout, ports, login)
    typer.echo("\nWatch and operate the plant:\n")
    typer.echo(f"  penstock top {layout.plant}")
    typer.echo(f"  penstock admin status --connect {layout.url} --credentials {layout.operations}")
    if not minimal:
        typer.echo(
            f"\nThe console is at http://127.0.0.1:{ports.console}. `penstock up` prints a link that logs in as "
            f"{layout.operations.stem}, once; for another link:\n"
        )
        typer.echo(f"  penstock console --config {layout.plant} --link")


def _pair_of_hosts(text: str) -> tuple[HostAddress, HostAddress]:
    hosts = [HostAddress.parse(each) for each in text.split(",")]
    if len(hosts) != 2 or hosts[0].name == hosts[1].name or hosts[0].address == hosts[1].address:
        raise ConfigurationError(
            f"{text!r} are not two hosts", where="--hosts", hint="write two addresses: --hosts 10.0.0.7,10.0.0.8"
        )
    return hosts[0], hosts[1]


def _make_new(directory: Path) -> None:
    try:
        if directory.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        make_directory(directory)
    except OSError as error:
        raise ConfigurationError(
            f"cannot be created: {error.strerror}",
            where=str(directory),
            hint="choose a directory that does not exist yet",
        ) from None


def _tell_hosts(directory: Path, hosts: tuple[HostAddress, HostAddress], layout: HostsLayout) -> None:
    first, second = hosts
    there = directory.name
    login = f"--connect {layout.url} --credentials {there}"
    typer.echo(f"Wrote one directory for each host, and {directory / CA_KEY}: the key of the certificate authority,")
    typer.echo("which belongs on neither host. Copy each directory to its host:\n")
    for host, folder in ((first, layout.first), (second, layout.second)):
        typer.echo(f"  scp -rp {folder} {host.address}:{there}")
    typer.echo(f"\nFirst start {first.name}, which has the administration server, then {second.name}:\n")
    typer.echo(f"  penstock up {there}/plant.toml")
    typer.echo(f"\nOn {second.name}, subscribe as {USER}, by multicast and by TLS:\n")
    typer.echo(f"  penstock sub {login}/{USER}.toml 'md.us.eq.AAPL.>'")
    typer.echo(f"  penstock sub {login}/{USER}.toml --secret {there}/{STREAM_SECRET} --transport tcp 'md.us.eq.AAPL.>'")
    typer.echo(f"\nOn {first.name}, see whether both adapters run:\n")
    typer.echo(f"  penstock admin status {login}/{OPERATIONS}.toml")


def _tell_ways_to_subscribe(layout: Layout, ports: Ports, login: str) -> None:
    typer.echo(
        f"\nIn other terminals, subscribe as {USER}: through the filter module, to records, metered, from the tree:\n"
    )
    typer.echo(f"  penstock sub {login} --filter {layout.filter} 'md.us.eq.AAPL.>'")
    typer.echo(f"  penstock sub {login} --node {layout.nodes[MUX]} --records 'md.us.eq.AAPL.quote'")
    typer.echo(f"  penstock sub {login} --node {layout.nodes[EDGE]} --metered 4 'md.us.eq.AAPL.quote'")
    typer.echo(f"  penstock sub {login} --agent 127.0.0.1:{ports.agents[-1]} 'md.us.eq.AAPL.trade'")
    typer.echo("\nPublish and consume assured messages:\n")
    typer.echo(f"  penstock queue publish {layout.router} {PREFIX}.trial 'a trade' {login}")
    typer.echo(f"  penstock queue drain {layout.router} {ENDPOINT} {login}")
