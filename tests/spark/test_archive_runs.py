"""Runs into an archive: custom models, and a follower that merges its files."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive import compaction
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.models import register_models
from penstock.spark.pipeline.runner import follow, run
from penstock.spark.pipeline.sources.capture import JournalSource
from penstock.spark.pipeline.sources.facts import FACT_SCHEMAS
from spark.pipeline_kit import Silent, capture_of, converted, write_journal
from unit.ticks_kit import COUNT, DOCUMENT, TICK, write_ticks


@pytest.mark.spec("PIPE-11")
@pytest.mark.parametrize("how", ["given", "in band", "later"])
def test_messages_of_a_custom_model_have_their_table(spark: Any, tmp_path: Path, how: str) -> None:
    write_ticks(tmp_path / "journal", document=DOCUMENT if how == "in band" else "")
    source = JournalSource(JournalPlace(str(tmp_path / "journal")))
    with Archive.writing(tmp_path / "archive") as archive:
        if how == "given":
            register_models(archive, [TICK])
        report = run(spark, archive, [source], (), Silent(), cores=2)
        assert report.account.is_balanced
        if how == "later":
            assert report.account.unknown_models == {"4711": COUNT}
            register_models(archive, [TICK])
            report = run(spark, archive, [source], (), Silent(), cores=2)
        assert report.read_again == ({} if how == "given" else {"tick": COUNT})
    frame = Archive.open(tmp_path / "archive").frame(spark, "tick")
    assert sorted(row.size for row in frame.collect()) == list(range(1, COUNT + 1))


@pytest.mark.spec("PIPE-6")
def test_a_follower_merges_its_files(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "CROWD", 3)
    messages = converted(600)
    records = capture_of(messages)
    place = JournalPlace(str(tmp_path / "journal"))
    write_journal(Path(place.where), records)
    steps = 7
    looks = iter([False] * steps + [True])
    with Archive.writing(tmp_path / "archive") as archive:
        source = JournalSource(place, records_max=-(-len(records) // steps))
        follow(spark, archive, [source], (), Silent(), is_ended=lambda: next(looks))
        tables = [info.name for info in archive.tables()]
        assert max(len(archive.files(table)) for table in tables) <= 3
        frames = [archive.frame(spark, table) for table in tables if table in archive.catalogue.account.rows]
        seqs = sorted(row.seq for frame in frames for row in frame.select("seq").collect())
    assert seqs == list(range(1, len(messages) + 1))


@pytest.mark.spec("PIPE-6")
def test_a_follower_removes_old_dates(spark: Any, tmp_path: Path) -> None:
    place = JournalPlace(str(tmp_path / "journal"))
    write_journal(Path(place.where), capture_of(converted(600)))
    firsts = iter([date(2000, 1, 1), date(2000, 1, 1), date(2100, 1, 1)])
    looks = iter([False, False, False, True])
    with Archive.writing(tmp_path / "archive") as archive:
        sizes: list[int] = []

        def first_date() -> date:
            sizes.append(sum(info.rows for info in archive.tables()))
            return next(firsts)

        follow(
            spark, archive, [JournalSource(place)], (), Silent(),
            is_ended=lambda: next(looks), sleep=lambda seconds: None, first_date=first_date,
        )  # fmt: skip
        assert sizes[0] == sizes[1] == sizes[2] >= 600, "no date has expired yet"
        assert [info.rows for info in archive.tables() if info.name not in FACT_SCHEMAS] == []
