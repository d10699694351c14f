"""`penstock pipeline run`: a run from sources and options, its progress, and its summary."""

import statistics
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from penstock.base.errors import ConfigurationError
from penstock.cli.common.interrupt import interruptible
from penstock.cli.common.tabular import tabular
from penstock.model import MessageModel
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.archive.commits import Account
from penstock.spark.pipeline.derive import DERIVATIONS
from penstock.spark.pipeline.models import register_models
from penstock.spark.pipeline.runner import RunReport, balance, cores_of, follow, quarantine_reasons, run
from penstock.spark.pipeline.sources.find import SourceSelection, find_sources
from penstock.spark.session import session

INTERRUPTED = 130
"""Exit status of an interrupted run."""


class RunOptions(SourceSelection, frozen=True, kw_only=True):
    archive: Path
    is_deriving: bool = True
    is_closing: bool = False
    """True if every session ends with this run."""

    retain_days: int | None = None
    """Number of days before today that a follower keeps; None: all."""

    master: str | None = None
    models: list[MessageModel] = msgspec.field(default_factory=list)

    def first_date(self) -> date | None:
        """The first date that a follower keeps."""
        if self.retain_days is None:
            return None
        return datetime.now(UTC).date() - timedelta(days=self.retain_days)


def run_pipeline(options: RunOptions) -> None:
    if options.retain_days is not None and not options.is_following:
        hint = "penstock pipeline retain removes old rows of an archive without a follower"
        raise ConfigurationError("needs --follow", where="--retain-days", hint=hint)
    if options.is_following and options.is_closing:
        raise ConfigurationError(
            "--close needs sources that end, but --follow waits for more",
            where="--close",
            hint="omit --close or --follow",
        )
    sources = find_sources(options, cores=1)  # reports errors in sources before Spark is started
    with Archive.writing(options.archive) as archive:
        register_models(archive, options.models)
        spark = session(options.master, app="penstock pipeline")
        try:
            cores = cores_of(spark)
            sources = find_sources(options, cores)
            derivations = DERIVATIONS if options.is_deriving else ()
            console = Console(stderr=True, highlight=False)
            with interruptible() as interrupt, Shown(console) as shown:
                if options.is_following:
                    typer.echo("following, Ctrl-C ends it", err=True)
                    report = follow(
                        spark, archive, sources, derivations, shown,
                        is_ended=lambda: interrupt.is_wanted, first_date=options.first_date,
                    )  # fmt: skip
                else:
                    report = run(
                        spark, archive, sources, derivations, shown, cores=cores,
                        is_ended=lambda: interrupt.is_wanted, is_closing=options.is_closing,
                    )  # fmt: skip
        finally:
            spark.stop()
        _say(options, archive, report)


class Shown:
    """Progress on a terminal: a bar of slices, and the table being derived."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("slices"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._messages = 0

    def __enter__(self) -> "Shown":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin(self, slices: int) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(f"{self._messages:,} messages", total=slices)

    def advance(self, slices: int, account: Account) -> None:
        assert self._task is not None
        self._messages = account.taken
        self._bars.update(self._task, advance=slices, description=f"{account.taken:,} messages")

    def derive(self, name: str) -> None:
        if self._task is not None:
            self._bars.update(self._task, description=f"{self._messages:,} messages; deriving {name}")


def _say(options: RunOptions, archive: Archive, report: RunReport) -> None:
    number, where = archive.catalogue.number, options.archive
    if report.commits:
        for line in balance(report.account):
            typer.echo(line)
        for each in report.replaced:
            typer.echo(
                f"{each.day} replaced, of {', '.join(each.sources) or 'no other source'}; rows before and after:"
            )
            typer.echo(tabular([(table, f"{old:,}", f"{new:,}") for table, (old, new) in each.rows.items()]))
        for table, rows in sorted(report.read_again.items()):
            typer.echo(f"{rows:,} messages of the table raw were read again and moved to the table {table}")
        typer.echo(f"commits: {report.commits:,}, the last is number {number:,} of {where}")
    elif report.is_complete or options.is_following:
        typer.echo(f"nothing new: everything is archived already, up to commit {number:,} of {where}")
    if report.delays_s:
        typical = statistics.median(report.delays_s)
        typer.echo(f"committed {typical:.1f} s after the capture (median), {max(report.delays_s):.1f} s at most")
    source = report.account.source
    if (source.taken or source.damages) and not source.used and not source.repeated:
        for reason in quarantine_reasons(archive, report):
            typer.echo(reason, err=True)
        typer.echo("nothing could be read or converted; the table quarantine has the reasons", err=True)
        raise typer.Exit(1)
    if not report.is_complete and not options.is_following:
        typer.echo("interrupted; run the same command to continue", err=True)
        raise typer.Exit(INTERRUPTED)
