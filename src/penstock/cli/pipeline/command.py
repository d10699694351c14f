"""`penstock pipeline`: journals and feeds into an archive of tables, and what is done with it.

Nothing of Spark is imported before a command needs it.
"""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.base.errors import ConfigurationError
from penstock.base.extensions import absolute_modules
from penstock.cli.common.table_options import CALENDAR_HELP, PREFIX_HELP, VENUE_HELP, DecimalsOption, ModulesOption
from penstock.cli.common.tabular import tabular
from penstock.cli.pipeline import audit, plan, replay

if TYPE_CHECKING:
    from penstock.spark.pipeline.archive.archive import TableInfo

app = typer.Typer(help="Archive what was captured as tables, on Spark.", no_args_is_help=True)

ArchiveArgument = Annotated[Path, typer.Argument(metavar="ARCHIVE", help="The archive's directory.")]
GraceOption = Annotated[
    int,
    typer.Option("--grace", min=0, metavar="MINUTES", help="Keep replaced files this long, for running queries."),
]
GRACE_MINUTES = 60
TablesOption = Annotated[list[str] | None, typer.Option("--table", help="Only this table; may be repeated.")]

app.command("audit")(audit.audit)
app.command("plan")(plan.plan)
app.command("replay")(replay.replay)

COLUMNS = ("table", "rows", "files", "bytes", "streams", "from", "to")


