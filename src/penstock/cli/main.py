"""Assembles the command and turns errors into one clear line and an exit status."""

import os
import sys
from importlib import import_module
from typing import Annotated, Any, Literal, TypeAlias

import typer
from rich.console import Console
from typer.core import TyperGroup
from typer.main import get_group

import penstock
from penstock.base import PenstockError, log

LogStyle: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

SUMMARY_SIZE_MAX = 400

HELP = """Penstock distributes market data: in microseconds on a host, and without a broker on a network.

\b
Start here:
  penstock demo                         the critical path, then a whole plant; an adapter is killed
  penstock init DIR; penstock up DIR/plant.toml     make and run a first plant
  penstock top DIR/plant.toml           watch nodes, streams, consumers, rates, losses
  penstock console --config DIR/plant.toml          the same in the browser, with live quotes
  penstock sub                          show messages; also pub (publish), capture (record)
  penstock filter 239.255.74.1:7401     a filter module for a host's applications
  penstock plant 239.255.74.1:7401      a ticker plant; also mux (multiplexer), edge
  penstock agent --root DIR             the root of a distribution tree; --parent HOST:PORT: a child
  penstock router run DIR               a router for assured messages; also queue list
  penstock witness run --config FILE    the voter for automatic takeover in a pair of routers
  penstock model show quote             the layout of a message model
  penstock sim --seed 7 --minutes 1     simulate faults; equal seeds give equal runs
  penstock bench --list                 benchmarks
  penstock journal ls PATH              the segments of a journal; also cat, verify, serve
  penstock feed play LINE-A LINE-B      play an exchange feed; also generate, info, listen
  penstock pipeline --help              archive captures and feeds as tables, with Spark
  penstock convert check itch           check a converter table
  penstock admin --help                 policy, credentials, administration server
  penstock clock check HOST:PORT        the clock offset of another host
"""

COMMANDS = {
    "demo": "demo.command:demo",
    "init": "init:init",
    "up": "up:up",
    "node": "up:node",
    "top": "top:top",
    "console": "console:console",
    "pub": "pub.command:pub",
    "sub": "sub.command:sub",
    "capture": "capture:capture",
    "adapter": "adapter:adapter",
    "filter": "filter:filter_module",
    "plant": "distribution:ticker_plant",
    "mux": "distribution:multiplexer",
    "edge": "distribution:edge_cache",
    "agent": "agent.command:app",
    "router": "router:app",
    "queue": "queue:app",
    "witness": "witness:app",
    "sim": "sim:sim",
    "bench": "bench:bench",
    "admin": "admin:app",
    "model": "model:app",
    "convert": "convert:app",
    "clock": "clock:app",
    "journal": "journal.command:app",
    "feed": "feed.command:app",
    "pipeline": "pipeline.command:app",
}
"""The location of each command: a module of penstock.cli, and its function or group."""

SUMMARIES = {
    "demo": "Run Penstock on this machine, and measure latency and losses.",
    "init": "Write a first plant to try and to change.",
    "up": "Run every node of a plant on this machine.",
    "node": "Run one node of a plant on this machine.",
    "top": "Show the nodes of a plant: rates, latencies, losses.",
    "console": "Serve the console of a plant to browsers.",
    "pub": "Publish messages from standard input.",
    "sub": "Show messages and losses in order.",
    "capture": "Record the messages of a channel in a journal.",
    "adapter": "Run a feed adapter.",
    "filter": "Run a filter module for the applications of this host.",
    "plant": "Run a ticker plant.",
    "mux": "Run a multiplexer for the consumers of this host.",
    "edge": "Run an edge cache for screens and browsers.",
    "agent": "Run an agent of a distribution tree; show and operate trees.",
    "router": "Run a message router; show and operate pairs.",
    "queue": "List, create, fill and drain the queues of a message router.",
    "witness": "Run the witness of a pair of message routers.",
    "sim": "Run a simulated plant with faults, from a seed.",
    "bench": "Measure Penstock on this machine, beside peers.",
    "admin": "Run the administration server; credentials and policies.",
    "model": "Show and check message models.",
    "convert": "Check converter tables, and try them on a file.",
    "clock": "Measure the offset between the clocks of two hosts.",
    "journal": "List, verify, print and serve journals.",
    "feed": "Generate, inspect, play and receive exchange feeds.",
    "pipeline": "Archive captures and feeds as tables with Spark.",
}
"""One line for each command, so that `penstock --help` imports none of them."""


class Group(TyperGroup):
    """A group of commands that shows whole summaries."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self.summaries(ctx))

    def summaries(self, ctx: Any) -> list[tuple[str, str]]:
        """The names of the commands, and the first sentences of their help."""
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return [(name, each.get_short_help_str(SUMMARY_SIZE_MAX)) for name, each in named if each is not None]


class Commands(Group):
    """Imports only the requested command: importing all of them takes longer than most commands run."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        names: dict[str, Any] = dict.fromkeys(COMMANDS)
        self.commands = names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def summaries(self, ctx: Any) -> list[tuple[str, str]]:
        return list(SUMMARIES.items())


def load_command(name: str) -> object:
    file, _, attribute = COMMANDS[name].partition(":")
    found = getattr(import_module(f"penstock.cli.{file}"), attribute)
    alone = typer.Typer(**SETTINGS)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name, cls=Group)
    else:
        alone.command(name)(found)
    return get_group(alone).commands[name]


SETTINGS: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

app = typer.Typer(cls=Commands, help=HELP, no_args_is_help=True, add_completion=True, **SETTINGS)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def options(
    log_style: Annotated[LogStyle, typer.Option(help="The format of logs on standard error.")] = "text",
    log_level: Annotated[
        LogLevel | None, typer.Option(help="The lowest level of logs to show. Default: INFO; of `up`: WARNING.")
    ] = None,
    version: Annotated[
        bool, typer.Option("-V", "--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options before the command's name."""
    log.configure(style=log_style, level=log_level or "INFO")


def main() -> None:
    os.umask(0o077)  # for files made by libraries and child processes; Penstock's own files do not depend on the umask
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # flushed here, because exceptions at interpreter exit cannot be caught
    except PenstockError as error:
        Console(stderr=True, highlight=False).print(f"[red]error[/red] \\[{error.code}]: ", end="")
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # the reader of the output (head, a pager) has closed it; discard the buffered rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
