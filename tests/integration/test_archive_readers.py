"""Readers of an archive that is appended to, compacted and cleaned meanwhile: each finds the rows of one commit."""

import multiprocessing
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from integration.archive_writer import fill_and_compact
from penstock.spark.pipeline.archive.archive import Archive
from unit.archive_kit import ROWS, step
from waiting import PATIENCE_SECONDS

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["integration.archive_writer"])

STEPS = 60


@pytest.mark.spec("PIPE-6", "TOOL-1")
def test_readers_never_miss_a_file_while_the_archive_is_compacted(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    readers = [
        lambda paths: pq.read_table(paths)["seq"].to_pylist(),
        lambda paths: list(pandas.read_parquet(paths)["seq"]),
        lambda paths: polars.read_parquet(paths, glob=False)["seq"].to_list(),
        lambda paths: [row[0] for row in duckdb.sql(f"select seq from read_parquet({paths})").fetchall()],
    ]
    path = tmp_path / "archive [1]{a}"
    with Archive.writing(path) as archive:
        step(archive)
    writer = PROCESSES.Process(target=fill_and_compact, args=(str(path), STEPS))
    writer.start()
    reads, seen = 0, set()
    try:
        while writer.is_alive():
            archive = Archive.open(path)
            paths = archive.paths("trade")
            for read in readers:
                numbers = sorted(read(paths))
                assert numbers == list(range(1, archive.catalogue.sources["numbers"]["last"] + 1))
                reads += 1
            seen.add(archive.catalogue.number)
    finally:
        writer.join(PATIENCE_SECONDS)
    assert writer.exitcode == 0
    assert Archive.open(path).catalogue.sources["numbers"]["last"] == (STEPS + 1) * ROWS
    sys.stdout.write(f"{reads} reads of {len(seen)} commits\n")
    assert len(seen) > 2, "the readers ran while the writer wrote"
