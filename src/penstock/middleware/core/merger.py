"""Merges the source streams of redundant adapters: each message once, in order, from the adapter that brings it first.

    receiver, merger = Receiver(...), Merger(MergerConfig())
    for instruction in receiver.handle(event, now_ns):
        for merged in merger.handle(instruction, now_ns): ...

The ORIGIN of a message decides which copy counts (source_stream.py). Messages without ORIGIN pass, and losses of their
stream are reported to the application; models in band are an exception, because they are repeated. When an adapter
dies, the copies of the others continue: no failure has to be detected, so no timeout delays a message.
"""

from collections.abc import Iterable

from penstock.base.clock import Randomness
from penstock.base.core import Tick
from penstock.base.counters import Cause, Counters
from penstock.base.errors import PacketError
from penstock.middleware.config import MergerConfig
from penstock.middleware.core._merge import UNMERGED, BranchCursor, BranchTable
from penstock.middleware.core.budget import ReceiveBudget
from penstock.middleware.core.events import (
    Deliver,
    DeliverBatch,
    LossReceipt,
    Merged,
    MergedBatch,
    MergerEvent,
    MergerInstruction,
    StartAfter,
    StreamEnded,
    StreamKey,
    StreamStarted,
)
from penstock.middleware.core.reserved_topics import MODEL_TOPIC
from penstock.middleware.core.source_stream import BRANCHES_MAX, DISCONTINUITY, Outcome, SourceStream
from penstock.wire import Extension, MessageBatch, Origin, OriginFlag, PacketMessage, decode_origin

ORIGIN = int(Extension.ORIGIN)
IMAGE = int(OriginFlag.IMAGE)


