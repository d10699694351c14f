"""Five trading days through one pair of adapter processes that are killed at midnight, against five single days.

The exchange assigns locate codes anew every day; a weekend and a holiday lie between the days.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import NamedTuple

import pytest

from integration.feed_kit import Feed, running_feed
from penstock.base.calendar import TradingCalendar
from penstock.bench.adapters import wait_for
from penstock.convert import Converter, ConverterTable, SourceBatch
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.middleware import Discontinuity, MergeGap, ReceiverConfig
from penstock.middleware.core.events import Merged, MergedBatch
from penstock.middleware.core.merger import Merger
from penstock.middleware.live import MulticastReceiver
from penstock.wire import Extension, PacketMessage, decode_origin
from penstock.wire.term import SESSION_TAG_SHIFT, session_tag

STREAM = 1
SYMBOLS = 20
CALENDAR = TradingCalendar.of_venue("XNAS")
DATE_BEFORE = date(2026, 1, 14)
"""The date of the session in which the adapters start."""
PLAN = ConverterTable.load("itch").compile()
MODELS = {output.model.id: output.model for output in PLAN.outputs}

Row = tuple[str, int, int, bytes]
"""Topic, source sequence number, index of the output within the source message, record."""


class Day(NamedTuple):
    session: str
    date: date
    messages: list[bytes]


def messages_of_day(number: int, count: int) -> list[bytes]:
    """The locate codes of symbols are different every day."""
    made = []
    for message in ItchGenerator(GeneratorConfig(seed=number + 1, symbols=SYMBOLS, messages=count)):
        locate = int.from_bytes(message[1:3], "big")
        moved = (locate - 1 + 7 * number) % SYMBOLS + 1 if locate else 0
        made.append(message[:1] + moved.to_bytes(2, "big") + message[3:])
    return made


def masked(model_id: int, record: bytes) -> bytes:
    """Remove the values that a single day cannot have: the receive time, and the close of the previous day."""
    model = MODELS[model_id]
    for name in ("receive_time", "previous_close"):
        if name in model.fields_by_name:
            field = model.fields_by_name[name]
            record = record[: field.offset] + bytes(8) + record[field.offset + 8 :]
    return record


def single_day(day: Day) -> list[Row]:
    """The rows of one day from a converter that has not seen any other day."""
    converter = Converter(PLAN, STREAM)
    converter.new_session(day.session, day.date)
    rows = []
    for topic, origin, model_id, record in converter.convert(SourceBatch.from_messages(day.messages, 1)):
        rows.append((topic, origin.source_sequence, origin.message_index, masked(model_id, bytes(record))))
    return rows


class DayRows:
    """The rows that an application receives when it merges the streams of both adapters, by the tag of their
    session."""

    def __init__(self, feed: Feed) -> None:
        self._receiver = MulticastReceiver(feed.channels, config=ReceiverConfig())
        self._merger = Merger()
        self.rows: dict[int, list[Row]] = defaultdict(list)
        self.told: list[Discontinuity] = []
        self.gaps: list[MergeGap] = []
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="subscriber", daemon=True)

    @contextmanager
    def taking(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._is_stopped.set()
            self._thread.join()
            self._receiver.close()

    def _run(self) -> None:
        now_ns = 0
        while not self._is_stopped.is_set():
            for each in self._receiver.receive(0.05):
                now_ns += 1
                for merged in self._merger.handle(each, now_ns):
                    if isinstance(merged, Merged | MergedBatch):
                        for message in merged.messages:
                            self._take(message)
                    elif isinstance(merged, Discontinuity):
                        self.told.append(merged)
                    elif isinstance(merged, MergeGap):
                        self.gaps.append(merged)

    def _take(self, message: PacketMessage) -> None:
        if message.model_id in MODELS:
            origin = decode_origin(message.extensions[Extension.ORIGIN])
            record = masked(message.model_id, bytes(message.payload))
            row = (message.topic, origin.source_sequence, origin.message_index, record)
            self.rows[origin.flags >> SESSION_TAG_SHIFT].append(row)


def five_days(count: int) -> list[Day]:
    days: list[Day] = []
    for number in range(5):
        day = CALENDAR.next_date(days[-1].date if days else DATE_BEFORE)
        days.append(Day(f"DAY{number + 1}", day, messages_of_day(number, count)))
    assert [each.date.day for each in days] == [15, 16, 20, 21, 22], "over a long weekend"
    return days


def run_day(feed: Feed, subscriber: DayRows, day: Day, failover: str) -> None:
    """`failover`: the active adapter is killed before or after the session begins, and returns at the day's end."""
    active, backup = feed.wait_until_synchronised()
    if failover == "before":
        active.kill()
    feed.exchange.begin_session(day.session, day.messages)
    if failover == "after":
        active.kill()
    if failover:
        wait_for(lambda: backup.status().role == "active", "the backup is active")
    expected, found = single_day(day), subscriber.rows[session_tag(day.session, day.date.isoformat())]
    wait_for(lambda: len(found) >= len(expected), f"all of {day.session} is delivered")
    assert found == expected, day.session
    if failover:
        active.start()


def run_days(directory: Path, failovers: dict[int, str], count: int) -> None:
    """`failovers`: how the active adapter dies at the midnight before a day, by the day's number."""
    days = five_days(count)
    with running_feed(directory, trading_date=DATE_BEFORE.isoformat(), sync={"active_lost_ms": 300}) as feed:
        subscriber = DayRows(feed)
        with subscriber.taking():
            for number, day in enumerate(days):
                run_day(feed, subscriber, day, failovers.get(number, ""))
    assert subscriber.gaps == []
    assert {(told.session, told.trading_date) for told in subscriber.told} >= {
        (day.session, day.date.isoformat()) for day in days
    }


@pytest.mark.spec("DAY-1", "DAY-2", "DAY-4")
def test_five_days_through_a_killed_pair_are_five_single_days(tmp_path: Path) -> None:
    run_days(tmp_path, {1: "before", 2: "after"}, count=400)


@pytest.mark.soak
@pytest.mark.spec("DAY-4")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_failover_at_every_midnight(tmp_path: Path, moment: str) -> None:
    run_days(tmp_path, dict.fromkeys(range(5), moment), count=20_000)
