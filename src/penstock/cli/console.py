"""`penstock console`: a plant in the browser."""

import os
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer

from penstock.base.errors import ConfigurationError
from penstock.base.files import share_with_group
from penstock.net.place import answers
from penstock.node.console_config import ConsoleConfig
from penstock.node.plant import Plant
from penstock.node.roles import Ready, Told, noting
from penstock.web.live.login_links import issue_link, open_console
from penstock.web.live.process import run_console


def console(
    config: Annotated[Path, typer.Option("--config", metavar="PLANT.TOML", help="The plant's document.")],
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="TCP port; 0: any free port.")] = None,
    opens: Annotated[bool, typer.Option("--open", help="Open the console in this machine's browser.")] = False,
    credentials: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Credentials file of the client that login links log in; default: login_credentials."
        ),
    ] = None,
    prints_link: Annotated[
        bool, typer.Option("--link", help="Print a one-time login link of the console that runs, and exit.")
    ] = False,
) -> None:
    """Serve the console of a plant: its nodes, streams, tree and losses, live quotes, and actions for administrators.
    Users log in with their client name and secret, or by a one-time link; Ctrl-C stops the console.

    The settings are those of [[console]] in the document. Without a certificate, the console listens on loopback
    only.
    """
    plant = Plant.load(config.absolute())
    share_with_group(plant.files_group)
    settings = plant.console()
    if port is not None:
        settings = msgspec.structs.replace(settings, port=port)
    if credentials is not None:
        settings = msgspec.structs.replace(settings, login_credentials=str(credentials.absolute()))
    if prints_link:
        typer.echo(issue_link(plant, settings, _running_at(plant, settings)))
        return
    if settings.port and answers((settings.host, settings.port)):
        raise ConfigurationError(
            f"port {settings.port} of {settings.host} is in use",
            hint="`penstock up` serves the console of its plant there; --port 0 starts another one on a free port",
        )
    os.chdir(plant.path.parent)  # relative paths in the document start there

    def tell(told: Told) -> None:
        if isinstance(told, Ready):
            typer.echo(f"console of {plant.name}: {told.where}, stop with Ctrl-C")
            if settings.login_credentials and sys.stdout.isatty():
                typer.echo(f"log in, once: {issue_link(plant, settings, told.where)}")
            if opens:
                open_console(plant, settings, told.where)

    raise typer.Exit(run_console(plant, settings, noting(plant, settings.name, tell)))


def _running_at(plant: Plant, config: ConsoleConfig) -> str:
    """The URL of the plant's console, which must run."""
    url = plant.pages.find(config.name)
    place = urlsplit(url)
    if not place.hostname or not place.port or not answers((place.hostname, place.port)):
        raise ConfigurationError(
            f"the console of {plant.path} does not run",
            hint="start it with `penstock up` or `penstock console`, then print a link",
        )
    return url
