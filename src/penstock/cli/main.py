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
  penstock agent --root DIR             the root of a distribution tree; --parent HOST:PORT: one below it
  penstock router run DIR               assured messages: stored, acknowledged, queued; penstock queue list
  penstock witness run --config FILE    the third voter of a pair of routers: it switches by itself
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

COMMANDS = {
    "demo": "demo.command:demo",
    "init": "up:init",
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
"""Where each command is: a file of penstock.cli, and its function or group there."""


class Commands(TyperGroup):
    """Imports the command that is asked for and none of the others: all together take longer than most of them run."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        names: dict[str, Any] = dict.fromkeys(COMMANDS)
        self.commands = names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load_command(cmd_name) if cmd_name in COMMANDS else None


def load_command(name: str) -> object:
    file, _, attribute = COMMANDS[name].partition(":")
    found = getattr(import_module(f"penstock.cli.{file}"), attribute)
    alone = typer.Typer(**SETTINGS)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name)(found)
    return get_group(alone).commands[name]


SETTINGS: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

app = typer.Typer(cls=Commands, help=HELP, no_args_is_help=True, add_completion=False, **SETTINGS)


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
    os.umask(0o077)  # for what libraries and the programs that we start make; our own files need no umask
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
