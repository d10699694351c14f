"""`penstock witness`: run the witness of a pair of message routers, show its status."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.assured.core.status import WitnessStatus
from penstock.assured.live.witness import LiveWitness
from penstock.assured.node_config import WitnessConfig
from penstock.base.readable import printable
from penstock.cli.common.nodes import control_facts, described_node, run_node
from penstock.cli.common.statuses import show_statuses

app = typer.Typer(help="Run the witness of a pair of message routers, or show its status.", no_args_is_help=True)


@app.command("run")
def run(
    config: Annotated[Path, typer.Option(help="The configuration of the witness or of a plant (TOML).")],
    name: Annotated[str | None, typer.Option(help="The witness's name, if the document is a plant's.")] = None,
) -> None:
    """Run one witness in the foreground. When it runs, one line of JSON on standard output has its address for
    routers. Ctrl-C or SIGTERM shuts it down."""
    chosen, pages = described_node(config, name, WitnessConfig, "witness")
    run_node(chosen.name, lambda: LiveWitness(chosen), control_facts("witness", chosen.name), pages)


@app.command("status")
def status(
    plant: Annotated[Path | None, typer.Argument(metavar="[PLANT.TOML]", help="The plant.")] = None,
    node: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="The page of a witness; may be repeated.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per witness.")] = False,
) -> None:
    """Show the status of witnesses, from their pages. The exit status is 1 if one does not answer."""
    show_statuses("witness", WitnessStatus, plant, node or [], _print, is_json=json)


def _print(witness: WitnessStatus) -> None:
    holder = f"granted to {witness.holder}" if witness.holder else "not granted yet"
    alone = f", {witness.alone} is alone: no automatic switch" if witness.alone else ""
    disk = "" if witness.is_storing else ", the disk accepts no data"
    touch = ", ".join(witness.in_touch) or "no router"
    typer.echo(printable(f"{witness.name}: epoch {witness.epoch}, {holder}{alone}{disk}; in touch with {touch}"))
