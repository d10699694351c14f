"""Assembles the command and turns errors into one clear line and an exit status."""

import sys
from typing import Annotated

import typer
from rich.console import Console

import penstock
from penstock.base import PenstockError
from penstock.cli import bench, demo, model, sim

HELP = """Penstock distributes market data: fast on a host, without a broker on a network, and provably.

\b
Start here:
  penstock demo                         a plant at work, with losses and their repair
  penstock model show quote             what a message looks like, byte by byte
  penstock sim --seed 7 --minutes 1     torture the protocols; the seed replays exactly
  penstock bench --list                 what can be measured here
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("sim")(sim.sim)
app.command("bench")(bench.bench)
app.add_typer(model.app, name="model")


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What stands before the command's name."""


def main() -> None:
    try:
        app()
    except PenstockError as error:
        Console(stderr=True, highlight=False).print(f"[red]error[/red] \\[{error.code}]: ", end="")
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