class Merger:
    """The core of one merger; its input are the instructions of any number of receivers."""

    def __init__(
        self,
        config: MergerConfig | None = None,
        counters: Counters | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        """`randomness` prevents attackers from choosing publisher ids that collide in the tables."""
        self.config = config or MergerConfig()
        self.counters = counters or Counters("merger")
        table = self.table = BranchTable(randomness.below(2**64) if randomness is not None else 0)
        self.counters.watch("messages_merged", lambda: table.merged_count)
        self.counters.watch("messages_suppressed", lambda: table.duplicate_count, cause=Cause.DUPLICATE)
        self._sources: dict[int, SourceStream] = {}
        self._abandoned: dict[int, None] = {}  # source streams whose publishers' streams have all ended, oldest first
        self._sources_of: dict[StreamKey, set[int]] = {}
        self._mixed: dict[StreamKey, BranchCursor] = {}  # streams that also have messages without ORIGIN
        self._stalled: dict[int, SourceStream] = {}
        self._budget: ReceiveBudget[SourceStream] = ReceiveBudget(self.config.held_bytes_total_max)

    def handle(self, event: MergerEvent, now_ns: int) -> list[MergerInstruction]:
        """Instructions for the application; those for the network pass unchanged."""
        out: list[MergerInstruction] = []
        match event:
            case Deliver():
                self._take(event.stream, event.messages, now_ns, out)
            case DeliverBatch():
                self._take_batch(event.messages, now_ns, out)
            case LossReceipt():
                for source in self._of(event.stream):
                    source.lose(event.stream)
                if event.stream in self._mixed or event.stream not in self._sources_of:
                    out.append(event)
            case StreamStarted():
                for source in self._of(event.stream):
                    source.lose(event.stream)
                out.append(event)
            case StreamEnded():
                self._end(event.stream, now_ns, out)
                out.append(event)
            case StartAfter():
                self._start(event, now_ns, out)
            case Tick():
                self._give_up(now_ns, out)
            case _:
                out.append(event)
        return out

    def next_deadline_ns(self) -> int | None:
        deadlines = [source.next_deadline_ns() for source in self._stalled.values()]
        return min((each for each in deadlines if each is not None), default=None)

    def source_stream(self, stream_id: int) -> SourceStream | None:
        """Return a known source stream."""
        return self._sources.get(stream_id)

    @property
    def is_stalled(self) -> bool:
        """True if messages are held back."""
        return bool(self._stalled)

    def take_rest(self, batch: MessageBatch, index: int, now_ns: int) -> list[MergerInstruction]:
        """Handle the messages of a batch from `index` on, where table.take() has stopped."""
        out: list[MergerInstruction] = []
        count = len(batch)
        while index < count:
            message = batch[index]
            key = StreamKey(message.publisher_id, batch.group_of(index))
            self._take(key, (message,), now_ns, out)
            chosen, index = self.table.take(batch, index + 1)
            if chosen is not None:
                out.append(MergedBatch(chosen))
        return out

    def _take_batch(self, batch: MessageBatch, now_ns: int, out: list[MergerInstruction]) -> None:
        """Merge messages: those in order on the fast path, others one by one, keeping the order of all."""
        chosen, index = self.table.take(batch, 0)
        if chosen is not None:
            out.append(MergedBatch(chosen))
        out += self.take_rest(batch, index, now_ns)

    def _start(self, event: StartAfter, now_ns: int, out: list[MergerInstruction]) -> None:
        if (source := self._source(event.stream_id)) is None:
            return
        if event.stream is not None:
            is_new = event.stream not in source.branches
            branch = self._branch(source, event.stream)
            if branch is not None and (is_new or (branch.is_synchronised and not source.is_started)):
                branch.number, branch.term = event.message_sequence, event.term
                branch.is_synchronised = branch.is_continuous = True
        self._emit(source, source.start_after(event.term, event.message_sequence, now_ns), now_ns, out)

    def _end(self, key: StreamKey, now_ns: int, out: list[MergerInstruction]) -> None:
        for source in self._of(key):
            self.table.remove(source.branches[key])
            self._emit(source, source.end(key, now_ns), now_ns, out)
            if not source.branches:
                self._abandoned[source.stream_id] = None
        self._sources_of.pop(key, None)
        if (unmerged := self._mixed.pop(key, None)) is not None:
            self.table.remove(unmerged)

    def _take(
        self, key: StreamKey, messages: Iterable[PacketMessage], now_ns: int, out: list[MergerInstruction]
    ) -> None:
        for message in messages:
            body = message.extensions.get(ORIGIN)
            if body is None:
                if key not in self._mixed and message.topic != MODEL_TOPIC:
                    self._mixed[key] = BranchCursor(key.publisher_id, key.group, UNMERGED)
                    self.table.add(self._mixed[key])
                _append(out, message)
                continue
            try:
                origin = decode_origin(body)
            except PacketError as error:
                self.counters.add("messages_suppressed", cause=error.cause)
                continue
            if origin.flags & IMAGE and not origin.flags & DISCONTINUITY:
                _append(out, message)
            else:
                self._merge(key, origin, message, now_ns, out)

    def _merge(
        self, key: StreamKey, origin: Origin, message: PacketMessage, now_ns: int, out: list[MergerInstruction]
    ) -> None:
        if origin.message_sequence == 0 and not origin.flags & DISCONTINUITY:
            self.counters.add("messages_suppressed", cause=Cause.UNEXPECTED)
            return
        source = self._source(origin.stream_id)
        branch = None if source is None else self._branch(source, key)
        if source is None or branch is None:
            self.counters.add("messages_suppressed", cause=Cause.STREAM_LIMIT)
            return
        self._emit(source, source.take(branch, origin, message, now_ns), now_ns, out)

    def _source(self, stream_id: int) -> SourceStream | None:
        source = self._sources.get(stream_id)
        if source is None and (len(self._sources) < self.config.source_streams_max or self._forget_abandoned()):
            source = self._sources[stream_id] = SourceStream(stream_id, self.config, self.counters)
        return source

    def _forget_abandoned(self) -> bool:
        """Forget a source stream without publishers, so that forged ones keep out real ones only as long as their
        publisher stays."""
        while self._abandoned:
            stream_id = next(iter(self._abandoned))
            del self._abandoned[stream_id]
            if self._sources[stream_id].is_smooth:
                del self._sources[stream_id]
                return True
        return False

    def _branch(self, source: SourceStream, key: StreamKey) -> BranchCursor | None:
        branch = source.branches.get(key)
        if branch is None and len(source.branches) < BRANCHES_MAX:
            branch = BranchCursor(key.publisher_id, key.group, source.stream_id, source)
            source.branches[key] = branch
            self._abandoned.pop(source.stream_id, None)
            self.table.add(branch)
            self._sources_of.setdefault(key, set()).add(source.stream_id)
        return branch

    def _of(self, key: StreamKey) -> list[SourceStream]:
        return [self._sources[stream_id] for stream_id in sorted(self._sources_of.get(key, ()))]

    def _emit(
        self, source: SourceStream, outcomes: Iterable[Outcome], now_ns: int, out: list[MergerInstruction]
    ) -> None:
        self._append(source, outcomes, out)
        for victim in self._budget.victims(lambda each: each.held_bytes):
            self._append(victim, victim.release(now_ns), out)

    def _append(self, source: SourceStream, outcomes: Iterable[Outcome], out: list[MergerInstruction]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, PacketMessage):
                _append(out, outcome)
            else:
                out.append(outcome)
        if source.held_bytes or not source.is_smooth:
            self._budget.change(source, source.count_held_bytes())
        if source.is_smooth:
            self._stalled.pop(source.stream_id, None)
        else:
            self._stalled[source.stream_id] = source

    def _give_up(self, now_ns: int, out: list[MergerInstruction]) -> None:
        for source in list(self._stalled.values()):
            while (deadline_ns := source.next_deadline_ns()) is not None and deadline_ns <= now_ns:
                self._emit(source, source.give_up(now_ns), now_ns, out)


def _append(out: list[MergerInstruction], message: PacketMessage) -> None:
    """Append to the last Merged, or to a new one."""
    if out and isinstance(out[-1], Merged):
        out[-1].messages.append(message)
    else:
        out.append(Merged([message]))
