"""`penstock pipeline run`: sources and options into one run, its progress, and its balance."""

import statistics
from pathlib import Path
from typing import TypeVar

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from penstock.base.calendar import locate
from penstock.base.errors import ConfigurationError
from penstock.cli.common.interrupt import interruptible
from penstock.cli.common.table_options import chosen_table
from penstock.cli.common.tabular import tabular
from penstock.model import MessageModel
from penstock.spark.feedslices import Conversion, FeedOptions, open_as_told
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.archive.commits import Account
from penstock.spark.pipeline.derive import DERIVATIONS
from penstock.spark.pipeline.models import register_models
from penstock.spark.pipeline.runner import RunReport, balance, cores_of, follow, run
from penstock.spark.pipeline.sources.capture import STEP_RECORDS, FeedSource, JournalSource, Source, place_of, same_day
from penstock.spark.session import session

INTERRUPTED = 130
"""Exit status of a run that was ended before it was complete."""


T = TypeVar("T", str, int)


class RunOptions(msgspec.Struct, frozen=True):
    sources: list[str]
    archive: Path
    tables: list[str]
    """One for all files, or one per file in their order; likewise the venues, prefixes and calendars."""
    venues: list[str]
    prefixes: list[str]
    quantity_decimals: int | None
    """For all files; None: each table's value."""
    modules: tuple[str, ...]
    trading_dates: list[str]
    """None, or one per file in their order; likewise the streams."""
    streams: list[int]
    is_following: bool
    is_skipping: bool
    is_deriving: bool
    master: str | None
    secret: str
    ca: str
    admin: str = ""
    credentials: str = ""
    models: list[MessageModel] = []
    calendars: list[str] = []
    is_replacing: bool = False
    is_closing: bool = False
    """Every session ends with this run."""


def run_pipeline(options: RunOptions) -> None:
    if options.is_following and options.is_closing:
        raise ConfigurationError(
            "a follower does not know when a session ends before its source says so",
            where="--close",
            hint="leave out --close, or --follow",
        )
    sources = find_sources(options, cores=1)  # what is wrong with them is said before Spark is started
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
                    report = follow(spark, archive, sources, derivations, shown, is_ended=lambda: interrupt.is_wanted)
                else:
                    report = run(
                        spark, archive, sources, derivations, shown, cores=cores,
                        is_ended=lambda: interrupt.is_wanted, is_closing=options.is_closing,
                    )  # fmt: skip
        finally:
            spark.stop()
        _say(options, archive, report)


def find_sources(options: RunOptions, cores: int) -> list[Source]:
    """The sources to read, journals first; raises for the first unreadable source."""
    journals: list[Source] = []
    files = []
    for text in options.sources:
        place = place_of(text, options.secret, options.ca, options.admin, options.credentials)
        if place is None:
            files.append(Path(text))
            continue
        place.measure()
        records_max = STEP_RECORDS if options.is_following else None
        journals.append(JournalSource(place, cores, records_max, is_skipping=options.is_skipping))
    if options.is_replacing and (journals or not files):
        raise ConfigurationError(
            "--replace takes recorded files, not journals", where="--replace", hint="archive the journal without it"
        )
    return [*journals, *find_feeds(options, files, cores)]


def find_feeds(options: RunOptions, files: list[Path], cores: int) -> list[FeedSource]:
    """Each file with its own table, date, venue and stream."""
    if files and options.is_following:
        raise ConfigurationError("a file ends, and cannot be followed", where=str(files[0]), hint="leave out --follow")
    if files and not options.tables:
        raise ConfigurationError(
            "is a recorded feed and needs a converter table", where=str(files[0]), hint="--table itch"
        )
    tables, venues, prefixes, calendars = (
        shared(given, len(files), name)
        for given, name in (
            (options.tables, "table"),
            (options.venues, "venue"),
            (options.prefixes, "prefix"),
            (options.calendars, "calendar"),
        )
    )
    dates = one_each(options.trading_dates, len(files), "date", "")
    streams = one_each(options.streams, len(files), "stream", 0)
    reading = FeedOptions(modules=options.modules)
    found: list[FeedSource] = []
    each = zip(files, tables, venues, prefixes, calendars, dates, streams, strict=True)
    for path, table, venue, prefix, calendar, day, stream in each:
        choice = chosen_table(table, venue, prefix, options.quantity_decimals, locate(calendar, Path()))
        conversion = Conversion(
            table,
            stream,
            day,
            venue=venue,
            prefix=prefix,
            quantity_decimals=choice.quantity_decimals,
            calendar=choice.calendar,
            modules=options.modules,
        ).dated(path)
        open_as_told(path, reading).close()
        found.append(FeedSource(path, conversion, reading, cores=cores, is_replacing=options.is_replacing))
    _refuse_same_day(found)
    return found


def shared(given: list[str], count: int, name: str) -> list[str]:
    """One value per file, from one value for all files or one per file."""
    if len(given) not in (0, 1, count):
        raise ConfigurationError(
            f"--{name} is given {len(given)} times for {count} files",
            where=f"--{name}",
            hint=f"give one --{name} for all files, or one for each, in their order",
        )
    return given if len(given) == count else (given or [""]) * count


def one_each(given: list[T], count: int, name: str, default: T) -> list[T]:
    """One value per file; a single value does not apply to several files."""
    if len(given) not in (0, count):
        raise ConfigurationError(
            f"--{name} is given {len(given)} {'time' if len(given) == 1 else 'times'} for {count} files",
            where=f"--{name}",
            hint=f"give one --{name} for each file, in their order, or none",
        )
    return given or [default] * count


def _refuse_same_day(feeds: list[FeedSource]) -> None:
    """Refuse files of one day and venue without separate streams. A copy has the same size, and is skipped later."""
    known: dict[tuple[str, str], FeedSource] = {}
    for feed in feeds:
        if feed.stream or not feed.day:
            continue
        other = known.setdefault((feed.day, feed.venue), feed)
        if other is not feed and other.path.stat().st_size != feed.path.stat().st_size:
            raise same_day(feed, other.path)


class Shown:
    """Progress on a terminal: a bar of slices, and what is being derived."""

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
        typer.echo(f"nothing new: all of it is archived already, up to commit {number:,} of {where}")
    if report.delays_s:
        typical = statistics.median(report.delays_s)
        typer.echo(f"committed {typical:.1f} s after the capture (median), {max(report.delays_s):.1f} s at most")
    source = report.account.source
    if (source.taken or source.damages) and not source.used and not source.repeated:
        typer.echo("nothing could be read or converted; the table quarantine says why", err=True)
        raise typer.Exit(1)
    if not report.is_complete and not options.is_following:
        typer.echo("ended early; the same command goes on", err=True)
        raise typer.Exit(INTERRUPTED)
