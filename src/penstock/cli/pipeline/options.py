"""The options of `penstock pipeline run`."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.errors import ConfigurationError
from penstock.base.extensions import absolute_modules
from penstock.cli.common.table_options import CALENDAR_HELP, PREFIX_HELP, VENUE_HELP, DecimalsOption, ModulesOption

if TYPE_CHECKING:
    from penstock.cli.pipeline.run import RunOptions


@dataclass(frozen=True, kw_only=True)
class RunCommandOptions:
    """The options as given on the command line."""

    source: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE...", help="Journals (a directory, tcp://HOST:PORT) or feeds (a file)."),
    ]
    archive: Annotated[Path, typer.Option(help="The archive's directory; created if missing.")]
    table: Annotated[
        list[str] | None, typer.Option(help="The converter table of the files: itch, iex-deep, …, or a TOML file.")
    ] = None
    venue: Annotated[list[str] | None, typer.Option(help=VENUE_HELP)] = None
    prefix: Annotated[list[str] | None, typer.Option(help=PREFIX_HELP)] = None
    calendar: Annotated[list[str] | None, typer.Option(help=CALENDAR_HELP)] = None
    quantity_decimals: DecimalsOption = None
    module: ModulesOption = None
    day: Annotated[
        list[str] | None,
        typer.Option("--date", help="A file's trading date (YYYY-MM-DD), once per file. Default: found in the file."),
    ] = None
    stream: Annotated[
        list[int] | None,
        typer.Option(min=1, max=2**31 - 1, help="A file's stream number, once per file. Default: assigned."),
    ] = None
    model: Annotated[
        list[Path] | None,
        typer.Option(help="A custom message model (TOML); may be repeated. The archive stores it."),
    ] = None
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace the archived rows of each file's day and venue."),
    ] = False
    follow: Annotated[bool, typer.Option("--follow", help="Continue with new captures until Ctrl-C.")] = False
    retain_days: Annotated[
        int | None,
        typer.Option(min=1, help="With --follow: keep this number of days before today (UTC), and remove older rows."),
    ] = None
    close: Annotated[
        bool, typer.Option("--close", help="Close the sessions of journals that are open at the end of the run.")
    ] = False
    skip_removed: Annotated[bool, typer.Option("--skip-removed", help="Skip records that a journal no longer has.")] = (
        False
    )
    derive: Annotated[bool, typer.Option(help="Also make the derived tables.")] = True
    master: Annotated[str | None, typer.Option(help="Spark master. Default: this machine with all its cores.")] = None
    secret_file: Annotated[str, typer.Option(help="A file with the secret of the journals' server.")] = ""
    ca_file: Annotated[str, typer.Option(help="CA certificates for TLS.")] = ""
    connect: Annotated[
        str, typer.Option(metavar="URL", help="The administration server, if the journals' server needs its tokens.")
    ] = ""
    credentials: Annotated[str, typer.Option(metavar="FILE", help="Your credentials, for --connect.")] = ""

    def of_run(self) -> "RunOptions":
        from penstock.cli.pipeline.run import RunOptions
        from penstock.model import MessageModel

        return RunOptions(
            sources=self.source,
            archive=self.archive,
            tables=self.table or [],
            venues=self.venue or [],
            prefixes=self.prefix or [],
            calendars=self.calendar or [],
            quantity_decimals=self.quantity_decimals,
            modules=absolute_modules(self.module or ()),
            trading_dates=[parsed_date(each).isoformat() for each in self.day or []],
            streams=self.stream or [],
            models=[MessageModel.load(each) for each in self.model or []],
            is_replacing=self.replace,
            is_following=self.follow,
            retain_days=self.retain_days,
            is_skipping=self.skip_removed,
            is_closing=self.close,
            is_deriving=self.derive,
            master=self.master,
            secret=self.secret_file,
            ca=self.ca_file,
            admin=self.connect,
            credentials=self.credentials,
        )


def parsed_date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"{text!r} is not a date", hint="write it as 2024-01-31") from None
