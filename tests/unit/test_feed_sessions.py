"""Sessions of the source through a complete adapter: from the datagrams of its lines to the published messages."""

from typing import Any

import pytest

from penstock.base.calendar import TradingCalendar
from penstock.base.core import Tick
from penstock.convert import Converter, ConverterTable
from penstock.feed import FeedAdapter, LineArbiter, LineConfig, SynchroniserConfig
from penstock.feed.core.conversion import Conversion
from penstock.feed.core.events import (
    Announce,
    LaneAdvanced,
    PersistTerm,
    PublishConverted,
    SessionBegan,
    SourceDatagram,
    TermPersisted,
    TimeOfDay,
)
from penstock.feed.core.lines.session_names import after_reset, is_later_of_same, session_name
from penstock.feed.formats import DatagramFormat, MoldUDP64
from penstock.feed.formats.iextp import TOPS_1_6, IexStream, IexTp, encode_segment
from penstock.feed.formats.mold import encode_packet
from penstock.middleware import Merger, SessionEvent, StreamKey
from penstock.middleware.core.reserved_topics import DISCONTINUITY_TOPIC
from penstock.middleware.core.source_stream import END_INDEX
from penstock.wire import Extension, Origin, OriginFlag, PacketMessage, decode_origin, encode_origin
from penstock.wire.term import SESSION_TAG_SHIFT, session_tag
from sim.toy_conversion import ToyConversion
from unit.feed_kit import STREAM, Table, source
from unit.merge_kit import deliver

MS = 1_000_000
DAY_NS = 1_769_785_200_000_000_000
"""2026-01-30, 15:00 in UTC."""


class Lined:
    """A single adapter, its lines and the time."""

    def __init__(self, framing: DatagramFormat, converter: Conversion) -> None:
        arbiter = LineArbiter(LineConfig(reset_wait_ms=2_000), framing)
        self.now_ns = 0
        self.core = FeedAdapter(
            {STREAM: arbiter}, {STREAM: converter}, SynchroniserConfig(startup_ms=1), term=0, now_ns=0
        )
        self.published: list[tuple[int, int]] = []
        """(the session's tag, the source's number) of each message."""
        self.announced: list[bytes] = []
        self.wait(500)

    def hear(self, data: bytes) -> None:
        self._carry_out(self.core.handle(SourceDatagram(STREAM, 0, data, 0), self.now_ns))

    def wait(self, ms: int) -> None:
        end_ns = self.now_ns + ms * MS
        while (deadline_ns := self.core.next_deadline_ns()) is not None and deadline_ns <= end_ns:
            self.now_ns = max(self.now_ns, deadline_ns)
            self._carry_out(self.core.handle(Tick(), self.now_ns))
        self.now_ns = end_ns

    def _carry_out(self, instructions: list[Any]) -> None:
        for instruction in instructions:
            match instruction:
                case PersistTerm(term):
                    self._carry_out(self.core.handle(TermPersisted(term), self.now_ns))
                case PublishConverted(_, converted):
                    payloads = converted.payloads.tobytes()
                    for offset in converted.rows["extensions_offset"].tolist():
                        origin = decode_origin(payloads[offset + 4 : offset + 32])
                        self.published.append((origin.flags >> SESSION_TAG_SHIFT, origin.source_sequence))
                case Announce(_, message):
                    self.announced.append(bytes(message.payload))


@pytest.mark.spec("FEED-9")
def test_a_source_that_restarts_its_numbers_under_its_name_is_published_as_a_separate_session() -> None:
    adapter = Lined(MoldUDP64(), ToyConversion(STREAM))
    adapter.hear(encode_packet("day", 1, [source(n) for n in range(1, 21)]))
    before = {number for _, number in adapter.published}
    assert max(before) == 20
    adapter.published.clear()
    for number in range(1, 10):
        adapter.hear(encode_packet("day", 1, [source(n) for n in range(1, number + 1)]))
        adapter.wait(500)
    assert set(adapter.published) == {(session_tag("day#2"), number) for number in before if number < 10}
    assert b'{"reason":"session","lost":[],"session":"day#2","trading_date":""}' in adapter.announced


def test_iex_sessions_of_ten_digits_are_consecutive() -> None:
    converter = Converter(ConverterTable.load("iex-tops").compile(), STREAM)
    adapter = Lined(IexTp(), converter)
    digests = set()
    for session in (1286602752, 1286602753, 4294967295):
        for first in (1, 2, 3):
            adapter.hear(encode_segment(IexStream(TOPS_1_6, 4294967295, session), first, [b"S" + bytes(9)]))
            adapter.wait(600)
        assert converter.next_source_sequence == 4
        digests.add(converter.state.session()[0])
    assert len(digests) == 3


