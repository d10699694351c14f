"""The rows of an archive do not depend on how its sources were cut into runs and steps."""

import random
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.pipeline_days import archive_files, differing_rows, write_day
from penstock.spark.feedslices import Conversion
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive import Archive
from penstock.spark.pipeline.capture import FeedSource, JournalSource
from penstock.spark.pipeline.derive import DERIVATIONS, BestBidOffer, Books, Day, Derivation, TimeBars, TradeQuote
from penstock.spark.pipeline.derive.fractional import Fractional
from penstock.spark.pipeline.runner import follow, run
from spark.pipeline_kit import DAY, Silent, capture_of, two_sessions, write_feed, write_journal

FACTS = {"delivery", "agreement", "latency", "loss", "quarantine"}
"""Tables about slices: how many rows they have follows from the slices."""


def dates_of(spark: Any, path: Path, table: str) -> set[str]:
    """The dates that a table has rows of."""
    archive = Archive.open(path)
    if table not in archive.catalogue.files:
        return set()
    return {str(row.date) for row in archive.frame(spark, table).select("date").distinct().collect()}


SOME = (Books(), TimeBars(), TradeQuote(), BestBidOffer(), Day())
"""One for every way in which something is carried or closed; all of them take minutes."""


@pytest.mark.spec("DAY-4", "DAY-5", "PIPE-5")
@pytest.mark.parametrize(
    ("seed", "derivations"),
    [(1, SOME), *(pytest.param(seed, DERIVATIONS, marks=pytest.mark.soak) for seed in range(2, 6))],
)
def test_a_capture_cut_at_random_places_gives_the_same_tables(
    spark: Any, tmp_path: Path, seed: int, derivations: tuple[Derivation, ...]
) -> None:
    chance = random.Random(seed)
    records = capture_of(two_sessions(300))
    place = JournalPlace(str(tmp_path / "journal"))
    half = len(records) // 2  # about where the second session begins
    cuts = [chance.randrange(1, half), chance.randrange(half + half // 2, len(records))]
    with Archive.writing(tmp_path / "cut") as archive:
        for first, last in zip([0, *cuts[:-1]], cuts, strict=True):
            write_journal(Path(place.where), records[first:last], first + 1)
            if chance.random() < 0.5:
                run(spark, archive, [JournalSource(place)], derivations, Silent(), cores=2)
            else:
                step = JournalSource(place, records_max=100_000)
                follow(spark, archive, [step], derivations, Silent(), is_ended=iter([False, True]).__next__)
        assert dates_of(spark, tmp_path / "cut", "day") == {"2024-01-02"}, "the first session has ended, no other"
        assert "2024-01-02" in dates_of(spark, tmp_path / "cut", "bbo")
        write_journal(Path(place.where), records[cuts[-1] :], cuts[-1] + 1)
        run(spark, archive, [JournalSource(place)], derivations, Silent(), cores=2, is_closing=True)
    assert dates_of(spark, tmp_path / "cut", "day") == {"2024-01-02", "2024-01-03"}
    with Archive.writing(tmp_path / "whole") as archive:
        run(spark, archive, [JournalSource(place)], derivations, Silent(), cores=2, is_closing=True)
    whole, cut = Archive.open(tmp_path / "whole"), Archive.open(tmp_path / "cut")
    for archive in (whole, cut):
        for table in FACTS & archive.catalogue.files.keys():
            del archive.catalogue.files[table]
    whole_numbers = {table for each in derivations if not isinstance(each, Fractional) for table in each.tables}
    assert whole_numbers <= whole.catalogue.files.keys()
    assert differing_rows(spark, whole, cut) == 0


@pytest.mark.spec("DAY-4", "DAY-6")
def test_days_in_one_run_and_in_a_run_each_give_the_same_tables(spark: Any, tmp_path: Path) -> None:
    files = [tmp_path / f"2024-01-0{day}.itch" for day in (2, 3)]
    for number, file in enumerate(files):
        write_day(file, 600, seed=number + 1)
    archive_files(spark, tmp_path / "one", [files], tmp_path / "cache")
    archive_files(spark, tmp_path / "each", [[file] for file in files], tmp_path / "cache")
    one, each = Archive.open(tmp_path / "one"), Archive.open(tmp_path / "each")
    for table in ("trade", "top_of_book", "depth", "trade_quote", "bbo", "day", "bar_time"):
        found = {(file.stream, file.date) for file in one.files(table)}
        assert {stream for stream, _ in found} == {1, 2}, table
        assert {(1, "2024-01-02"), (2, "2024-01-03")} <= found, table
        assert (2, "2024-01-02") not in found, f"{table}: the second day has the date of the first"
    assert differing_rows(spark, one, each) == 0


@pytest.mark.spec("DAY-4", "DAY-6")
def test_a_venue_that_is_added_later_is_in_the_best_offers_of_its_day(spark: Any, tmp_path: Path) -> None:
    sources = []
    for number, venue in enumerate(("XNAS", "XBOS"), start=1):
        write_feed(tmp_path / f"{venue}.itch", 1_500, symbols=5, seed=number)
        conversion = Conversion("itch", 0, DAY.isoformat(), venue=venue)
        sources.append(FeedSource(tmp_path / f"{venue}.itch", conversion, cache=tmp_path / "cache"))
    derivations = (Books(), BestBidOffer())
    with Archive.writing(tmp_path / "together") as together:
        run(spark, together, sources, derivations, Silent(), cores=2)
    with Archive.writing(tmp_path / "apart") as apart:
        run(spark, apart, sources[:1], derivations, Silent(), cores=2)
        assert {row.bid_venues for row in apart.frame(spark, "bbo").collect()} == {0, 1}
        run(spark, apart, sources[1:], derivations, Silent(), cores=2)
        assert run(spark, apart, sources, derivations, Silent(), cores=2).commits == 0
    assert {row.bid_venues for row in together.frame(spark, "bbo").collect()} == {0, 1, 2}
    assert differing_rows(spark, together, apart) == 0
