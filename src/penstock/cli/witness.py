"""`penstock witness`: run the third voter of a pair of message routers, show how one is."""

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.assured.witnessing import LiveWitness, WitnessConfig, WitnessStatus
from penstock.base.config import load_toml
from penstock.base.errors import ConfigurationError
from penstock.cli.nodes import announce, node_of_plant, refuse_plant
from penstock.cli.readable import harmless_json, printable
from penstock.net.agent import run_agent
from penstock.node.plant import Plant
from penstock.top.fetching import fetch
from penstock.top.places import place_given, places_of_plant

app = typer.Typer(help="Run the witness of a pair of message routers, or see how one is.", no_args_is_help=True)


@app.command("run")
def run(
    config: Annotated[Path, typer.Option(help="The witness's own configuration, or a plant's: a TOML document.")],
    name: Annotated[str | None, typer.Option(help="Which witness, when the document is a plant's.")] = None,
) -> None:
    """Run one witness in the foreground. When it runs, one line of JSON on standard output says where routers connect.
    Ctrl-C or SIGTERM ends it in order."""
    if name is None:
        refuse_plant(config, "witness")
        chosen = load_toml(config, WitnessConfig)
    else:
        chosen = node_of_plant(config, name, WitnessConfig, "witness")

    async def main(stop: asyncio.Event) -> None:
        live = LiveWitness(chosen)
        await live.start()
        announce({"witness": chosen.name, "control_port": live.control_port, "url": live.endpoint_url})
        await live.run(stop)

    raise typer.Exit(run_agent(main, name=chosen.name))


@app.command("status")
def status(
    plant: Annotated[
        Path | None, typer.Argument(metavar="[PLANT.TOML]", help="The plant whose witnesses are shown.")
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="The page of a witness; may be repeated.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per witness.")] = False,
) -> None:
    """Show how witnesses are, by what they say on their pages. Exit status 1: one does not answer."""
    if (plant is None) == (not node):
        raise ConfigurationError("either a plant or pages of witnesses are needed")
    places = places_of_plant(Plant.load(plant)) if plant is not None else [place_given(each) for each in node or []]
    has_failed = False
    for place in places:
        if place.role not in ("", "witness"):
            continue
        reading = asyncio.run(fetch(place))
        if not isinstance(reading.status, WitnessStatus):
            typer.echo(printable(f"{place.name}: {reading.why or 'is no witness'}"))
            has_failed = True
        elif json:
            typer.echo(harmless_json(msgspec.json.encode(reading.status).decode()))
        else:
            _print(reading.status)
    raise typer.Exit(int(has_failed))


def _print(witness: WitnessStatus) -> None:
    holder = f"granted to {witness.holder}" if witness.holder else "granted to nobody yet"
    alone = f", {witness.alone} is alone: no automatic switch" if witness.alone else ""
    disk = "" if witness.is_storing else ", the disk takes nothing"
    touch = ", ".join(witness.in_touch) or "no router"
    typer.echo(printable(f"{witness.name}: epoch {witness.epoch}, {holder}{alone}{disk}; in touch with {touch}"))
