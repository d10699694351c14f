"""Days of an archive: what another source has of them, and files without their rows."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.base.errors import ArchiveError
from penstock.spark.pipeline.archive import Archive
from penstock.spark.pipeline.commits import Account, FileEntry, TradingDay
from penstock.spark.pipeline.compaction import compact, small_files
from penstock.spark.pipeline.days import covered_days, other_sources, refuse_archived_days, remove_day
from penstock.spark.pipeline.tables import TableRows
from penstock.spark.pipeline.writer import PartitionedFiles

HOUR_NS = 3_600 * 10**9
MIDNIGHT_NS = 1_704_171_600 * 10**9  # 2024-01-02 00:00 in New York, 05:00 UTC
DAY = TradingDay("2024-01-02", "XNAS", MIDNIGHT_NS, MIDNIGHT_NS + 24 * HOUR_NS)
DDL = "venue STRING, event_time BIGINT, date DATE, stream INT"


def commit(archive: Archive, source: str, rows: list[tuple[str, int]], *, stream: int = 1, **position: object) -> None:
    """Rows of (venue, hour of the day in New York)."""
    staging = archive.begin()
    files = PartitionedFiles(staging)
    times = np.array([MIDNIGHT_NS + hour * HOUR_NS for _, hour in rows], np.int64)
    batch = pa.record_batch([pa.array([venue for venue, _ in rows]), pa.array(times)], names=["venue", "event_time"])
    files.add(TableRows("trade", batch, times, np.full(len(rows), stream)))
    made = [FileEntry(**{**to_dict(file), "source": source}) for file in files.finish()]
    account = Account(taken=len(rows), rows={"trade": len(rows)})
    archive.commit(staging, "append", files=made, account=account, schemas={"trade": DDL}, sources={source: position})


def to_dict(file: FileEntry) -> dict[str, object]:
    return {name: getattr(file, name) for name in file.__struct_fields__}


def hours(archive: Archive) -> list[tuple[str, int]]:
    rows = pq.read_table(archive.paths("trade")).to_pylist()
    return sorted((row["venue"], (row["event_time"] - MIDNIGHT_NS) // HOUR_NS) for row in rows)


@pytest.mark.spec("DAY-2", "DAY-6")
def test_a_captured_day_is_that_of_the_venue_and_the_rest_stays(tmp_path: Path) -> None:
    with Archive.writing(tmp_path / "archive") as archive:
        # the evening before in New York is the same date in UTC, and so is the evening of the day the next one
        commit(archive, "journal:/captured", [("XNAS", -1), ("XNAS", 10), ("IEXG", 10), ("XNAS", 20), ("XNAS", 28)])
        commit(archive, "journal:/captured", [("XNAS", 11), ("XNAS", 12)])
        commit(archive, "journal:/other", [("XNAS", -2), ("XNAS", 30)], stream=2)
        found = other_sources(archive.catalogue, DAY, "feed:official")
        assert found.names == ["/captured"]
        assert not other_sources(archive.catalogue, DAY, "feed:official", stream=7), "a stream of its own stands beside"
        assert not other_sources(archive.catalogue, DAY._replace(venue="XBOS"), "feed:official")
        staging = archive.begin()
        removed = remove_day(archive, staging, found, DAY)
        assert removed.rows == {"trade": 4}
        assert removed.dates == {"2024-01-02", "2024-01-03"}
        archive.commit(
            staging, "replace", files=removed.files, removed=removed.paths,
            account=Account(taken=-4, rows={"trade": -4}), sources={"feed:official": {"covers": list(DAY)}},
        )  # fmt: skip
        assert hours(archive) == [("IEXG", 10), ("XNAS", -2), ("XNAS", -1), ("XNAS", 28), ("XNAS", 30)]
        assert archive.catalogue.account.rows == {"trade": 5}
        assert covered_days(archive.catalogue) == [DAY]
    plain = pq.read_table(tmp_path / "archive" / "trade").column("event_time")
    assert len(plain) == 5


@pytest.mark.spec("DAY-6")
def test_files_of_several_sources_are_not_merged(tmp_path: Path) -> None:
    with Archive.writing(tmp_path / "archive") as archive:
        for source in ("journal:/captured", "journal:/captured", "feed:official"):
            commit(archive, source, [("XNAS", 10), ("IEXG", 11)], path="day.itch")
        compact(archive, small_files(archive))
        files = archive.files("trade")
        assert sorted((file.source, file.rows) for file in files) == [("feed:official", 2), ("journal:/captured", 4)]
        assert {tuple(file.venues) for file in files} == {("IEXG", "XNAS")}


@pytest.mark.spec("DAY-6")
@pytest.mark.parametrize(
    ("hour", "position", "is_refused"),
    [
        (10, {"is_separate": False}, True),
        (10, {"is_separate": True}, False),
        (10, {"is_separate": False, "covers": list(DAY)}, False),
        (40, {"is_separate": False}, False),
    ],
)
def test_captured_rows_of_a_files_day_are_refused(
    tmp_path: Path, hour: int, position: dict[str, object], is_refused: bool
) -> None:
    with Archive.writing(tmp_path / "archive") as archive:
        commit(archive, "feed:official", [("XNAS", 9), ("XNAS", 16)], path="day.itch", **position)
        with Archive.writing(tmp_path / "other") as other:
            commit(other, "journal:/captured", [("XNAS", hour)])
            files = other.files("trade")
        if is_refused:
            with pytest.raises(ArchiveError, match=r"2024-01-02 of XNAS.*day\.itch"):
                refuse_archived_days(archive, files)
        else:
            refuse_archived_days(archive, files)
