"""Whether the rows depend on how days are cut into runs: five days in one run, and in five."""

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from penstock.bench.harness import Result, result
from penstock.bench.pipeline_follow import CORES, Silent
from penstock.feed.play.generator import GeneratorConfig, ItchGenerator
from penstock.spark.feedslices import Conversion
from penstock.spark.pipeline.archive import Archive
from penstock.spark.pipeline.capture import FeedSource
from penstock.spark.pipeline.derive import DERIVATIONS
from penstock.spark.pipeline.runner import run

DAYS = 5
DAY_MESSAGES = 20_000
FIRST_DAY = date(2024, 1, 8)  # a Monday


def five_days_equal(spark: Any, folder: Path) -> Iterator[Result]:
    """Rows of all tables, base and derived, that differ between one run of five days and five runs."""
    files = []
    for number in range(DAYS):
        files.append(folder / f"{FIRST_DAY + timedelta(days=number)}.itch")
        write_day(files[-1], DAY_MESSAGES, seed=number + 1)
    archive_files(spark, folder / "one-run", [files], folder / "index")
    archive_files(spark, folder / "five-runs", [[file] for file in files], folder / "index")
    one, many = Archive.open(folder / "one-run"), Archive.open(folder / "five-runs")
    rows = sum(info.rows for info in one.tables())
    differing = differing_rows(spark, one, many)
    yield result(
        "pipeline",
        "five_days_equal",
        differing,
        "rows",
        against="the rows of the archive of one run",
        against_value=rows,
        conditions=f"local[{CORES}]; {DAYS} ITCH files of {DAY_MESSAGES:,} messages each, of {DAYS} trading days, into "
        f"{len(one.tables())} tables, derived ones included; rows that only one of both archives has; the goal is 0",
    )


def write_day(path: Path, messages: int, seed: int) -> None:
    generator = ItchGenerator(GeneratorConfig(seed=seed, symbols=20, messages=messages))
    with path.open("wb") as file:
        while blocks := bytes(generator.blocks()):
            file.write(blocks)


def archive_files(spark: Any, path: Path, runs: Sequence[Sequence[Path]], cache: Path) -> None:
    """Each run opens the archive anew, as a command does; the name of a file is its date."""
    for files in runs:
        sources = [FeedSource(file, Conversion("itch", 0, file.stem), cores=CORES, cache=cache) for file in files]
        with Archive.writing(path) as archive:
            run(spark, archive, sources, DERIVATIONS, Silent(), cores=CORES)


def differing_rows(spark: Any, one: Archive, other: Archive) -> int:
    """How many rows only one of two archives has, in all tables."""
    tables = {info.name for archive in (one, other) for info in archive.tables()}
    count = 0
    for table in sorted(tables):
        if not all(table in archive.catalogue.files for archive in (one, other)):
            count += sum(info.rows for archive in (one, other) for info in archive.tables() if info.name == table)
            continue
        mine, theirs = one.frame(spark, table), other.frame(spark, table)
        count += mine.exceptAll(theirs).count() + theirs.exceptAll(mine).count()
    return count
