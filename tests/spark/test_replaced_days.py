"""A second source of a day: refused, or replacing the first in one commit, derived tables included."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from feed_slices_kit import mold_day, pcap_of
from penstock.base.errors import ArchiveError, ConfigurationError
from penstock.spark.feedslices import Conversion
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.derive import BestBidOffer, Day, Derivation, TimeBars
from penstock.spark.pipeline.runner import RunReport, run
from penstock.spark.pipeline.sources.capture import FeedSource, JournalSource
from spark.pipeline_kit import DAY, Silent, capture_of, converted, two_sessions, write_feed, write_journal
from unit.itch_messages import directory, trade

DERIVATIONS: tuple[Derivation, ...] = (TimeBars(), BestBidOffer(), Day())
NEXT_DAY = DAY.replace(day=DAY.day + 1)


def feed(path: Path, day: str = DAY.isoformat(), *, is_replacing: bool = False, stream: int = 0) -> FeedSource:
    return FeedSource(path, Conversion("itch", stream, day), cache=path.parent / "cache", is_replacing=is_replacing)


def archived(
    spark: Any,
    path: Path,
    *sources: Any,
    derivations: tuple[Derivation, ...] = DERIVATIONS,
    is_closing: bool = False,
) -> RunReport:
    with Archive.writing(path) as archive:
        report = run(spark, archive, sources, derivations, Silent(), cores=2, is_closing=is_closing)
        assert archive.catalogue.account.is_balanced
        rows = sum(info.rows for info in archive.tables() if info.name in archive.catalogue.account.rows)
        assert rows == sum(archive.catalogue.account.rows.values())
    assert report.is_complete
    return report


def rows_of(path: Path) -> dict[str, list[str]]:
    """Rows by table; without the file's place in `quarantine`."""
    archive = Archive.open(path)
    return {
        info.name: sorted(map(repr, pq.read_table(archive.paths(info.name)).to_pylist())) for info in archive.tables()
    }


