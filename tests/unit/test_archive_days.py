"""Days of an archive that other sources have too, and the removal of files' rows."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from penstock.base.errors import ArchiveError
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.archive.commits import Account, FileEntry, SessionEntry, TradingDay
from penstock.spark.pipeline.archive.compaction import compact, small_files
from penstock.spark.pipeline.archive.days import (
    covered_days,
    other_sources,
    refuse_archived_rows,
    refuse_other_days,
    remove_day,
)
from penstock.spark.pipeline.archive.tables import TableRows
from penstock.spark.pipeline.archive.writer import PartitionedFiles

HOUR_NS = 3_600 * 10**9
MIDNIGHT_NS = 1_704_171_600 * 10**9  # 2024-01-02 00:00 in New York, 05:00 UTC
DAY = TradingDay("2024-01-02", "XNAS", MIDNIGHT_NS, MIDNIGHT_NS + 24 * HOUR_NS)
DDL = "venue STRING, event_time BIGINT, date DATE, stream INT"


def commit(
    archive: Archive, source: str, rows: list[tuple[str, int]], *, stream: int = 1, untimed: int = 0, **position: object
) -> None:
    """Rows of (venue, hour of the day in New York); the first `untimed` rows have no event time."""
    staging = archive.begin()
    files = PartitionedFiles(staging)
    times = np.array([MIDNIGHT_NS + hour * HOUR_NS for _, hour in rows], np.int64)
    event_times = np.where(np.arange(len(rows)) < untimed, 0, times)
    venues = pa.array([venue for venue, _ in rows])
    batch = pa.record_batch([venues, pa.array(event_times)], names=["venue", "event_time"])
    files.add(TableRows("trade", batch, times, np.full(len(rows), stream)))
    made = [FileEntry(**{**to_dict(file), "source": source}) for file in files.finish()]
    account = Account(taken=len(rows), rows={"trade": len(rows)})
    sources = {source: {**position, "stream": stream}}
    archive.commit(staging, "append", files=made, account=account, schemas={"trade": DDL}, sources=sources)


def to_dict(file: FileEntry) -> dict[str, object]:
    return {name: getattr(file, name) for name in file.__struct_fields__}


def hours(archive: Archive) -> list[tuple[str, int]]:
    rows = pq.read_table(archive.paths("trade")).to_pylist()
    return sorted((row["venue"], (row["event_time"] - MIDNIGHT_NS) // HOUR_NS) for row in rows)


@pytest.mark.spec("DAY-2", "DAY-6")
def test_a_captured_day_is_the_venues_day_and_other_days_stay(tmp_path: Path) -> None:
    with Archive.writing(tmp_path / "archive") as archive:
        # the previous evening in New York has the same date in UTC; the evening of the day has the next date
        commit(archive, "journal:/captured", [("XNAS", -1), ("XNAS", 10), ("IEXG", 10), ("XNAS", 20), ("XNAS", 28)])
        commit(archive, "journal:/captured", [("XNAS", 11), ("XNAS", 12)])
        commit(archive, "journal:/other", [("XNAS", -2), ("XNAS", 30)], stream=2)
        found = other_sources(archive.catalogue, DAY, "feed:official")
        assert found.names == ["/captured"]
        assert not other_sources(archive.catalogue, DAY, "feed:official", stream=7), (
            "a separate stream exists beside it"
        )
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
            with pytest.raises(ArchiveError, match=r"2024-01-02, XNAS.*day\.itch"):
                refuse_archived_rows(archive, files, {"journal:/captured": {}})
        else:
            refuse_archived_rows(archive, files, {"journal:/captured": {}})


@pytest.mark.spec("DAY-6")
@pytest.mark.parametrize(("first", "second"), [("feed:official", "journal:/captured"), ("journal:/captured", "feed:b")])
@pytest.mark.parametrize(
    ("hour", "is_separate", "is_refused"), [(10, False, True), (10, True, False), (40, False, False)]
)
def test_rows_of_a_table_without_a_venue_are_compared(
    tmp_path: Path, first: str, second: str, hour: int, is_separate: bool, is_refused: bool
) -> None:
    with Archive.writing(tmp_path / "archive") as archive:
        commit(archive, first, [("", 9), ("", 16)], **position("first", is_separate=is_separate))
        files = [replace(file, venues=[]) for file in entries_of(tmp_path, second, [("", hour)])]
        for path, file in archive.catalogue.files["trade"].items():
            archive.catalogue.files["trade"][path] = replace(file, venues=[])
        positions = {second: position("second", stream=9, is_separate=is_separate)}
        if is_refused:
            with pytest.raises(ArchiveError, match=r"2024-01-02 in the table 'trade'.*both are copies") as caught:
                refuse_archived_rows(archive, files, positions)
            assert "--stream" in caught.value.hint
        else:
            refuse_archived_rows(archive, files, positions)


@pytest.mark.spec("DAY-6")
@pytest.mark.parametrize(("hour", "is_refused"), [(34, True), (10, False)])
def test_captured_rows_of_other_days_of_a_file_that_replaced_one_day_are_refused(
    tmp_path: Path, hour: int, is_refused: bool
) -> None:
    covering = {"is_separate": False, "covers": list(DAY)}
    with Archive.writing(tmp_path / "archive") as archive:
        rows = [("XNAS", 9), ("XNAS", 16), ("XNAS", 33), ("XNAS", 40)]
        commit(archive, "feed:week", rows, path="week.csv", **covering)
        files = entries_of(tmp_path, "journal:/captured", [("XNAS", hour)])
        if is_refused:
            with pytest.raises(ArchiveError, match=r"2024-01-03, XNAS.*week\.csv"):
                refuse_archived_rows(archive, files, {"journal:/captured": {}})
        else:
            refuse_archived_rows(archive, files, {"journal:/captured": {}})


@pytest.mark.spec("DAY-6")
def test_a_file_of_several_sessions_and_days_replaces_no_day(tmp_path: Path) -> None:
    files = entries_of(tmp_path, "feed:week", [("XNAS", 9), ("XNAS", 33)])
    refuse_other_days(Path("week.pcap"), DAY, files, 1)
    refuse_other_days(Path("week.pcap"), DAY, files[:1], 2)
    with pytest.raises(
        ArchiveError, match=r"2 sessions, and rows of 2024-01-03 .* outside 2024-01-02 of XNAS"
    ) as caught:
        refuse_other_days(Path("the week.pcap.gz"), DAY, files, 2)
    assert caught.value.where == "the week.pcap.gz"
    split = 'TZ=UTC editcap -A "2024-01-02 05:00:00" -B "2024-01-03 05:00:00"'
    assert f"{split} 'the week.pcap.gz' 'the week-2024-01-02.pcap'" in caught.value.hint
    assert "penstock pipeline run 'the week-2024-01-02.pcap' --date 2024-01-02 --replace" in caught.value.hint
    with pytest.raises(ArchiveError) as caught:
        refuse_other_days(Path("week.itch"), DAY, files, 2)
    assert "a file of that day" in caught.value.hint


@pytest.mark.spec("DAY-6")
@pytest.mark.parametrize("is_compacted", [False, True])
def test_rows_without_an_event_time_stay_when_their_day_is_replaced(tmp_path: Path, is_compacted: bool) -> None:
    with Archive.writing(tmp_path / "archive") as archive:
        commit(archive, "journal:/captured", [("XNAS", 10), ("XNAS", 11), ("XNAS", 12)], untimed=1)
        commit(archive, "journal:/captured", [("XNAS", 13)])
        if is_compacted:
            compact(archive, small_files(archive))
        assert [file.has_untimed for file in archive.files("trade")] == ([True] if is_compacted else [True, False])
        staging = archive.begin()
        removed = remove_day(archive, staging, other_sources(archive.catalogue, DAY, "feed:official"), DAY)
        assert removed.rows == {"trade": 3}
        (rest,) = removed.files
        assert pq.read_table(staging.path / rest.path, partitioning=None)["event_time"].to_pylist() == [0]
        archive.abandon(staging)


TUESDAY = TradingDay("2024-01-03", "XNAS", DAY.end_ns, DAY.end_ns + 24 * HOUR_NS)


def position(path: str, day: str = "", *, stream: int = 1, is_separate: bool = False) -> dict[str, object]:
    return {"path": path, "date": day, "venue": "XNAS", "stream": stream, "is_separate": is_separate}


def entries_of(tmp_path: Path, source: str, rows: list[tuple[str, int]]) -> list[FileEntry]:
    """Files of rows to be archived."""
    with Archive.writing(tmp_path / "new") as archive:
        commit(archive, source, rows, stream=9)
        return archive.files("trade")


@pytest.mark.spec("DAY-6")
def test_a_day_of_a_capture_of_several_days_is_found_and_removed_alone(tmp_path: Path) -> None:
    with Archive.writing(tmp_path / "archive") as archive:
        rows = [("XNAS", 10), ("XNAS", 15), ("XNAS", 34), ("XNAS", 39), ("IEXG", 34)]
        commit(archive, "feed:days", rows, **position("days.pcap", DAY.date))
        archive.catalogue.sessions["1"] = [
            SessionEntry(place=1, tag=1, begun=1, first_ns=MIDNIGHT_NS, last_ns=MIDNIGHT_NS),
            SessionEntry(place=9, tag=2, begun=1, first_ns=DAY.end_ns, last_ns=DAY.end_ns),
        ]
        for day, kept in ((DAY, [34, 34, 39]), (TUESDAY, [10, 15, 34])):
            found = other_sources(archive.catalogue, day, "feed:official")
            assert (found.feeds, found.names, found.streams) == ({}, ["days.pcap"], {1})
            staging = archive.begin()
            removed = remove_day(archive, staging, found, day)
            assert removed.rows == {"trade": 2}
            left = {file.path for file in archive.files("trade")} - set(removed.paths)
            tables = [pq.read_table(staging.path / file.path) for file in removed.files]
            tables += [pq.read_table(path) for path in archive.paths("trade") if path.split("_files/")[-1] in left]
            times = [time for table in tables for time in table["event_time"].to_pylist()]
            assert sorted((time - MIDNIGHT_NS) // HOUR_NS for time in times) == kept
            archive.abandon(staging)
        assert not other_sources(archive.catalogue, TUESDAY._replace(date="2024-01-04", begin_ns=DAY.end_ns * 2), "")


@pytest.mark.spec("DAY-6")
def test_all_rows_of_a_file_of_one_session_have_its_date_whatever_their_times(tmp_path: Path) -> None:
    with Archive.writing(tmp_path / "archive") as archive:
        commit(archive, "feed:day", [("XNAS", 10), ("XNAS", 25)], **position("day.itch", DAY.date))
        found = other_sources(archive.catalogue, DAY, "feed:official")
        assert (list(found.feeds), found.mixed) == (["feed:day"], [])
        removed = remove_day(archive, archive.begin(), found, DAY)
        assert removed.rows == {"trade": 2}


@pytest.mark.spec("DAY-6")
@pytest.mark.parametrize(
    ("rows", "is_separate", "is_refused"),
    [
        ([("XNAS", 10)], False, True),
        ([("XNAS", 34), ("XNAS", 14)], False, True),
        ([("XNAS", 10)], True, False),
        ([("IEXG", 10)], False, False),
        ([("XNAS", 34)], False, False),
        ([("", 12)], False, False),
    ],
)
def test_rows_of_a_file_without_a_date_are_compared(
    tmp_path: Path, rows: list[tuple[str, int]], is_separate: bool, is_refused: bool
) -> None:
    with Archive.writing(tmp_path / "archive") as archive:
        commit(archive, "feed:first", [("XNAS", 9), ("XNAS", 16)], **position("first.csv"))
        files = entries_of(tmp_path, "feed:second", rows)
        positions = {"feed:second": position("second.csv", stream=9, is_separate=is_separate)}
        if is_refused:
            with pytest.raises(ArchiveError, match=r"2024-01-0[23], XNAS, and so has first\.csv") as caught:
                refuse_archived_rows(archive, files, positions)
            assert caught.value.where == "second.csv"
            assert "--replace" in caught.value.hint
            assert "--stream" in caught.value.hint
            refuse_archived_rows(archive, files, positions, removed=[file.path for file in archive.files("trade")])
        else:
            refuse_archived_rows(archive, files, positions)


@pytest.mark.spec("DAY-6")
def test_the_next_commit_of_a_source_and_rows_without_a_time_are_no_second_source(tmp_path: Path) -> None:
    with Archive.writing(tmp_path / "archive") as archive:
        hour_of_0 = -(MIDNIGHT_NS // HOUR_NS)
        commit(archive, "feed:first", [("XNAS", 9), ("XNAS", 16), ("XNAS", hour_of_0)], **position("first.csv"))
        bounds = {(file.date, file.time_min) for file in archive.files("trade")}
        assert bounds == {("1970-01-01", None), ("2024-01-02", MIDNIGHT_NS + 9 * HOUR_NS)}
        files = entries_of(tmp_path, "feed:first", [("XNAS", 10)])
        refuse_archived_rows(archive, files, {})
        files = entries_of(tmp_path, "feed:second", [("XNAS", hour_of_0), ("XNAS", 20)])
        refuse_archived_rows(archive, files, {"feed:second": position("second.csv")})


@pytest.mark.spec("DAY-2", "DAY-6")
def test_a_replaced_file_leaves_no_sessions_behind(tmp_path: Path) -> None:
    with Archive.writing(tmp_path / "archive") as archive:
        commit(archive, "feed:first", [("XNAS", 9)], **position("first.itch", DAY.date))
        entry = SessionEntry(place=1, tag=1, begun=1, first_ns=MIDNIGHT_NS, last_ns=MIDNIGHT_NS)
        archive.commit(archive.begin(), "append", sessions={"1": [entry], "2": [entry]}, watermarks={"1": 5, "2": 6})
        archive.commit(
            archive.begin(), "replace", forgotten=["feed:first"], sources={"feed:second": position("second.itch")}
        )
        assert list(archive.catalogue.sessions) == ["2"]
        assert archive.catalogue.watermarks == {"2": 6}
    assert list(Archive.open(tmp_path / "archive").catalogue.sessions) == ["2"]
