"""The rows of an archive do not depend on the division of its sources into runs and steps."""

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.pipeline.days import (
    archive_files,
    compare_days,
    difference,
    differing_rows,
    record_days,
    rows_of,
    write_day,
)
from penstock.spark.feedslices import Conversion
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.derive import DERIVATIONS, BestBidOffer, Books, Day, Derivation, TimeBars, TradeQuote
from penstock.spark.pipeline.derive.fractional import Fractional
from penstock.spark.pipeline.runner import follow, run
from penstock.spark.pipeline.sources.capture import FeedSource, JournalSource
from spark.pipeline_kit import DAY, Silent, capture_of, two_sessions, write_feed, write_journal

FACTS = {"delivery", "agreement", "latency", "loss", "quarantine"}
"""Tables about slices: the number of their rows depends on the slices."""


def dates_of(path: Path, table: str) -> set[str]:
    """The dates of the table's rows."""
    return {file.date for file in Archive.open(path).catalogue.files.get(table, {}).values()}


SOME = (Books(), TimeBars(), TradeQuote(), BestBidOffer(), Day())
"""One derivation for every way to carry or close state; all derivations would take minutes."""

SOAK_SEEDS = int(os.environ.get("PENSTOCK_CUT_SEEDS", "10"))


@pytest.mark.spec("DAY-4", "DAY-5", "PIPE-5")
@pytest.mark.parametrize(
    ("seed", "derivations"),
    [
        *((seed, (derivation,)) for seed, derivation in enumerate(SOME, start=1)),
        *(pytest.param(seed, DERIVATIONS, marks=pytest.mark.soak) for seed in range(6, 6 + SOAK_SEEDS)),
    ],
)
def test_a_capture_divided_at_random_places_gives_the_same_tables(
    spark: Any, tmp_path: Path, seed: int, derivations: tuple[Derivation, ...]
) -> None:
    chance = random.Random(seed)
    closed = {"day", "bbo"} & {table for each in derivations for table in each.tables}
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
        for table in closed:
            assert "2024-01-02" in dates_of(tmp_path / "cut", table), "the first session has ended"
        if "day" in closed:
            assert dates_of(tmp_path / "cut", "day") == {"2024-01-02"}, "no other session has ended"
        write_journal(Path(place.where), records[cuts[-1] :], cuts[-1] + 1)
        run(spark, archive, [JournalSource(place)], derivations, Silent(), cores=2, is_closing=True)
    for table in closed:
        assert dates_of(tmp_path / "cut", table) >= {"2024-01-02", "2024-01-03"}
    with Archive.writing(tmp_path / "whole") as archive:
        run(spark, archive, [JournalSource(place)], derivations, Silent(), cores=2, is_closing=True)
    whole, cut = Archive.open(tmp_path / "whole"), Archive.open(tmp_path / "cut")
    for archive in (whole, cut):
        for table in FACTS & archive.catalogue.files.keys():
            del archive.catalogue.files[table]
    whole_numbers = {table for each in derivations if not isinstance(each, Fractional) for table in each.tables}
    assert whole_numbers <= whole.catalogue.files.keys()
    assert differing_rows(whole, cut) == 0


@pytest.mark.spec("DAY-4", "DAY-6")
def test_days_in_one_run_and_in_a_run_each_give_the_same_tables(spark: Any, tmp_path: Path) -> None:
    days = ["2024-01-04", "2024-01-05", "2024-01-08"]
    files = [tmp_path / f"{day}.itch" for day in days]
    for number, file in enumerate(files):
        write_day(file, 600, seed=number + 1)
    derivations = (Books(), TradeQuote(), BestBidOffer(), Day())
    archive_files(spark, tmp_path / "one", [files], tmp_path / "cache", derivations)
    archive_files(spark, tmp_path / "each", [[file] for file in files], tmp_path / "cache", derivations)
    one, each = Archive.open(tmp_path / "one"), Archive.open(tmp_path / "each")
    for table in ("trade", "top_of_book", "depth", "trade_quote", "bbo", "day"):
        found = {(file.stream, file.date) for file in one.files(table)}
        assert found >= set(enumerate(days, start=1)), table
        for stream, day in found:
            assert stream is not None
            assert day >= days[stream - 1], f"{table}: stream {stream} has the date of another day"
    assert differing_rows(one, each) == 0


@pytest.mark.spec("DAY-1", "DAY-2", "DAY-4")
def test_five_days_of_a_pair_with_failovers_equal_five_single_days(spark: Any, tmp_path: Path) -> None:
    recorded = record_days(tmp_path / "recorded", seed=2, messages_per_s=800)
    assert [file.stem for file in recorded.files] == [f"2024-01-{day}" for day in (11, 12, 16, 17, 18)]
    compared = compare_days(spark, recorded, tmp_path, SOME, is_one_archive=True)
    assert compared.differing == 0
    assert compared.tables > len(SOME)
    assert dates_of(tmp_path / "five-days", "day") == {file.stem for file in recorded.files}
    together = rows_of([tmp_path / "five-days"])
    for table in ("book_event", "trade", "depth", "bar_time", "trade_quote", "bbo", "day"):
        row = next(row for row in together if row.table == table)
        assert difference(together, together - Counter([row])) == 1, "a missing row counts"


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
    assert differing_rows(together, apart) == 0
