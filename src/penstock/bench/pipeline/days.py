"""Five trading days through one pair of adapters and one pipeline, compared with five single days (DAY-4).

The adapters are simulated: their cores are the production ones. The exchange reassigns locate codes on each day, and
the active adapter dies at each midnight. The packets of both adapters are one capture, archived in one run. Each single
day is a file of the exchange's messages, converted and archived in a run of its own, into an archive of its own.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow.parquet as pq

from penstock.bench.harness import Result, result
from penstock.bench.pipeline.follow import CORES, Silent
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.journal import JournalConfig, JournalWriter
from penstock.sim.feed.days import CaptureNode, pair_plant, run_days
from penstock.spark.feedslices import Conversion
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.archive.placing import kept
from penstock.spark.pipeline.derive import DERIVATIONS, Derivation
from penstock.spark.pipeline.runner import run
from penstock.spark.pipeline.sources.capture import FeedSource, JournalSource

DAYS = 5
STREAM = 1
MESSAGES_PER_S = 1_600
"""Rate of the exchange in virtual time: about 800 messages a day."""

ABOUT_DELIVERY = frozenset({"agreement", "delivery", "latency", "loss", "session"})
"""Tables about the delivery of a capture, which a file does not have."""

OF_DELIVERY = frozenset(
    {"captured", "first_seq", "last_seq", "origin", "packet", "publisher", "quote_seq", "quote_stream",
     "receive_time", "seq", "stream", "term"}
)  # fmt: skip
"""Columns about the delivery of a message. `source_seq` and `part` identify the message in both archives."""

OF_THE_DAY_BEFORE = frozenset({"previous_close"})
"""Columns that a single day cannot have."""

SMALL_WORK = {"spark.sql.shuffle.partitions": "2", "spark.sql.codegen.wholeStage": "false"}
"""Settings for some thousand rows: compiling a query would take longer than interpreting it."""


class RecordedDays(msgspec.Struct, frozen=True):
    """Five days of an exchange."""

    journal: Path
    """The packets of both adapters."""
    files: list[Path]
    """The exchange's messages of each day; the name of a file is its date."""


class Row(NamedTuple):
    """A row of a table, with its partition."""

    table: str
    date: str
    stream: int | None
    values: str


class Compared(msgspec.Struct, frozen=True):
    differing: int
    """Number of rows that only one side has."""
    rows: int
    """Rows of the five days."""
    tables: int


def five_days_equal(spark: Any, folder: Path) -> Iterator[Result]:
    """Rows of all tables, base and derived, that differ between five days in one run and five runs of a day."""
    recorded = record_days(folder / "days", seed=1)
    with small_work(spark):
        compared = compare_days(spark, recorded, folder / "days", DERIVATIONS)
    yield result(
        "pipeline",
        "five_days_equal",
        compared.differing,
        "rows",
        against="the rows of five days in one run",
        against_value=compared.rows,
        conditions=f"local[{CORES}]; a capture of a simulated pair of adapters over {DAYS} trading days, "
        f"{DAYS - 1} failovers at midnight, locate codes reassigned every day, archived in one run; and "
        f"{DAYS} ITCH files of the same days, each in a separate run and archive; {compared.tables} tables, including "
        "derived ones; rows that only one side has, without the columns about the delivery of a message; the goal is 0",
    )


@contextmanager
def small_work(spark: Any) -> Iterator[None]:
    """Set up the session for small queries; restore its settings at the end."""
    before = {key: spark.conf.get(key) for key in SMALL_WORK}
    for key, value in SMALL_WORK.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


