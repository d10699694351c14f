"""`penstock pipeline`: archive journals and feeds as tables, and work with the archive.

Spark is imported only by commands that need it.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.base.errors import ConfigurationError
from penstock.cli.common.options import takes_options
from penstock.cli.common.tabular import tabular
from penstock.cli.pipeline import audit, plan, replay
from penstock.cli.pipeline.options import RunCommandOptions, parsed_date

if TYPE_CHECKING:
    from penstock.spark.pipeline.archive.archive import TableInfo

app = typer.Typer(help="Archive captures and feeds as tables with Spark.", no_args_is_help=True)

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
@takes_options(RunCommandOptions)
def run(options: RunCommandOptions) -> None:
    """Archive captures and recorded feeds as tables, and derive further tables.

    Archived messages are skipped, so the same command continues an interrupted run. Messages that cannot be read go
    into the table quarantine with the reason. The final summary accounts for every message.
    """
    from penstock.cli.pipeline.run import run_pipeline

    run_pipeline(options.of_run())


@app.command("tables")
def tables(
    archive: ArchiveArgument,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per table, for programs.")] = False,
    schema: Annotated[str, typer.Option(metavar="TABLE", help="Show the columns of this table instead.")] = "",
) -> None:
    """List the tables of an archive with rows, files and dates; and its sources with their positions."""
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
    megabytes: Annotated[int, typer.Option(min=1, help="Files of this size are not merged.")] = 256,
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
    days: Annotated[
        int | None, typer.Option(min=1, help="Keep this number of days before today (UTC), and today.")
    ] = None,
    since: Annotated[str, typer.Option(metavar="DATE", help="Keep this date (YYYY-MM-DD) and all after it.")] = "",
    table: TablesOption = None,
    grace: GraceOption = GRACE_MINUTES,
) -> None:
    """Remove the rows of old dates. Their files stay on the disk for --grace minutes."""
    from penstock.spark.pipeline.archive.archive import Archive
    from penstock.spark.pipeline.archive.compaction import retain as remove_before

    if (days is None) == (not since):
        raise ConfigurationError("--days or --since is required", hint="use one of them")
    first = parsed_date(since) if since else datetime.now(UTC).date() - timedelta(days=days or 0)
    with Archive.writing(archive, grace_seconds=60.0 * grace) as opened:
        commit = remove_before(opened, before=first.isoformat(), tables=table or ())
        opened.prune_log()
    removed = len(commit.removed) if commit is not None else 0
    typer.echo(f"{removed:,} files with dates before {first} were removed")


def _source(name: str, position: dict[str, Any]) -> str:
    """Describe a source and its position."""
    kind, _, where = name.partition(":")
    if kind == "journal":
        return f"journal {where}: up to record {position['last']:,}"
    done, whole = position["slices"], position["of"]
    extent = "all of it" if done == whole else f"{done:,} of {whole:,} slices; run the same command to continue"
    said = ", ".join(filter(None, [f"stream {position['stream']}", position["date"], position["venue"]]))
    return f"feed {position['path']} ({said}): {extent}"


def _row(info: "TableInfo") -> tuple[str, ...]:
    counts = (f"{count:,}" for count in (info.rows, info.files, info.size, info.streams))
    return info.name, *counts, info.first_date, info.last_date
