"""`penstock router status`, `penstock witness status`: the status of nodes of one kind, from their pages."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import typer

from penstock.base.errors import ConfigurationError
from penstock.base.readable import harmless_json, printable
from penstock.node.plant import Plant
from penstock.top.core.places import place_given, places_of_plant
from penstock.top.live.fetching import fetch

T = TypeVar("T")


def show_statuses(
    role: str, kind: type[T], plant: Path | None, pages: list[str], show: Callable[[T], None], *, is_json: bool
) -> None:
    """Show the nodes of a plant, or the nodes with these pages, and exit: with status 1 if one does not answer."""
    if (plant is None) == (not pages):
        raise ConfigurationError(f"give either a plant or the page of a {role}")
    places = places_of_plant(Plant.load(plant)) if plant is not None else [place_given(each) for each in pages]
    has_failed = False
    for place in places:
        if place.role not in ("", role):
            continue
        reading = asyncio.run(fetch(place))
        if not isinstance(reading.status, kind):
            typer.echo(printable(f"{place.name}: {reading.why or f'is not a {role}'}"))
            has_failed = True
        elif is_json:
            typer.echo(harmless_json(msgspec.json.encode(reading.status).decode()))
        else:
            show(reading.status)
    raise typer.Exit(int(has_failed))
