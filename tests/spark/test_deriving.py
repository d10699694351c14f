"""Derivations in the archive: each row is used once, for any steps, with state carried from one step to the next."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import ArchiveFullError, JournalGoneError, PenstockError, TaskError
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.derive import CARRIED, DERIVATIONS, Output, Step
from penstock.spark.pipeline.deriving import derive
from penstock.spark.pipeline.runner import RunReport, append, follow, run
from penstock.spark.pipeline.sources.capture import JournalSource
from spark.pipeline_kit import Silent, capture_of, converted, write_journal


class Totals:
    """Emits a row at the end with the quantity traded, computed from the carried state."""

    name, tables, needs = "totals", ("total",), ("trade",)

    def step(self, step: Step) -> list[Output]:
        spent = step.new["trade"].selectExpr("stream", "quantity", "event_time")
        if step.carried is not None:
            spent = spent.unionByName(step.carried.selectExpr("stream", "quantity", "event_time"))
        total = spent.groupBy("stream").agg({"quantity": "sum", "event_time": "max"})
        row = total.selectExpr("stream", "`sum(quantity)` quantity", "`max(event_time)` event_time")
        schema = "stream INT, quantity BIGINT, event_time BIGINT"
        return [Output({CARRIED: schema}, row), Output({"total": schema}, row if step.is_final else row.limit(0))]


class Doubled:
    """Reads the rows that another derivation wrote in the same step."""

    name, tables, needs = "doubled", ("double",), ("total",)

    def step(self, step: Step) -> list[Output]:
        rows = step.new["total"].selectExpr("stream", "2 * quantity twice", "event_time")
        return [Output({"double": "stream INT, twice BIGINT, event_time BIGINT"}, rows)]


@pytest.mark.spec("PIPE-5", "PIPE-6")
def test_steps_and_one_run_derive_the_same(spark: Any, tmp_path: Path) -> None:
    records = capture_of(converted(1_500))
    place = JournalPlace(str(tmp_path / "journal"))
    write_journal(Path(place.where), records)
    derivations = (Totals(), Doubled())
    with Archive.writing(tmp_path / "whole") as archive:
        run(spark, archive, [JournalSource(place)], derivations, Silent(), cores=2, is_closing=True)
        assert archive.catalogue.number == 2
        assert run(spark, archive, [JournalSource(place)], derivations, Silent(), cores=2, is_closing=True).commits == 0
    with Archive.writing(tmp_path / "steps") as archive:
        source = JournalSource(place, records_max=len(records) // 2)
        append(spark, archive, source.pieces(archive.catalogue), RunReport())
        derive(spark, archive, derivations)
        append(spark, archive, source.pieces(archive.catalogue), RunReport())  # the run is killed here
    with Archive.writing(tmp_path / "steps") as archive:
        run(spark, archive, [JournalSource(place)], derivations, Silent(), cores=2, is_closing=True)
        states = list((tmp_path / "steps" / "_files" / "_state" / "totals").iterdir())
        assert {each.name for each in states} == {
            Path(file.path).name for file in archive.catalogue.carried["totals"]
        }, "the carried state is gone"
    found = {}
    for name in ("whole", "steps"):
        archive = Archive.open(tmp_path / name)
        total = archive.frame(spark, "total").collect()
        traded = archive.frame(spark, "trade").selectExpr("sum(quantity) q").collect()[0].q
        assert [row.quantity for row in total] == [traded]
        assert [row.twice for row in archive.frame(spark, "double").collect()] == [2 * traded]
        found[name] = [(row.stream, row.quantity, row.event_time, row.date) for row in total]
    assert found["whole"] == found["steps"]


@pytest.mark.soak
@pytest.mark.spec("PIPE-5")
def test_the_tables_of_a_followed_capture_equal_those_of_a_complete_one(spark: Any, tmp_path: Path) -> None:
    records = capture_of(converted(1_500))
    place = JournalPlace(str(tmp_path / "journal"))
    write_journal(Path(place.where), records)
    with Archive.writing(tmp_path / "whole") as archive:
        run(spark, archive, [JournalSource(place)], DERIVATIONS, Silent(), cores=2, is_closing=True)
    looks = iter([False, False, True])
    with Archive.writing(tmp_path / "followed") as archive:
        source = JournalSource(place, records_max=len(records) * 2 // 3)
        follow(spark, archive, [source], DERIVATIONS, Silent(), is_ended=lambda: next(looks))
        run(spark, archive, [source], DERIVATIONS, Silent(), cores=2, is_closing=True)
    whole, followed = Archive.open(tmp_path / "whole"), Archive.open(tmp_path / "followed")
    tables = [table for derivation in DERIVATIONS for table in derivation.tables]
    assert tables
    for table in tables:
        expected, found = whole.frame(spark, table), followed.frame(spark, table)
        assert expected.columns == found.columns
        assert expected.count() == found.count() > 0, table
        assert expected.exceptAll(found).isEmpty(), table


class Failing:
    """Its tasks fail in the worker, each in a different way."""

    name, tables, needs = "failing", ("never",), ("trade",)

    def __init__(self, how: str) -> None:
        self._how = how

    def step(self, step: Step) -> list[Output]:
        return [Output({"never": "stream INT, event_time BIGINT"}, step.new["trade"].select("seq"), self.work)]

    def work(self, batches: Iterator[Any]) -> Iterator[tuple[str, Any]]:
        if self._how == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._how == "full without a number":
            raise OSError("Could not write: No space left on device")
        if self._how == "gone":
            raise JournalGoneError("records 1 to 5 were removed", first_sequence=6, where="there", hint="too late")
        if self._how == "dies":
            os._exit(9)
        raise ValueError("a mistake\nof ours")
        yield


@pytest.mark.spec("PIPE-11")
def test_a_failed_task_is_an_error_of_penstock_and_commits_nothing(spark: Any, tmp_path: Path) -> None:
    place = JournalPlace(str(tmp_path / "journal"))
    write_journal(Path(place.where), capture_of(converted(200)))
    cases: list[tuple[str, type[PenstockError], str, str]] = [
        ("full", ArchiveFullError, "archive-full", "No space left on device"),
        ("full without a number", ArchiveFullError, "archive-full", "No space left on device"),
        ("gone", PenstockError, "journal-gone", "there: records 1 to 5 were removed (too late)"),
        ("dies", TaskError, "task", "Python worker exited unexpectedly"),
        ("mistaken", TaskError, "task", "a Spark task failed: ValueError: a mistake"),
    ]
    with Archive.writing(tmp_path / "archive") as archive:
        append(spark, archive, JournalSource(place).pieces(archive.catalogue), RunReport())
        for how, kind, code, says in cases:
            with pytest.raises(kind) as caught:
                derive(spark, archive, (Failing(how),), is_closing=True)
            assert caught.value.code == code
            assert says in str(caught.value)
            assert caught.value.hint
            assert "\n" not in str(caught.value)
            assert not list((archive.path / "_staging").iterdir())
        assert archive.catalogue.number == 1
        assert derive(spark, archive, (Totals(),), is_closing=True) is not None, "and the session is still usable"