@app.command("run")
def run(
    source: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE...", help="Journals (a directory, tcp://HOST:PORT) or feeds (a file)."),
    ],
    archive: Annotated[Path, typer.Option(help="The archive's directory; it is made, or gone on with.")],
    table: Annotated[
        list[str] | None, typer.Option(help="The converter table of the files: itch, iex-deep, …, or a TOML file.")
    ] = None,
    venue: Annotated[list[str] | None, typer.Option(help=VENUE_HELP)] = None,
    prefix: Annotated[list[str] | None, typer.Option(help=PREFIX_HELP)] = None,
    calendar: Annotated[list[str] | None, typer.Option(help=CALENDAR_HELP)] = None,
    quantity_decimals: DecimalsOption = None,
    module: ModulesOption = None,
    day: Annotated[
        list[str] | None,
        typer.Option("--date", help="A file's trading date (YYYY-MM-DD), once per file. Default: found in the file."),
    ] = None,
    stream: Annotated[
        list[int] | None,
        typer.Option(min=1, max=2**31 - 1, help="A file's stream number, once per file. Default: assigned."),
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(help="A custom message model (TOML); may be repeated. The archive stores it."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace the archived rows of each file's day and venue."),
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is captured next, until Ctrl-C.")] = False,
    close: Annotated[
        bool, typer.Option("--close", help="Close the sessions of journals that are open at the end of the run.")
    ] = False,
    skip_removed: Annotated[
        bool, typer.Option("--skip-removed", help="Go on behind records that a journal no longer keeps.")
    ] = False,
    derive: Annotated[bool, typer.Option(help="Make the derived tables as well.")] = True,
    master: Annotated[
        str | None, typer.Option(help="Spark's master; this machine with all its cores unless told.")
    ] = None,
    secret_file: Annotated[str, typer.Option(help="A file with the secret of the journals' server.")] = "",
    ca_file: Annotated[str, typer.Option(help="Certificates that TLS connections are checked with.")] = "",
    connect: Annotated[
        str, typer.Option(metavar="URL", help="The administration server, if the journals' server needs its tokens.")
    ] = "",
    credentials: Annotated[str, typer.Option(metavar="FILE", help="The file for --connect.")] = "",
) -> None:
    """Archive captures and recorded feeds as tables, and what is derived from them.

    What is archived already is passed over: a run that was ended or killed is gone on with by the same command. What
    cannot be read goes into the table quarantine with the reason. At the end stands what became of every message.
    """
    from penstock.cli.pipeline.run import RunOptions, run_pipeline
    from penstock.model import MessageModel

    run_pipeline(
        RunOptions(
            sources=source,
            archive=archive,
            tables=table or [],
            venues=venue or [],
            prefixes=prefix or [],
            calendars=calendar or [],
            quantity_decimals=quantity_decimals,
            modules=absolute_modules(module or ()),
            trading_dates=[_date(each).isoformat() for each in day or []],
            streams=stream or [],
            models=[MessageModel.load(each) for each in model or []],
            is_replacing=replace,
            is_following=follow,
            is_skipping=skip_removed,
            is_closing=close,
            is_deriving=derive,
            master=master,
            secret=secret_file,
            ca=ca_file,
            admin=connect,
            credentials=credentials,
        )
    )


@app.command("tables")
def tables(
    archive: ArchiveArgument,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per table, for programs.")] = False,
    schema: Annotated[str, typer.Option(metavar="TABLE", help="Show the columns of this table instead.")] = "",
) -> None:
    """List the tables of an archive: rows, files, dates; what was read into it, and how far."""
    from penstock.spark.pipeline.archive.archive import Archive

    opened = Archive.open(archive)
    if schema:
        opened.files(schema)
        typer.echo(opened.catalogue.schemas[schema].replace(", `", ",\n`"))
        return
    found = opened.tables()
    if json:
        for info in found:
            typer.echo(msgspec.json.encode(info))
        return
    typer.echo(tabular([COLUMNS, *map(_row, found)]))
    for source, position in sorted(opened.catalogue.sources.items()):
        typer.echo(_source(source, position))
    typer.echo(f"{opened.catalogue.number:,} commits")


@app.command("compact")
def compact(
    archive: ArchiveArgument,
    table: TablesOption = None,
    megabytes: Annotated[int, typer.Option(min=1, help="Files of this size are big enough.")] = 256,
    grace: GraceOption = GRACE_MINUTES,
) -> None:
    """Merge small files of the same partition. A reader sees either the old files or the new file, never both.

    The old files stay on the disk for --grace minutes; the first commit after that removes them.
    """
    from penstock.spark.pipeline.archive.archive import Archive
    from penstock.spark.pipeline.archive.compaction import compact as put_together
    from penstock.spark.pipeline.archive.compaction import small_files

    with Archive.writing(archive, grace_seconds=60.0 * grace) as opened:
        groups = small_files(opened, target_size=megabytes << 20, tables=table or ())
        put_together(opened, groups)
    files = sum(len(group.files) for group in groups)
    typer.echo(f"{files:,} files became {len(groups):,}" if groups else "nothing to compact")


@app.command("retain")
def retain(
    archive: ArchiveArgument,
    days: Annotated[int | None, typer.Option(min=1, help="Keep so many days before today (UTC), and today.")] = None,
    since: Annotated[str, typer.Option(metavar="DATE", help="Keep this date (YYYY-MM-DD) and all after it.")] = "",
    table: TablesOption = None,
    grace: GraceOption = GRACE_MINUTES,
) -> None:
    """Remove the rows of old dates. Their files stay on the disk for --grace minutes."""
    from penstock.spark.pipeline.archive.archive import Archive
    from penstock.spark.pipeline.archive.compaction import retain as remove_before

    if (days is None) == (not since):
        raise ConfigurationError("what to keep is not said", hint="give --days or --since, one of them")
    first = _date(since) if since else datetime.now(UTC).date() - timedelta(days=days or 0)
    with Archive.writing(archive, grace_seconds=60.0 * grace) as opened:
        commit = remove_before(opened, before=first.isoformat(), tables=table or ())
        opened.prune_log()
    removed = len(commit.removed) if commit is not None else 0
    typer.echo(f"{removed:,} files with dates before {first} were removed")


def _source(name: str, position: dict[str, Any]) -> str:
    """What was read, and how far."""
    kind, _, where = name.partition(":")
    if kind == "journal":
        return f"journal {where}: up to record {position['last']:,}"
    done, whole = position["slices"], position["of"]
    extent = "all of it" if done == whole else f"{done:,} of {whole:,} slices; the same run goes on"
    said = ", ".join(filter(None, [f"stream {position['stream']}", position["date"], position["venue"]]))
    return f"feed {position['path']} ({said}): {extent}"


def _row(info: "TableInfo") -> tuple[str, ...]:
    counts = (f"{count:,}" for count in (info.rows, info.files, info.size, info.streams))
    return info.name, *counts, info.first_date, info.last_date


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"{text!r} is no date", hint="write it as 2024-01-31") from None
