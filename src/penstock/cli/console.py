"""`penstock console`: a plant in the browser."""

import os
import webbrowser
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.base.errors import ConfigurationError
from penstock.base.files import share_with_group
from penstock.net.place import answers
from penstock.node.plant import Plant
from penstock.node.roles import Ready, Told, noting
from penstock.web.live.process import run_console


def console(
    config: Annotated[Path, typer.Option("--config", metavar="PLANT.TOML", help="The plant's document.")],
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="TCP port; 0: any free port.")] = None,
    opens: Annotated[bool, typer.Option("--open", help="Open the console in this machine's browser.")] = False,
) -> None:
    """Serve the console of a plant: its nodes, streams, tree and losses, live quotes, and actions for administrators.
    Users log in with their client name and secret; Ctrl-C stops the console.

    The settings are those of [[console]] in the document. Without a certificate, the console listens on loopback
    only.
    """
    plant = Plant.load(config)
    share_with_group(plant.files_group)
    settings = plant.console()
    if port is not None:
        settings = msgspec.structs.replace(settings, port=port)
    if settings.port and answers((settings.host, settings.port)):
        raise ConfigurationError(
            f"port {settings.port} of {settings.host} is in use",
            hint="`penstock up` serves the console of its plant there; --port 0 starts another one on a free port",
        )
    os.chdir(config.parent)  # relative paths in the document start there

    def tell(told: Told) -> None:
        if isinstance(told, Ready):
            typer.echo(f"console of {plant.name}: {told.where}, stop with Ctrl-C")
            if opens:
                webbrowser.open(told.where)

    raise typer.Exit(run_console(plant, settings, noting(plant, settings.name, tell)))
