"""Five trading days through one pair of adapters, with and without a failover at midnight, against five single days.

The exchange assigns locate codes again every day; a weekend and a holiday lie between the days.
"""

from datetime import date
from typing import Any

import pytest

from penstock.convert import Converter, ConverterTable, SourceBatch
from penstock.middleware import Discontinuity, MergeGap
from penstock.sim import FeedPlant
from penstock.sim.datagram_node import Viewer
from penstock.sim.feed.checkers import FeedChecker
from penstock.sim.feed.days import pair_plant, run_days
from penstock.sim.feed.packables import ApplicationMessage, messages_of
from penstock.wire.term import Term

DAYS = 5
STREAM = 1
PLAN = ConverterTable.load("itch").compile()
STATISTICS = next(output.model for output in PLAN.outputs if output.model.name == "day_statistics")

Row = tuple[str, int, int, bytes]
"""Topic, source sequence number, index of the output within the source message, record."""


class DayBook(FeedChecker):
    """The messages and reports that a subscriber's application receives, day by day."""

    def __init__(self, plant: FeedPlant) -> None:
        super().__init__(plant)
        self.rows: list[list[Row]] = []
        self.told_of: list[Discontinuity] = []
        self.gaps: list[MergeGap] = []
        self._session = ""

    def delivered(self, viewer: Viewer, message: ApplicationMessage) -> None:
        topic, origin, payload = message
        self.rows[-1].append((topic, origin.source_sequence, origin.message_index, payload))

    def told(self, viewer: Viewer, what: MergeGap | Discontinuity) -> None:
        if isinstance(what, MergeGap):
            self.gaps.append(what)
            return
        self.told_of.append(what)
        if what.session != self._session:
            self._session = what.session
            self.rows.append([])


def days_of(seed: int, *, failover_ms: int | None, policy: Any = "promote") -> tuple[FeedPlant, DayBook]:
    plant = pair_plant(seed, policy=policy)
    book = DayBook(plant)
    plant.checkers.append(book)
    plant.start()
    run_days(plant, DAYS, failover_ms=failover_ms)
    plant.finish()
    return plant, book


def single_day(plant: FeedPlant, session: str, day: date) -> list[Row]:
    """The rows of one day from a converter that has not seen any other day."""
    log = plant.exchange.logs[STREAM]
    converter = Converter(PLAN, STREAM)
    converter.new_session(session, day)
    messages = log.said(session, 1, 1_000_000)
    converted = converter.convert(SourceBatch.from_messages(messages, 1, log.receive_ns(session)))
    return [
        (topic, origin.source_sequence, origin.message_index, payload)
        for topic, origin, payload in messages_of(converted)
    ]


def without_close(row: Row) -> Row:
    """A single day does not know the day before: its previous close is the only value that may differ."""
    topic, sequence, index, payload = row
    if not topic.endswith(".stats"):
        return row
    field = STATISTICS.fields_by_name["previous_close"]
    return topic, sequence, index, payload[: field.offset] + bytes(8) + payload[field.offset + 8 :]


def closes_of(rows: list[Row], name: str) -> dict[str, Any]:
    """The newest value of a field of the statistics, by topic."""
    return {row[0]: STATISTICS.view(row[3]).scaled(name) for row in rows if row[0].endswith(".stats")}


@pytest.mark.spec("DAY-1", "DAY-2", "DAY-4")
@pytest.mark.parametrize("failover_ms", [None, -40, 0, 1, 25, 120])
@pytest.mark.parametrize("seed", [1, 2])
def test_five_days_through_one_pair_are_five_single_days(seed: int, failover_ms: int | None) -> None:
    plant, book = days_of(seed, failover_ms=failover_ms)
    log = plant.exchange.logs[STREAM]
    assert len(log.sessions) == DAYS
    assert list(log.dates.values()) == [date(2024, 1, day) for day in (11, 12, 16, 17, 18)], "over a long weekend"
    assert book.gaps == []
    assert {(told.session, told.trading_date) for told in book.told_of} >= {
        (session, log.dates[session].isoformat()) for session in log.sessions[1:]
    }
    days = [rows for rows in book.rows if rows]
    assert len(days) == DAYS
    closes: dict[str, Any] = {}
    for session, rows in zip(log.sessions, days, strict=True):
        expected = single_day(plant, session, log.dates[session])
        assert len(expected) > 100
        assert [without_close(row) for row in rows] == [without_close(row) for row in expected]
        for topic, close in closes_of(rows, "previous_close").items():
            assert close == closes.get(topic), (session, topic)
        closes |= closes_of(rows, "last")
    claimants = {Term.of(told.term).claimant for told in book.told_of}
    assert len(claimants) == (1 if failover_ms is None else 2), "each adapter was active"


@pytest.mark.spec("DAY-4")
@pytest.mark.parametrize("failover_ms", [0, 1])
def test_a_failover_at_midnight_does_not_wait_if_nothing_is_missing(failover_ms: int) -> None:
    """The previous day is over, so the failover does not wait, although the policy is to wait for an operator if no
    backup is synchronised."""
    plant, book = days_of(2, failover_ms=failover_ms, policy="wait")
    log = plant.exchange.logs[STREAM]
    days = [rows for rows in book.rows if rows]
    for session, rows in zip(log.sessions, days, strict=True):
        expected = single_day(plant, session, log.dates[session])
        assert [without_close(row) for row in rows] == [without_close(row) for row in expected]
    assert {told.reason for told in book.told_of} == {"start", "session"}