def test_a_resumed_session_is_not_a_new_one_and_a_reset_is() -> None:
    """A SoupBinTCP client logs in again to its previous session."""
    table = Table(1)
    table.wait(1_000)
    table.feed(1, 20)
    table[0].handle(SessionBegan(STREAM, "day 1", 21))
    table.feed(21, 22)
    assert len(table[0].of_kind(Announce)) == 1
    assert table[0].converter.next_source_sequence == 23
    for name in ("day 1#2", "day 1#3"):
        table[0].handle(SessionBegan(STREAM, "day 1#2", 1, is_reset=True))
        table.settle()
        table.feed(1, 5)
        assert f'"session":"{name}"'.encode() in bytes(table[0].of_kind(Announce)[-1].message.payload)
        assert table[0].converter.next_source_sequence == 6


def test_an_adapter_that_missed_the_restart_of_the_source_uses_the_session_name_of_the_active_adapter() -> None:
    table = Table(2)
    table.wait(1_000)
    table.feed(1, 20)
    for index in (0, 1):
        table[index].handle(SessionBegan(STREAM, "day 1#2", 1, is_reset=True))
    table.settle()
    table.feed(1, 20)
    table.wait(200)
    assert table[1].core.is_synchronised(STREAM)
    table.kill(1)
    table.start(1, first=21)
    table.feed(21, 40)
    table.wait(500)
    table.feed(41, 60)
    assert table[1].core.is_synchronised(STREAM)
    tags = {origin.flags >> SESSION_TAG_SHIFT for origin, _ in table[1].sent if origin.source_sequence > 50}
    assert tags == {session_tag("day 1#2")}


@pytest.mark.spec("DAY-3", "SYNC-1")
@pytest.mark.parametrize("is_by_calendar", [True, False])
def test_active_and_backup_announce_the_same_end_and_a_consumer_receives_one(is_by_calendar: bool) -> None:
    table = Table(2, calendar=TradingCalendar.of_venue("XNAS"))
    table.wait(1_000)
    for index in (0, 1):
        table[index].handle(SessionBegan(STREAM, "day 2", 1, receive_ns=DAY_NS))
    table.settle()
    table.feed(1, 20)
    table.wait(200)
    assert table[1].core.is_synchronised(STREAM)
    before = [len(table[index].sent) for index in (0, 1)]
    for index in (0, 1):
        if is_by_calendar:
            end_ns = table[index].core.day_end_ns(STREAM)
            assert end_ns is not None
            table[index].handle(TimeOfDay(STREAM, end_ns))
            table[index].handle(TimeOfDay(STREAM, end_ns + 1))
        else:
            table[index].converter.is_over = True
            table[index].handle(LaneAdvanced(STREAM))
            table[index].handle(LaneAdvanced(STREAM))
    ((one, body),), ((other, same_body),) = (table[index].sent[before[index] :] for index in (0, 1))
    assert (one, body) == (other, same_body)
    assert one.message_index == END_INDEX
    merger = Merger()
    told: list[Any] = []
    for incarnation, adapter in enumerate(table.adapters.values(), 1):
        told += merger.handle(deliver(StreamKey(incarnation, 1), [packet(*each) for each in adapter.sent]), 0)
    sessions = [(each.kind, each.session) for each in told if isinstance(each, SessionEvent)]
    assert sessions[-1] == ("end", "day 2")
    assert len([kind for kind, _ in sessions if kind == "end"]) == 1


def packet(origin: Origin, body: bytes) -> PacketMessage:
    topic = DISCONTINUITY_TOPIC if origin.flags & OriginFlag.DISCONTINUITY else "md.toy.S"
    return PacketMessage(topic, body, extensions={Extension.ORIGIN: encode_origin(origin)})


def test_session_names() -> None:
    assert session_name("day", 1) == "day"
    assert after_reset("day") == "day#2"
    assert after_reset("day#9") == "day#10"
    assert after_reset("day#") == "day##2"
    assert is_later_of_same("day#2", "day")
    assert is_later_of_same("day#10", "day#9")
    assert not is_later_of_same("day", "day")
    assert not is_later_of_same("day", "day#2")
    assert not is_later_of_same("week#2", "day")
