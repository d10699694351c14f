"""The feed adapter's core: converts lines into source streams and source streams into messages, synchronised with
others.

    adapter = FeedAdapter({1: arbiter}, {1: converter}, config, term=term_on_disk, now_ns=now_ns)
    instructions = adapter.handle(SourceDatagrams(1, batch), now_ns)

A source stream with lines has a LineArbiter; one without (a file, a TCP session, a contribution) arrives as
SourceMessages.

While is_flowing(stream_id) a driver may do the work of most datagrams itself, without events:

    ready = adapter.arbiters[1].cursor.take(batch, index, now_ns)
    converted = adapter.converters[1].convert(ready)
    ... publish it, and then, before anything else is handled:
    adapter.handle(LaneAdvanced(1), now_ns)
"""

from collections.abc import Iterable, Mapping

from penstock.base.core import Tick
from penstock.base.counters import Counters
from penstock.feed.config import SynchroniserConfig
from penstock.feed.core.conversion import Conversion
from penstock.feed.core.events import (
    AdapterEvent,
    AdapterInstruction,
    LineChanged,
    RequestSource,
    SessionBegan,
    SessionOver,
    SourceBroken,
    SourceDatagram,
    SourceDatagrams,
    SourceMessages,
    SyncEvent,
)
from penstock.feed.core.lines.arbiter import LineArbiter
from penstock.feed.core.lines.events import (
    LineDatagram,
    LineDatagrams,
    LineHeard,
    LineInstruction,
    LineSilent,
    RequestRetransmission,
    SessionEnded,
    SessionStarted,
    SourceLost,
    SourceReady,
)
from penstock.feed.core.session_dates import SessionDates
from penstock.feed.core.sync.synchroniser import Synchroniser


class FeedAdapter:
    """The core of one adapter; `converters` has all of its source streams, `arbiters` those with lines."""

    def __init__(
        self,
        arbiters: Mapping[int, LineArbiter],
        converters: Mapping[int, Conversion],
        config: SynchroniserConfig,
        *,
        term: int,
        now_ns: int,
        counters: Counters | None = None,
        dates: Mapping[int, SessionDates] | None = None,
    ) -> None:
        self.arbiters = arbiters
        self.converters = converters
        self.synchroniser = Synchroniser(config, converters, term=term, now_ns=now_ns, counters=counters, dates=dates)

    def is_flowing(self, stream_id: int) -> bool:
        """True if the driver may convert and publish in-order messages itself, and report LaneAdvanced afterwards.

        The result may change with every handled event.
        """
        return self.synchroniser.is_flowing(stream_id)

    def roll_ns(self, stream_id: int) -> int | None:
        """The calendar's end of the trading day of a source stream, in nanoseconds since 1970: after it, the driver
        may not convert itself."""
        return self.synchroniser.roll_ns(stream_id)

    def day_end_ns(self, stream_id: int) -> int | None:
        """The time at which the driver of a live source stream passes TimeOfDay, in nanoseconds since 1970: the
        session has then ended by the calendar. None: never."""
        return self.synchroniser.day_end_ns(stream_id)

    def is_ended(self, stream_id: int) -> bool:
        """True if the session of a source stream has ended and no other one has begun: its values are stale."""
        return self.synchroniser.is_ended(stream_id)

    def handle(self, event: AdapterEvent, now_ns: int) -> list[AdapterInstruction]:
        match event:
            case SourceDatagram(stream_id, line, data, receive_ns):
                answer = self.arbiters[stream_id].handle(LineDatagram(line, data, receive_ns), now_ns)
                return self.take_line_instructions(stream_id, answer, now_ns)
            case SourceDatagrams(stream_id, batch):
                answer = self.arbiters[stream_id].handle(LineDatagrams(batch), now_ns)
                return self.take_line_instructions(stream_id, answer, now_ns)
            case Tick():
                events: list[SyncEvent] = []
                instructions: list[AdapterInstruction] = []
                for stream_id, arbiter in self.arbiters.items():
                    for_synchroniser, for_driver = _translated(stream_id, arbiter.handle(event, now_ns))
                    events += for_synchroniser
                    instructions += for_driver
                return [*instructions, *self.synchroniser.handle_all([*events, event], now_ns)]
            case _:
                return [*self.synchroniser.handle(event, now_ns)]

    def take_line_instructions(
        self, stream_id: int, answer: Iterable[LineInstruction], now_ns: int
    ) -> list[AdapterInstruction]:
        """Handle an arbiter's instructions, for drivers that call the arbiter themselves."""
        events, instructions = _translated(stream_id, answer)
        if events:
            instructions += self.synchroniser.handle_all(events, now_ns)
        return instructions

    def next_deadline_ns(self) -> int | None:
        deadlines = [arbiter.next_deadline_ns() for arbiter in self.arbiters.values()]
        deadlines.append(self.synchroniser.next_deadline_ns())
        return min((each for each in deadlines if each is not None), default=None)


def _translated(stream_id: int, answer: Iterable[LineInstruction]) -> tuple[list[SyncEvent], list[AdapterInstruction]]:
    """Translate an arbiter's instructions into events for the synchroniser and instructions for the driver."""
    events: list[SyncEvent] = []
    instructions: list[AdapterInstruction] = []
    for each in answer:
        match each:
            case SourceReady(batch):
                events.append(SourceMessages(stream_id, batch))
            case SourceLost(first, last):
                events.append(SourceBroken(stream_id, first, last))
            case SessionStarted(name, first, is_reset, receive_ns):
                events.append(SessionBegan(stream_id, name, first, is_reset, receive_ns))
            case SessionEnded():
                events.append(SessionOver(stream_id))
            case RequestRetransmission(session, first, count):
                instructions.append(RequestSource(stream_id, session, first, count))
            case LineSilent(line) | LineHeard(line):
                instructions.append(LineChanged(stream_id, line, isinstance(each, LineSilent)))
    return events, instructions
