"""`penstock top`: the nodes of a plant, their streams and consumers, as they are now."""

import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.base.errors import ConfigurationError
from penstock.node.plant import Plant
from penstock.top.picture import Picture, picture_of
from penstock.top.places import Place, places_given, places_of_plant
from penstock.top.reading import read_all
from penstock.top.shown import (
    CONSUMER_COLUMNS,
    NODE_COLUMNS,
    STREAM_COLUMNS,
    consumer_cells,
    node_cells,
    stream_cells,
)

WIDTH = 240
"""Columns where there is no terminal to be asked."""


def top(
    where: Annotated[
        list[str],
        typer.Argument(metavar="PLANT.TOML|HOST:PORT...", help="A plant's document, or the pages of nodes."),
    ],
    interval: Annotated[float, typer.Option(min=0.1, max=3_600, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, show what was seen, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: one JSON object on standard output.")] = False,
) -> None:
    """Watch nodes: rates, latency, losses, streams, consumers with their classes, congestion and conflation.

    It only reads the nodes' pages (/status, /metrics, /health). With --once the exit status is 1 if a node is down.
    """
    title, places = _places(where)
    if as_json and not once:
        raise ConfigurationError("--json shows one picture", hint="say --once --json")
    if once:
        picture = _look_twice(places, interval)
        if as_json:
            sys.stdout.write(msgspec.json.encode(picture).decode() + "\n")
        else:
            _print(picture)
        raise typer.Exit(0 if all(node.is_well for node in picture.nodes) else 1)
    if not sys.stdout.isatty():
        raise ConfigurationError("standard output is no terminal", hint="say --once, or --once --json for scripts")
    from penstock.top.app import TopApp  # takes long to import

    TopApp(title, places, interval).run()


def _places(where: list[str]) -> tuple[str, list[Place]]:
    documents = [each for each in where if each.endswith(".toml")]
    if not documents:
        return ", ".join(where), places_given(where)
    if len(where) > 1:
        raise ConfigurationError("a plant's document stands alone", hint="name one document, or addresses only")
    plant = Plant.load(Path(documents[0]))
    return plant.name, places_of_plant(plant)


def _look_twice(places: list[Place], seconds: float) -> Picture:
    before = read_all(places)
    time.sleep(seconds)
    return picture_of(read_all(places), before)


def _print(picture: Picture) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    for columns, rows in (
        (NODE_COLUMNS, [node_cells(row) for row in picture.nodes]),
        (STREAM_COLUMNS, [stream_cells(row) for row in picture.streams]),
        (CONSUMER_COLUMNS, [consumer_cells(row) for row in picture.consumers]),
    ):
        if rows:
            console.print(_table(columns, rows))


def _table(columns: tuple[str, ...], rows: list[list[Text]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
