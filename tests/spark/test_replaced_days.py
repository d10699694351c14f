"""A second source of a day: refused, or put in the place of the first in one commit, derived tables included."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.base.errors import ArchiveError, ConfigurationError
from penstock.spark.feedslices import Conversion
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive import Archive
from penstock.spark.pipeline.capture import FeedSource, JournalSource
from penstock.spark.pipeline.derive import BestBidOffer, Day, Derivation, TimeBars
from penstock.spark.pipeline.runner import RunReport, run
from spark.pipeline_kit import DAY, Silent, capture_of, converted, write_feed, write_journal

DERIVATIONS: tuple[Derivation, ...] = (TimeBars(), BestBidOffer(), Day())
NEXT_DAY = DAY.replace(day=DAY.day + 1)


def feed(path: Path, day: str = DAY.isoformat(), *, is_replacing: bool = False, stream: int = 0) -> FeedSource:
    return FeedSource(path, Conversion("itch", stream, day), cache=path.parent / "cache", is_replacing=is_replacing)


def archived(spark: Any, path: Path, *sources: Any) -> RunReport:
    with Archive.writing(path) as archive:
        report = run(spark, archive, sources, DERIVATIONS, Silent(), cores=2)
        assert archive.catalogue.account.is_balanced
        rows = sum(info.rows for info in archive.tables() if info.name in archive.catalogue.account.rows)
        assert rows == sum(archive.catalogue.account.rows.values())
    assert report.is_complete
    return report


def rows_of(path: Path) -> dict[str, list[str]]:
    """By table; without the place of a file in `quarantine`."""
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
    with pytest.raises(ConfigurationError, match=r"is of 2024-01-02 and venue XNAS, as .*day\.itch is") as caught:
        archived(spark, path, feed(second))
    assert "--replace" in caught.value.hint
    assert rows_of(path) == before

    report = archived(spark, path, feed(second, is_replacing=True))
    (replaced,) = report.replaced
    assert replaced.sources == [str(first)]
    archived(spark, tmp_path / "fresh", feed(second))
    archived(spark, tmp_path / "fresh", feed(other, NEXT_DAY.isoformat()))
    assert rows_of(path) == rows_of(tmp_path / "fresh"), "as if the first file had never been"
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
    with pytest.raises(ConfigurationError, match=r"as .*journal is: they have the same messages"):
        archived(spark, path, feed(official))
    report = archived(spark, path, feed(official, is_replacing=True))
    assert report.replaced[0].sources == [place.where]
    archived(spark, tmp_path / "fresh", feed(official, stream=2))
    found, expected = rows_of(path), rows_of(tmp_path / "fresh")
    assert {table: found[table] for table in expected} == expected
    write_journal(Path(place.where), records[half:], half + 1)
    late = archived(spark, path, JournalSource(place))
    assert late.account.skipped["replaced"] > 0, "the rest of the capture is not news"
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