def record_days(folder: Path, seed: int, messages_per_s: int = MESSAGES_PER_S) -> RecordedDays:
    """Simulate five days of a pair of adapters; record its packets, and the exchange's messages of each day."""
    plant = pair_plant(seed, messages_per_s=messages_per_s)
    capture = CaptureNode(plant)
    capture.start()
    plant.start()
    run_days(plant, DAYS, failover_ms=0)
    plant.finish()
    folder.mkdir(parents=True)
    log = plant.exchange.logs[STREAM]
    journal = folder / "journal"
    began_ns = log.receive_ns(log.sessions[0])
    with JournalWriter.open(journal, JournalConfig(segment_bytes=1 << 20, preallocate_bytes=0)) as writer:
        for at_ns, packet in capture.packets:
            writer.append(packet, began_ns + at_ns)
    files = []
    for session in log.sessions:
        files.append(folder / f"{log.dates[session]}.itch")
        messages = log.said(session, 1, log.next_sequence + 1_000_000)
        files[-1].write_bytes(b"".join(len(each).to_bytes(2, "big") + each for each in messages))
    return RecordedDays(journal, files)


def compare_days(
    spark: Any,
    recorded: RecordedDays,
    folder: Path,
    derivations: Sequence[Derivation],
    *,
    is_one_archive: bool = False,
) -> Compared:
    """Archive the capture in one run and each file in a run and an archive of its own; count the rows that differ.

    `is_one_archive`: the files are archived in one run, as streams of one archive, which is faster than five runs.
    """
    with Archive.writing(folder / "five-days") as archive:
        source = JournalSource(JournalPlace(str(recorded.journal)), CORES)
        run(spark, archive, [source], derivations, Silent(), cores=CORES, is_closing=True)
    singles = []
    for files in [recorded.files] if is_one_archive else [[file] for file in recorded.files]:
        singles.append(folder / f"single-{files[0].stem}")
        archive_files(spark, singles[-1], [files], folder / "index", derivations)
    together, apart = rows_of([folder / "five-days"]), rows_of(singles)
    return Compared(
        differing=difference(together, apart),
        rows=together.total(),
        tables=len({row.table for row in together}),
    )


def rows_of(archives: Iterable[Path]) -> Counter[Row]:
    """The rows of all tables about messages, without streams and the columns that say how a message was delivered."""
    found: Counter[Row] = Counter()
    for path in archives:
        archive = Archive.open(path)
        tables = [info.name for info in archive.tables() if info.name not in ABOUT_DELIVERY]
        for row, count in table_rows(archive, tables, besides=OF_DELIVERY | OF_THE_DAY_BEFORE).items():
            found[row._replace(stream=None)] += count
    return found


def table_rows(archive: Archive, tables: Iterable[str], besides: frozenset[str] = frozenset()) -> Counter[Row]:
    """All rows of some tables, without the columns `besides`."""
    found: Counter[Row] = Counter()
    for table in tables:
        for file in archive.files(table):
            read = pq.read_table(kept(archive.path, file.path), partitioning=None)
            names = [name for name in read.schema.names if name not in besides]
            found.update(Row(table, file.date, file.stream, repr(row)) for row in read.select(names).to_pylist())
    return found


def write_day(path: Path, messages: int, seed: int) -> None:
    generator = ItchGenerator(GeneratorConfig(seed=seed, symbols=20, messages=messages))
    with path.open("wb") as file:
        while blocks := bytes(generator.blocks()):
            file.write(blocks)


def archive_files(
    spark: Any,
    path: Path,
    runs: Sequence[Sequence[Path]],
    cache: Path,
    derivations: Sequence[Derivation] = DERIVATIONS,
) -> None:
    """Archive each source in a separate run, which reopens the archive like a command; the name of a file is its
    date.
    """
    for files in runs:
        sources = [FeedSource(file, Conversion("itch", 0, file.stem), cores=CORES, cache=cache) for file in files]
        with Archive.writing(path) as archive:
            run(spark, archive, sources, derivations, Silent(), cores=CORES)


def differing_rows(one: Archive, other: Archive) -> int:
    """The number of rows that only one of two archives has, in all tables."""
    mine, theirs = (table_rows(each, [info.name for info in each.tables()]) for each in (one, other))
    return difference(mine, theirs)


def difference(one: Counter[Row], other: Counter[Row]) -> int:
    return ((one - other) + (other - one)).total()