@pytest.mark.spec("DAY-6", "PIPE-6")
def test_a_corrected_file_replaces_the_first_in_one_commit(spark: Any, tmp_path: Path) -> None:
    first, second, other = tmp_path / "day.itch", tmp_path / "corrected.itch", tmp_path / "next.itch"
    write_feed(first, 1_500, symbols=5)
    write_feed(other, 500, symbols=5, seed=9)
    corrected = bytearray(first.read_bytes())
    second.write_bytes(corrected[: len(corrected) * 2 // 3])
    path = tmp_path / "archive"
    archived(spark, path, feed(first))
    archived(spark, path, feed(other, NEXT_DAY.isoformat()))
    before = rows_of(path)
    reader = Archive.open(path)
    with pytest.raises(ConfigurationError, match=r"2024-01-02, venue XNAS, and so has .*day\.itch") as caught:
        archived(spark, path, feed(second))
    assert "--replace" in caught.value.hint
    assert rows_of(path) == before

    report = archived(spark, path, feed(second, is_replacing=True))
    (replaced,) = report.replaced
    assert replaced.sources == [str(first)]
    archived(spark, tmp_path / "fresh", feed(second))
    archived(spark, tmp_path / "fresh", feed(other, NEXT_DAY.isoformat()))
    assert rows_of(path) == rows_of(tmp_path / "fresh"), "as if the first file had never existed"
    after = rows_of(path)
    assert {"trade", "bar_time", "bbo", "day", "quarantine"} <= replaced.rows.keys()
    for table in ("trade", "quote", "bbo", "bar_time"):
        old, new = replaced.rows[table]
        assert old - new == len(before[table]) - len(after[table])
        assert old != new
    assert sorted(map(repr, pq.read_table(reader.paths("trade")).to_pylist())) == before["trade"], "earlier readers"
    assert archived(spark, path, feed(second, is_replacing=True)).commits == 0
    archived(spark, path, feed(first, is_replacing=True))
    assert rows_of(path) == before, "and back"


@pytest.mark.spec("DAY-6", "PIPE-6")
def test_the_file_of_a_captured_day_replaces_what_was_captured(spark: Any, tmp_path: Path) -> None:
    messages = converted(900)
    records = capture_of(messages)
    half = len(records) // 2
    place = JournalPlace(str(tmp_path / "journal"))
    write_journal(Path(place.where), records[:half])
    official = tmp_path / "day.itch"
    write_feed(official, 1_200, symbols=5)
    path = tmp_path / "archive"
    archived(spark, path, JournalSource(place))
    with pytest.raises(ConfigurationError, match=r"and so has .*journal: the files have the same messages"):
        archived(spark, path, feed(official))
    report = archived(spark, path, feed(official, is_replacing=True))
    assert report.replaced[0].sources == [place.where]
    archived(spark, tmp_path / "fresh", feed(official, stream=2))
    found, expected = rows_of(path), rows_of(tmp_path / "fresh")
    assert {table: found[table] for table in expected} == expected
    write_journal(Path(place.where), records[half:], half + 1)
    late = archived(spark, path, JournalSource(place))
    assert late.account.skipped["replaced"] > 0, "the rest of the capture causes no commit"
    found = rows_of(path)
    assert {table: found[table] for table in expected} == expected


@pytest.mark.spec("DAY-6", "PIPE-6")
def test_a_capture_of_the_day_of_a_file_is_refused(spark: Any, tmp_path: Path) -> None:
    place = JournalPlace(str(tmp_path / "journal"))
    write_journal(Path(place.where), capture_of(converted(300)))
    official = tmp_path / "day.itch"
    write_feed(official, 1_200, symbols=5)
    path = tmp_path / "archive"
    with Archive.writing(path) as archive:
        run(spark, archive, [feed(official)], (), Silent(), cores=2)
        before = rows_of(path)
        with pytest.raises(ArchiveError, match="journal has messages of"):
            run(spark, archive, [JournalSource(place)], (), Silent(), cores=2)
        assert rows_of(path) == before


def ticks(path: Path, *, price: str = "190.25", days: int = 2, day: str = "", is_replacing: bool = False) -> FeedSource:
    """Trades of several days, from 2024-01-02 on, at a venue without a code."""
    lines = [
        f"trade,{TRADE_NS + 24 * HOUR_NS * each + number},AAPL,{price},{number},{number}"
        for each in range(days)
        for number in range(1, 4)
    ]
    path.write_text("\n".join(lines) + "\n")
    return FeedSource(path, Conversion("csv-ticks", 0, day), cache=path.parent / "cache", is_replacing=is_replacing)


HOUR_NS = 3_600 * 10**9
TRADE_NS = 1_704_204_000 * 10**9  # 2024-01-02 14:00 UTC


def prices(path: Path) -> list[tuple[str, str]]:
    """The (date, price) of all trades."""
    archive = Archive.open(path)
    return sorted(
        (file.date, str(price))
        for file in archive.files("trade")
        for price in pq.read_table(archive.path / file.path, partitioning=None)["price"].to_pylist()
    )


@pytest.mark.spec("DAY-6", "PIPE-6")
def test_a_corrected_file_without_a_date_is_refused_by_the_times_of_its_rows(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "archive"
    archived(spark, path, ticks(tmp_path / "ticks.csv"), derivations=())
    before = rows_of(path)
    with pytest.raises(ArchiveError, match=r"2024-01-02, no venue, and so has .*ticks\.csv") as caught:
        archived(spark, path, ticks(tmp_path / "corrected.csv", price="190.50"), derivations=())
    assert "--date with --replace" in caught.value.hint
    assert rows_of(path) == before
    undated = ticks(tmp_path / "corrected.csv", price="190.50", is_replacing=True)
    with pytest.raises(ConfigurationError, match="date of the file is not known"):
        archived(spark, path, undated, derivations=())
    two_days = ticks(tmp_path / "two.csv", price="190.50", day="2024-01-02", is_replacing=True)
    with pytest.raises(ArchiveError, match=r"2024-01-03, no venue, and so has .*ticks\.csv"):
        archived(spark, path, two_days, derivations=())
    assert rows_of(path) == before
    corrected = ticks(tmp_path / "one.csv", price="190.50", days=1, day="2024-01-02", is_replacing=True)
    report = archived(spark, path, corrected, derivations=())
    assert report.replaced[0].rows["trade"] == (3, 3)
    assert prices(path) == [("2024-01-02", "190.50000000")] * 3 + [("2024-01-03", "190.25000000")] * 3
    assert archived(spark, path, ticks(tmp_path / "ticks.csv"), derivations=()).commits == 0, "known by its content"


@pytest.mark.spec("DAY-6", "PIPE-6")
def test_a_day_of_a_capture_of_several_days_is_refused_or_replaced_alone(spark: Any, tmp_path: Path) -> None:
    def of_day(price: int) -> list[bytes]:
        return [directory(), *(trade(100, price, number) for number in range(1, 5))]

    frames = [
        ((MONDAY_S + days * 86_400) * 10**9 + index, 0, datagram)
        for days, name in enumerate(("MON", "TUE", "WED"))
        for index, datagram in enumerate(mold_day(of_day(1_600_000), name))
    ]
    capture, tuesday = tmp_path / "days.pcap", tmp_path / "tuesday.itch"
    capture.write_bytes(pcap_of(frames))
    tuesday.write_bytes(b"".join(len(each).to_bytes(2, "big") + each for each in of_day(1_700_000)))
    days = FeedSource(capture, Conversion("itch", 0), cache=tmp_path / "cache")
    path = tmp_path / "archive"
    archived(spark, path, days, derivations=())
    old = [(day, "160.00000000") for day in ("2024-01-08", "2024-01-09", "2024-01-10") for _ in range(4)]
    assert prices(path) == old
    with pytest.raises(ConfigurationError, match=r"messages of 2024-01-09, venue XNAS, and so has .*days\.pcap"):
        archived(spark, path, feed(tuesday, "2024-01-09"), derivations=())
    report = archived(spark, path, feed(tuesday, "2024-01-09", is_replacing=True), derivations=())
    assert report.replaced[0].sources == [str(capture)]
    assert report.replaced[0].rows["trade"] == (4, 4)
    assert prices(path) == [*old[:4], *[("2024-01-09", "170.00000000")] * 4, *old[8:]]
    assert archived(spark, path, days, derivations=()).commits == 0

    replacing = FeedSource(capture, Conversion("itch", 0), cache=tmp_path / "cache", is_replacing=True)
    with pytest.raises(ArchiveError, match=r"has 3 sessions, and rows of .* outside 2024-01-08 of XNAS"):
        archived(spark, tmp_path / "empty", replacing, derivations=())
    assert not list((tmp_path / "empty").rglob("*.parquet")), "no commit"
    archived(spark, tmp_path / "other", feed(tuesday, "2024-01-09"), derivations=())
    with pytest.raises(ArchiveError, match=r"2024-01-09, XNAS, and so has .*tuesday\.itch"):
        archived(spark, tmp_path / "other", days, derivations=())
    assert prices(tmp_path / "other") == [("2024-01-09", "170.00000000")] * 4


@pytest.mark.spec("DAY-4", "DAY-6", "PIPE-6")
def test_replacing_a_file_leaves_the_open_sessions_of_other_streams_open(spark: Any, tmp_path: Path) -> None:
    def boston(path: Path, *, is_replacing: bool = False) -> FeedSource:
        conversion = Conversion("itch", 0, DAY.isoformat(), venue="XBOS")
        return FeedSource(path, conversion, cache=tmp_path / "cache", is_replacing=is_replacing)

    derivations: tuple[Derivation, ...] = (BestBidOffer(), Day())
    records = capture_of(converted(600))
    half = len(records) // 2
    first, second = tmp_path / "first.itch", tmp_path / "second.itch"
    write_feed(first, 300, symbols=5)
    write_feed(second, 400, symbols=5, seed=9)
    for name in ("replaced", "fresh"):
        place = JournalPlace(str(tmp_path / f"{name}-journal"))
        write_journal(Path(place.where), records[:half])
        archived(spark, tmp_path / name, JournalSource(place), derivations=derivations)
        if name == "replaced":
            archived(spark, tmp_path / name, boston(first), derivations=derivations)
            archived(spark, tmp_path / name, boston(second, is_replacing=True), derivations=derivations)
        else:
            archived(spark, tmp_path / name, boston(second), derivations=derivations)
        catalogue = Archive.open(tmp_path / name).catalogue
        assert [entry.ended for entry in catalogue.sessions["1"]] == [0], "the capture continues"
        assert [bool(entry.ended) for entry in catalogue.sessions["2"]] == [True]
        assert {file.stream for file in Archive.open(tmp_path / name).files("day")} == {2}
        write_journal(Path(place.where), records[half:], half + 1)
        archived(spark, tmp_path / name, JournalSource(place), derivations=derivations, is_closing=True)
        assert len(Archive.open(tmp_path / name).catalogue.sessions["1"]) == 1
    found, expected = rows_of(tmp_path / "replaced"), rows_of(tmp_path / "fresh")
    for table in ("trade", "quote", "book_event", "day", "bbo"):
        assert found[table] == expected[table], table


@pytest.mark.spec("DAY-4", "DAY-6")
def test_replacing_a_day_does_not_split_the_open_session_of_the_next_day(spark: Any, tmp_path: Path) -> None:
    derivations: tuple[Derivation, ...] = (Day(),)
    place, path = JournalPlace(str(tmp_path / "journal")), tmp_path / "archive"
    records = capture_of(two_sessions(150))
    end = len(records) - 3
    write_journal(Path(place.where), records[:end])
    official = tmp_path / "day.itch"
    write_feed(official, 300, symbols=5)
    archived(spark, path, JournalSource(place), derivations=derivations)
    before = rows_of(path)
    with pytest.raises(ArchiveError, match="2024-01-02 of XNAS now: the open session of stream 1") as caught:
        archived(spark, path, feed(official, is_replacing=True), derivations=derivations)
    assert "--close" in caught.value.hint
    assert rows_of(path) == before
    assert [bool(entry.ended) for entry in Archive.open(path).catalogue.sessions["1"]] == [True, False]
    write_journal(Path(place.where), records[end:], end + 1)
    archived(spark, path, JournalSource(place), derivations=derivations, is_closing=True)
    assert archived(spark, path, feed(official, is_replacing=True), derivations=derivations).replaced
    assert len(Archive.open(path).catalogue.sessions["1"]) == 2


MONDAY_S = 1_704_718_800  # 2024-01-08 08:00 in New York
