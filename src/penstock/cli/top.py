"""`penstock top`: the nodes of a plant, their streams, losses and consumers, as they are now."""

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
    plant: Annotated[
        Path | None, typer.Argument(metavar="[PLANT.TOML]", help="The document that describes the plant.")
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="A node's page; may be repeated, also besides a plant."),
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Authorities of the certificates of --node https://HOST:PORT.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The bearer token that these pages ask for.")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, max=3_600, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print what was seen, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: one JSON object on standard output.")] = False,
) -> None:
    """Watch nodes: health, rates, latency, losses by cause, and consumers with classes, congestion and conflation.

    It only reads the nodes' pages (/health, /status, /metrics). With --once the exit status is 1 unless all are well.
    """
    files = {"ca_file": str(ca_file or ""), "token_file": str(token_file or "")}
    given = [place_given(address, **files) for address in dict.fromkeys(node or [])]
    title, find = _finder(plant, given)
    if as_json and not once:
        raise ConfigurationError("--json prints one picture", hint="say --once --json")
    if once:
        picture = asyncio.run(_look_twice(find, interval))
        if as_json:
            sys.stdout.write(msgspec.json.encode(picture).decode() + "\n")
        else:
            print_picture(picture)
        raise typer.Exit(0 if picture.is_well else 1)
    if not sys.stdout.isatty():
        raise ConfigurationError("standard output is no terminal", hint="say --once, or --once --json for scripts")
    from penstock.top.live.app import TopApp  # here, so that no other command pays for textual

    TopApp(title, find, interval).run()


def _finder(document: Path | None, given: list[Place]) -> tuple[str, Callable[[], list[Place]]]:
    """What is watched; and where it is, which may be asked again: a node that is started anew may be elsewhere."""
    if document is not None:
        plant = Plant.load(document)
        return plant.name, lambda: [*places_of_plant(plant), *given]
    if not given:
        raise ConfigurationError("there is nothing to watch", hint="name a PLANT.TOML, or --node HOST:PORT")
    return ", ".join(place.name for place in given), lambda: given


async def _look_twice(find: Callable[[], list[Place]], seconds: float) -> Picture:
    watch = Watch()
    watch.take(await fetch_all(find()), time.monotonic_ns())
    await asyncio.sleep(seconds)
    return watch.take(await fetch_all(find()), time.monotonic_ns())
