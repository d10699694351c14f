"""`penstock top`: the current nodes, streams, losses and consumers of a plant."""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.base.errors import ConfigurationError
from penstock.node.plant import Plant
from penstock.top.core.picture import Picture
from penstock.top.core.places import Place, place_given, places_of_plant
from penstock.top.core.watch import Watch
from penstock.top.live.fetching import fetch_all
from penstock.top.live.printed import print_picture


def top(
    plant: Annotated[Path | None, typer.Argument(metavar="[PLANT.TOML]", help="The plant's document.")] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="The page of a node; may be repeated, also in addition to a plant."),
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CA certificates for --node https://HOST:PORT.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The bearer token for these pages.")] = None,
    interval: Annotated[float, typer.Option(min=0.1, max=3_600, help="Seconds between polls.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Poll twice, print the result, and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: one JSON object on standard output.")] = False,
) -> None:
    """Reads only the nodes' pages (/health, /status, /metrics). With --once the exit status is 1 unless all nodes
    are healthy.
    """
    files = {"ca_file": str(ca_file or ""), "token_file": str(token_file or "")}
    given = [place_given(address, **files) for address in dict.fromkeys(node or [])]
    title, find = _finder(plant, given)
    if as_json and not once:
        raise ConfigurationError("--json needs --once", hint="use --once --json")
    if once:
        picture = asyncio.run(_look_twice(find, interval))
        if as_json:
            sys.stdout.write(msgspec.json.encode(picture).decode() + "\n")
        else:
            print_picture(picture)
        raise typer.Exit(0 if picture.is_well else 1)
    if not sys.stdout.isatty():
        raise ConfigurationError("standard output is not a terminal", hint="use --once, or --once --json for scripts")
    from penstock.top.live.app import TopApp  # imported here, because textual is slow to import

    TopApp(title, find, interval).run()


def _finder(document: Path | None, given: list[Place]) -> tuple[str, Callable[[], list[Place]]]:
    """Return the title, and a function that finds the pages again: a restarted node may have another address."""
    if document is not None:
        plant = Plant.load(document)
        return plant.name, lambda: [*places_of_plant(plant), *given]
    if not given:
        raise ConfigurationError("no plant or node to watch", hint="give a PLANT.TOML, or --node HOST:PORT")
    return ", ".join(place.name for place in given), lambda: given


async def _look_twice(find: Callable[[], list[Place]], seconds: float) -> Picture:
    watch = Watch()
    watch.take(await fetch_all(find()), time.monotonic_ns())
    await asyncio.sleep(seconds)
    return watch.take(await fetch_all(find()), time.monotonic_ns())
