"""Shared by the commands that connect to message routers."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from penstock.assured.client import Assured, open_assured
from penstock.assured.wire.control import ClientRole
from penstock.base.errors import ConfigurationError, UnreachableError
from penstock.cli.common.secrets import given_secret
from penstock.net.guard import Guard
from penstock.net.place import answers, parse_place
from penstock.security.live.client import AdminClient

RouterArgument = Annotated[
    str, typer.Argument(metavar="HOST:PORT", help="The router; for a pair, both addresses, separated by a comma.")
]
OneRouterArgument = Annotated[str, typer.Argument(metavar="HOST:PORT", help="The router.")]
ConnectOption = Annotated[str | None, typer.Option(metavar="URL", help="The administration server, for a token.")]
CredentialsOption = Annotated[Path | None, typer.Option(help="Your credentials, for --connect.")]


@contextlib.contextmanager
def opened(
    routers: str,
    url: str | None,
    credentials: Path | None,
    secret: Path | None,
    *,
    role: ClientRole = "client",
    receive: tuple[str, ...] = (),
    send: tuple[str, ...] = (),
) -> Iterator[Assured]:
    """Open a session with the routers; with an administration server, get a token with the requested grants. Fail at
    once if nothing listens at any of the addresses: a session waits for routers that start or take over."""
    places = [each.strip() for each in routers.split(",")]
    if not any(answers(parse_place(each)) for each in places):
        raise UnreachableError(
            "no message router listens",
            where=", ".join(places),
            hint="start it with `penstock up` or `penstock router run`, or give its address, HOST:PORT",
        )
    token = ""
    if (url is None) != (credentials is None):
        raise ConfigurationError("--connect and --credentials require each other")
    if url is not None and credentials is not None:
        with AdminClient.connect(url, credentials) as admin:
            token = admin.subscribe(receive if receive or send else (">",), send=send).token
    guard = Guard(given_secret(secret))
    with open_assured(*places, token=token, guard=guard, role=role) as assured:
        yield assured
