"""An exchange: source streams over lossy lines A and B, a request server, and sessions; with the expected messages."""

from datetime import date
from typing import TYPE_CHECKING, Protocol

import msgspec

from penstock.base.calendar import TradingCalendar
from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.convert import SourceBatch
from penstock.feed.core.conversion import Conversion
from penstock.feed.core.events import RequestSource, SourceDatagram
from penstock.feed.formats.mold import encode_end, encode_packet
from penstock.sim.feed.packables import messages_of

if TYPE_CHECKING:
    from penstock.sim.feed.plant import FeedPlant

LINES = 2
BURST_MAX = 8
HEARTBEAT_NS = 30 * NS_PER_MS
REQUEST_COUNT_MAX = 20
CALENDAR = TradingCalendar.of_venue("XNAS")
FIRST_DATE = date(2024, 1, 11)
"""Trading date of the first session; a weekend and a holiday follow soon."""


class Market(Protocol):
    """Source messages of an exchange, and their conversion."""

    def day(self, stream_id: int, session: str) -> list[bytes]:
        """The messages of one session; when all are sent, the next session begins."""
        ...

    def converter(self, stream_id: int, checkpoint_interval: int) -> Conversion: ...


class Made(msgspec.Struct, frozen=True):
    """The expected application message: its origin and content."""

    session: str
    source_sequence: int
    message_index: int
    topic: str
    payload: bytes


class LineFaults(msgspec.Struct, kw_only=True):
    """Faults of one line on its way to one adapter."""

    loss: float = 0.0
    delay_max_ns: int = 1_000_000
    answers: bool = True
    """True if the request server answers."""


class SourceStreamLog:
    """All messages of a source stream, and the messages that a converter makes of them if it missed none."""

    def __init__(self, plant: "FeedPlant", stream_id: int) -> None:
        self._plant = plant
        self._stream_id = stream_id
        self._converter = plant.market.converter(stream_id, 1_000_000)
        self.session = ""
        self.sessions: list[str] = []
        self.next_sequence = 1
        self.dates: dict[str, date] = {}
        """The trading date of each session."""
        self._day: list[bytes] = []
        self._said: dict[str, list[bytes]] = {}
        self.made: dict[tuple[str, int], list[Made]] = {}
        """Converted messages of each source message."""
        self.digests: dict[tuple[str, int], int] = {}
        """The state before each source position."""
        self.begin_session()

    def begin_session(self) -> None:
        before = self.dates.get(self.session)
        self.session = f"DAY{len(self.sessions) + 1}"
        self.sessions.append(self.session)
        self.dates[self.session] = FIRST_DATE if before is None else CALENDAR.next_date(before)
        self.next_sequence = 1
        self._day = self._plant.market.day(self._stream_id, self.session)
        self._said[self.session] = []
        self._converter.new_session(self.session, self.dates[self.session])
        self.digests[self.session, 1] = self._converter.state.digest

    @property
    def is_day_over(self) -> bool:
        """True if all messages of the session were sent."""
        return self.next_sequence > len(self._day)

    def say(self, count: int) -> tuple[int, list[bytes]]:
        """The next messages, with the number of the first."""
        first = self.next_sequence
        messages = self._day[first - 1 : first - 1 + count]
        for sequence, message in enumerate(messages, first):
            converted = self._converter.convert(
                SourceBatch.from_messages([message], sequence, self.receive_ns(self.session))
            )
            self.made[self.session, sequence] = [
                Made(self.session, sequence, origin.message_index, topic, payload)
                for topic, origin, payload in messages_of(converted)
            ]
            self.digests[self.session, sequence + 1] = self._converter.state.digest
        self._said[self.session] += messages
        self.next_sequence += len(messages)
        return first, messages

    def receive_ns(self, session: str) -> int:
        """Receive time of a session's messages: the same for all adapters, so that they make equal records."""
        hours = CALENDAR.hours(self.dates[session])
        assert hours is not None
        return hours.open_ns

    def said(self, session: str, first: int, count: int) -> list[bytes]:
        return self._said.get(session, [])[first - 1 : first - 1 + count]


class Exchange:
    """Sends messages in bursts, on both lines, to every adapter."""

    def __init__(self, plant: "FeedPlant") -> None:
        self._plant = plant
        self._world = plant.world
        self._randomness = plant.world.randomness.fork("exchange")
        self.logs = {stream_id: SourceStreamLog(plant, stream_id) for stream_id in plant.stream_ids}
        self.faults = [msgspec.structs.replace(plant.options.lines) for _ in plant.adapters]
        self._is_resting = False

    def open(self) -> None:
        """Heartbeats, so that all adapters know the beginning of the day."""
        for stream_id in self.logs:
            self._beat(stream_id)

    def start(self) -> None:
        for stream_id in self.logs:
            self._work(stream_id)

    def rest(self) -> None:
        """Send no more messages; heartbeats continue."""
        self._is_resting = True

    def begin_session(self) -> None:
        """Start the next day in every source stream."""
        for stream_id, log in self.logs.items():
            self._send(stream_id, encode_end(log.session, log.next_sequence), log.session)
            log.begin_session()

    def answer(self, adapter: int, request: RequestSource) -> None:
        """Answer a request, if the request server is up and both directions of the path work."""
        faults = self.faults[adapter]
        messages = self.logs[request.stream_id].said(
            request.session, request.first, min(request.count, REQUEST_COUNT_MAX)
        )
        if faults.answers and messages:
            data = encode_packet(request.session, request.first, messages)
            self._send_line(adapter, request.stream_id, LINES, data, request.session)

    def _work(self, stream_id: int) -> None:
        if self._is_resting:
            return
        count = self._randomness.between(1, BURST_MAX)
        log = self.logs[stream_id]
        if log.is_day_over:
            self.begin_session()
        first, messages = log.say(count)
        if messages:
            self._send(stream_id, encode_packet(log.session, first, messages), log.session)
        mean_ns = NS_PER_SECOND * count // self._plant.options.messages_per_s
        self._world.after(self._randomness.below(2 * mean_ns), lambda: self._work(stream_id))

    def _beat(self, stream_id: int) -> None:
        log = self.logs[stream_id]
        self._send(stream_id, encode_packet(log.session, log.next_sequence, []), log.session)
        self._world.after(HEARTBEAT_NS, lambda: self._beat(stream_id))

    def _send(self, stream_id: int, data: bytes, session: str) -> None:
        for adapter in range(len(self._plant.adapters)):
            for line in range(LINES):
                self._send_line(adapter, stream_id, line, data, session)

    def _send_line(self, adapter: int, stream_id: int, line: int, data: bytes, session: str) -> None:
        faults = self.faults[adapter]
        if self._randomness.chance(faults.loss):
            return
        node = self._plant.adapters[adapter]
        event = SourceDatagram(stream_id, line, data, self.logs[stream_id].receive_ns(session))
        self._world.after(self._randomness.below(faults.delay_max_ns), lambda: node.handle(event))
