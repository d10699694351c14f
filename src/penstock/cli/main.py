"""Assembles the command and turns errors into one clear line and an exit status."""

import os
import sys
from typing import Annotated, Literal, TypeAlias

import typer
from rich.console import Console

import penstock
from penstock.base import PenstockError, log
from penstock.cli import (
    adapter,
    admin,
    bench,
    capture,
    clock,
    console,
    convert,
    demo,
    feed,
    journal,
    model,
    pipeline,
    pub,
    sim,
    sub,
    top,
    up,
)
from penstock.cli.distribution import edge_cache, multiplexer, ticker_plant
from penstock.cli.filter import filter_module

LogStyle: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

HELP = """Penstock distributes market data: fast on a host, without a broker on a network, and provably.

\b
Start here:
  penstock demo --kill-active           a whole plant, measured; its active adapter is killed, nobody notices
  penstock init DIR; penstock up DIR/plant.toml     a first plant of your own
  penstock top DIR/plant.toml           watch it: nodes, streams, consumers, rates, losses
  penstock console --config DIR/plant.toml          the same in the browser, and live quotes
  penstock sub                          show what flows on a channel; pub and capture feed and keep it
  penstock filter 239.255.74.1:7401     beside a host's applications: they get only what they want
  penstock plant 239.255.74.1:7401      current records for many; penstock mux: to a host's consumers
  penstock model show quote             what a message looks like, byte by byte
  penstock sim --seed 7 --minutes 1     torture the protocols; the seed replays exactly
  penstock bench --list                 what can be measured here
  penstock journal ls PATH              what a journal holds; also cat, verify, serve
  penstock feed play LINE-A LINE-B      an exchange of our own; also generate, info
  penstock pipeline --help              captures and feeds into an archive of tables, on Spark
  penstock convert check itch           what a converter table does, and where it is wrong
  penstock admin --help                 who may see what: policy, credentials, the administration server
  penstock clock check HOST:PORT        how far another host's clock is from this one
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
app.command("init")(up.init)
app.command("up")(up.up)
app.command("node")(up.node)
app.command("top")(top.top)
app.command("console")(console.console)
app.command("pub")(pub.pub)
app.command("sub")(sub.sub)
app.command("capture")(capture.capture)
app.command("adapter")(adapter.adapter)
app.command("filter")(filter_module)
app.command("plant")(ticker_plant)
app.command("mux")(multiplexer)
app.command("edge")(edge_cache)
app.command("sim")(sim.sim)
app.command("bench")(bench.bench)
app.add_typer(admin.app, name="admin")
app.add_typer(model.app, name="model")
app.add_typer(convert.app, name="convert")
app.add_typer(clock.app, name="clock")
app.add_typer(journal.app, name="journal")
app.add_typer(feed.app, name="feed")
app.add_typer(pipeline.app, name="pipeline")


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def options(
    log_style: Annotated[LogStyle, typer.Option(help="Logs on standard error: for people or for machines.")] = "text",
    log_level: Annotated[LogLevel, typer.Option(help="The least important log lines to show.")] = "INFO",
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What stands before the command's name."""
    log.configure(style=log_style, level=log_level)


def main() -> None:
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here, and not when the interpreter ends, where nobody could catch what it raises
    except PenstockError as error:
        Console(stderr=True, highlight=False).print(f"[red]error[/red] \\[{error.code}]: ", end="")
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # whoever read our output (head, a pager) has seen enough; what is still buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
