"""One source stream that several adapters send: which copy of a message counts, and which messages wait for others.

All adapters that are synchronised with a term give its messages the same numbers. A *branch* is the source stream as
one publisher sends it. A branch is continuous while its publisher's stream has no loss: then no message for this
receiver is between two consecutive messages of the branch, whatever their numbers are.

    a message whose number follows the last one's, or whose branch is continuous from there      goes out
    one whose number has been out already                                                        is a duplicate
    another one                                              is held until other branches bring what is before it
    one of an older lineage (wire/term.py)                                                       is fenced
    one of a newer lineage    waits until nothing of the one before is missing, and for the DISCONTINUITY; another term
                              of the same lineage has the same numbers
    one of a newer lineage of an earlier trading date        waits, for wait_ms, for the lineage of the current session
    a DISCONTINUITY that is repeated (IMAGE)       tells of a lineage begun earlier; its branch is continuous from the
                                                   next message on
    a DISCONTINUITY with the index 1               ends the session, behind the message of its number
"""

import heapq
from collections.abc import Iterator
from typing import Annotated, TypeAlias

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.base.counters import Cause, Counters
from penstock.base.decoding import DECODE_ERRORS
from penstock.middleware.config import MergerConfig
from penstock.middleware.core._merge import BranchCursor, SourceCursor
from penstock.middleware.core.budget import PACKET_OVERHEAD
from penstock.middleware.core.events import Discontinuity, MergeGap, SessionEvent, SessionKind, StreamKey
from penstock.middleware.core.reserved_topics import DISCONTINUITY_TOPIC
from penstock.wire import Origin, OriginFlag, PacketMessage, find_origin
from penstock.wire.term import SESSION_TAG_SHIFT, is_same_session, lineage, session_tag

SYNCHRONISED = int(OriginFlag.SYNCHRONISED)
DISCONTINUITY = int(OriginFlag.DISCONTINUITY)
IMAGE = int(OriginFlag.IMAGE)

REASONS = ("start", "source_gap", "session", "promotion", "state")
END = "end"
"""The reason of the announcement that a session has ended; it begins no lineage."""

END_INDEX = 1
"""The message index in the ORIGIN of such an announcement, which identifies it even if the content is sealed."""

UNSEEN = "unseen"
"""The reason of a discontinuity whose announcement was lost."""

BRANCHES_MAX = 256
"""Maximum number of adapters of one feed."""

Outcome: TypeAlias = PacketMessage | MergeGap | Discontinuity | SessionEvent
Number = Annotated[int, msgspec.Meta(ge=0)]


class DiscontinuityNote(msgspec.Struct, frozen=True):
    """The content of a DISCONTINUITY message, as JSON."""

    reason: Annotated[str, msgspec.Meta(max_length=64)]
    lost: Annotated[list[tuple[Number, Number]], msgspec.Meta(max_length=4_096)] = []
    session: Annotated[str, msgspec.Meta(max_length=256)] = ""
    trading_date: Annotated[str, msgspec.Meta(pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2})?\Z")] = ""
    """Of the session, as 2026-01-30; empty if unknown."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def decode(content: bytes | memoryview) -> "DiscontinuityNote":
        """Decode a note. An unreadable one is still a discontinuity, with an unknown reason."""
        try:
            return _note.decode(content)
        except DECODE_ERRORS:
            return DiscontinuityNote("unknown")


_note = msgspec.json.Decoder(DiscontinuityNote)


def session_event_in(message: PacketMessage) -> SessionEvent | None:
    """The session event in a message, for receivers that do not merge; several adapters may announce the same event,
    also repeatedly."""
    origin = find_origin(message.extensions) if message.topic == DISCONTINUITY_TOPIC else None
    if origin is None or not origin.flags & SYNCHRONISED:
        return None
    note = DiscontinuityNote.decode(message.payload)
    tag = origin.flags >> SESSION_TAG_SHIFT
    kind: SessionKind = "end" if origin.message_index == END_INDEX else "begin"
    return SessionEvent(kind, origin.stream_id, note.session, note.trading_date, tag) if tag else None


class EarlyMessage(msgspec.Struct):
    """A message with its position in the branch: it follows message `after` of term `after_term`, if known."""

    origin: Origin
    message: PacketMessage
    after_term: int
    after: int | None
    since_ns: int
    is_kept: bool = False
    trading_date: str = ""
    """Of the session, if it announces a lineage and the date is known."""

    @property
    def is_discontinuity(self) -> bool:
        return bool(self.origin.flags & DISCONTINUITY)

    @property
    def is_end(self) -> bool:
        """True if the message announces the session's end."""
        return self.is_discontinuity and self.origin.message_index == END_INDEX


class SourceStream(SourceCursor):
    """The cursor is the current position; the fast path advances it too."""

    def __init__(self, stream_id: int, config: MergerConfig, counters: Counters) -> None:
        self.stream_id = stream_id
        self.is_smooth = True
        self.is_started = False
        self.begun_after = 0
        """Every message after this number was expected, since the stream was first seen or since its last
        discontinuity."""
        self.branches: dict[StreamKey, BranchCursor] = {}
        self.session_tag = 0  # equal for all messages of a lineage
        self._session = self._trading_date = ""  # if announced: two sessions may have the same tag or name
        self._is_ended = False  # the session has ended
        self._early_end: EarlyMessage | None = None  # the announced end, while messages before it are missing
        self._held: dict[int, EarlyMessage] = {}
        self._order: list[int] = []  # a heap of held numbers
        self._waiting: dict[int, list[EarlyMessage]] = {}  # by higher term, in order of arrival
        self._waiting_count = 0
        self._announced: dict[int, EarlyMessage] = {}  # the first announcement of each waiting term
        self._kept_bytes = 0
        self.held_bytes = 0  # see ReceiveBudget
        self._stalled_ns: int | None = None  # time since when no held message was released
        self._config = config
        self._counters = counters

    def take(self, branch: BranchCursor, origin: Origin, message: PacketMessage, now_ns: int) -> Iterator[Outcome]:
        """Handle the next message of a branch; yield the messages and reports that it releases."""
        if origin.flags & SYNCHRONISED:
            after = branch.number if branch.is_continuous else None
            early = EarlyMessage(origin, message, branch.term, after, now_ns)
            branch.number = origin.message_sequence
            branch.is_synchronised, branch.is_continuous = True, not origin.flags & IMAGE
            branch.term = origin.term
            yield from self._consider(early)
        else:
            self._drop(Cause.UNSYNCHRONISED)
            branch.is_synchronised = branch.is_continuous = False
            branch.term = origin.term
        if not self.is_smooth:
            yield from self._settle(now_ns)

    def lose(self, key: StreamKey) -> None:
        """The publisher's stream has lost packets."""
        if (branch := self.branches.get(key)) is not None:
            branch.is_continuous = False

    def end(self, key: StreamKey, now_ns: int) -> Iterator[Outcome]:
        """The publisher's stream has ended."""
        if self.branches.pop(key, None) is not None and not self.is_smooth:
            yield from self._settle(now_ns)

    def start_after(self, term: int, number: int, now_ns: int) -> Iterator[Outcome]:
        """Continue after this message, unless the stream is further or has another lineage."""
        if not self.is_started:
            self._begin(term, number)
        elif self.is_same_lineage(term) and number > self.number:
            self.number = number
            yield from self._settle(now_ns)

    def next_deadline_ns(self) -> int | None:
        since_ns = [] if self._stalled_ns is None else [self._stalled_ns]
        if self._waiting:
            since_ns.append(min(of_term[0].since_ns for of_term in self._waiting.values()))
        return min(since_ns) + self._config.wait_ms * NS_PER_MS if since_ns else None

    def give_up(self, now_ns: int, cause: Cause = Cause.NO_ANSWER) -> Iterator[Outcome]:
        """Give up the messages that are missing now."""
        yield from self._go_on_without(cause)
        yield from self._settle(now_ns)

    def count_held_bytes(self) -> int:
        """Bytes of the messages that are held back, with the overhead of each."""
        count = len(self._held) + self._waiting_count + (self._early_end is not None)
        return self._kept_bytes + PACKET_OVERHEAD * count

    def release(self, now_ns: int) -> Iterator[Outcome]:
        """Release all messages that are held back, and give up missing messages."""
        while not self.is_smooth:
            yield from self.give_up(now_ns, Cause.MEMORY)

    def _consider(self, early: EarlyMessage) -> Iterator[Outcome]:
        origin = early.origin
        if not self.is_started:
            if origin.flags & IMAGE:
                return
            if early.is_discontinuity:
                yield from self._end_session(early) if early.is_end else self._adopt_announced(early)
                return
            self._begin(origin.term, origin.message_sequence - 1)
        if not self.is_same_lineage(origin.term):
            if origin.term < self.term:
                self._drop(Cause.FENCED)
            else:
                self._keep(early)
                self._waiting.setdefault(origin.term, []).append(early)
                self._waiting_count += 1
                if early.is_discontinuity and not early.is_end:
                    early.trading_date = DiscontinuityNote.decode(early.message.payload).trading_date
                    self._announced.setdefault(origin.term, early)
        elif early.is_end and not self._is_ended:
            self.term = max(self.term, origin.term)
            yield from self._place_end(early)
        elif early.is_discontinuity:
            self._drop(Cause.DUPLICATE)
        else:
            self.term = max(self.term, origin.term)
            yield from self._place(early)

    def _place(self, early: EarlyMessage) -> Iterator[Outcome]:
        number = early.origin.message_sequence
        known = self._held.get(number)
        if number <= self.number:
            self._drop(Cause.DUPLICATE)
        elif self._is_next(early):
            yield from self._release(early)
        elif known is None:
            self._keep(early)
            self._held[number] = early
            heapq.heappush(self._order, number)
        else:
            self._drop(Cause.DUPLICATE)
            if self._is_sequel(early) and (not self._is_sequel(known) or (early.after or 0) < (known.after or 0)):
                known.after_term, known.after = early.after_term, early.after

    def _place_end(self, early: EarlyMessage) -> Iterator[Outcome]:
        known = self._early_end
        if known is not None:
            self._drop(Cause.DUPLICATE)
            if self._is_sequel(early) and (not self._is_sequel(known) or (early.after or 0) < (known.after or 0)):
                known.after_term, known.after = early.after_term, early.after
        elif self._is_due(early):
            yield from self._end_session(early)
        else:
            self._keep(early)
            self._early_end = early

    def _is_due(self, end: EarlyMessage) -> bool:
        """True if no message is missing before the session's end."""
        is_sequel = self._is_sequel(end) and end.after is not None and end.after <= self.number
        return is_sequel or end.origin.message_sequence <= self.number

    def is_same_lineage(self, term: int) -> bool:
        """True if the term is of the current lineage."""
        return lineage(term) == lineage(self.term)

    def _is_sequel(self, early: EarlyMessage) -> bool:
        """True if its branch is continuous from a term of the current lineage."""
        return early.after is not None and self.is_same_lineage(early.after_term)

    def _is_next(self, early: EarlyMessage) -> bool:
        if early.origin.message_sequence == self.number + 1:
            return True
        return early.after is not None and self.is_same_lineage(early.after_term) and early.after <= self.number

    def _release(self, early: EarlyMessage) -> Iterator[Outcome]:
        origin = early.origin
        self.number = origin.message_sequence
        position = (origin.source_sequence, origin.message_index)
        tag = origin.flags >> SESSION_TAG_SHIFT
        if tag != self.session_tag:
            was_known = self.session_tag != 0
            self._begin_session("" if tag else self._session, "" if tag else self._trading_date, tag)
            if tag:
                yield SessionEvent("begin" if was_known else "running", self.stream_id, tag=tag)
        if self.has_position and position <= (self.source_sequence, self.message_index):
            self._drop(Cause.DUPLICATE)  # delivered before under another number
            return
        self.source_sequence, self.message_index = position
        self.has_position = True
        self._counters.add("messages_merged")
        yield early.message

    def _settle(self, now_ns: int) -> Iterator[Outcome]:
        """Release messages while the next one is known."""
        begun_at = self.number
        while True:
            before = self._progress()
            yield from self._release_held()
            yield from self._release_end()
            yield from self._take_up_waiting()
            if self._progress() == before:
                if not self._is_overfull():
                    break
                yield from self._go_on_without(Cause.WINDOW)
        if not self._held and self._early_end is None:
            self._stalled_ns = None
        elif self._stalled_ns is None or self.number != begun_at:
            self._stalled_ns = now_ns
        self.is_smooth = not self._held and not self._waiting and self._early_end is None

    def _progress(self) -> tuple[int, int, int, int, bool]:
        return self.term, self.number, len(self._held), self._waiting_count, self._early_end is None

    def _is_overfull(self) -> bool:
        count = len(self._held) + self._waiting_count
        return count > self._config.held_messages_max or self._kept_bytes > self._config.held_bytes_max

    def _release_held(self) -> Iterator[Outcome]:
        while self._order:
            number = self._order[0]
            early = self._held[number]
            if number > self.number and not self._is_next(early):
                if self._can_be_filled(number):
                    return
                yield self._skip_to(number, Cause.GONE)
            heapq.heappop(self._order)
            del self._held[number]
            self._kept_bytes -= len(early.message.payload)
            if number > self.number:
                yield from self._release(early)
            else:
                self._drop(Cause.DUPLICATE)

    def _release_end(self) -> Iterator[Outcome]:
        """Announce the session's end when no message before it can arrive any more."""
        end = self._early_end
        if end is None or self._order:
            return
        number = end.origin.message_sequence
        if not self._is_due(end):
            if self._can_be_filled(number):
                return
            yield self._skip_to(number + 1, Cause.GONE)
        self._early_end = None
        self._kept_bytes -= len(end.message.payload)
        yield from self._end_session(end)

    def _can_be_filled(self, number: int) -> bool:
        """True if a branch may still deliver the missing messages before this number: the branch has not yet reached
        the number, or the current lineage."""
        return any(
            branch.is_synchronised
            and (branch.number < number if self.is_same_lineage(branch.term) else branch.term < self.term)
            for branch in self.branches.values()
        )

    def _take_up_waiting(self) -> Iterator[Outcome]:
        """Handle waiting messages of terms whose relation to the current term has become known."""
        known = sorted(term for term in self._waiting if term <= self.term or self.is_same_lineage(term))
        for term in known:
            self._announced.pop(term, None)
            for early in self._waiting.pop(term, ()):
                self._waiting_count -= 1
                self._kept_bytes -= len(early.message.payload)
                yield from self._consider(early)
        if known or not self._waiting or self._held or self._early_end is not None:
            return
        is_past, term = self._next_waiting()
        is_last_chance = all(branch.term >= term for branch in self.branches.values())
        if not is_past and (term in self._announced or is_last_chance):
            yield from self._adopt_waiting(term)

    def _next_waiting(self) -> tuple[bool, int]:
        """Return the lowest waiting term, with True if its lineage returns to an earlier trading date. Other terms come
        first: the adapter that announced such a lineage usually announces the current session next."""
        dates = {lineage(term): early.trading_date for term, early in self._announced.items()}
        past = {each for each, trading_date in dates.items() if "" < trading_date < self._trading_date}
        return min((lineage(term) in past, term) for term in self._waiting)

    def _adopt_waiting(self, term: int) -> Iterator[Outcome]:
        announced = self._announced.pop(term, None)
        if announced is None:
            yield self._adopt_unseen(term)
            return
        of_term = self._waiting[term]
        of_term.remove(announced)
        if not of_term:
            del self._waiting[term]
        self._waiting_count -= 1
        self._kept_bytes -= len(announced.message.payload)
        yield from self._adopt_announced(announced)

    def _go_on_without(self, cause: Cause) -> Iterator[Outcome]:
        if self._order:
            yield self._skip_to(self._order[0], cause)
        elif self._early_end is not None:
            yield self._skip_to(self._early_end.origin.message_sequence + 1, cause)
        elif self._waiting:
            _, term = self._next_waiting()
            yield from self._adopt_waiting(term)

    def _skip_to(self, number: int, cause: Cause) -> MergeGap:
        gap = MergeGap(self.stream_id, self.term, self.number + 1, number - 1, cause)
        self._counters.add("messages_lost", gap.last - gap.first + 1, cause=cause)
        self.number = gap.last
        return gap

    def _adopt_announced(self, early: EarlyMessage) -> Iterator[Outcome]:
        origin = early.origin
        note = DiscontinuityNote.decode(early.message.payload)
        self._begin(origin.term, origin.message_sequence)
        self._counters.add("discontinuities", cause=note.reason if note.reason in REASONS else "unknown")
        yield Discontinuity(
            self.stream_id,
            origin.term,
            self.number,
            origin.source_sequence,
            note.reason,
            note.lost,
            note.session,
            note.trading_date,
        )
        tag = origin.flags >> SESSION_TAG_SHIFT or session_tag(note.session)
        if self._is_other_session(note, tag):
            self._begin_session(note.session, note.trading_date, tag)
            if tag:
                yield SessionEvent("begin", self.stream_id, note.session, note.trading_date, tag)
        elif note.session:
            self._session, self._trading_date = note.session, note.trading_date or self._trading_date

    def _is_other_session(self, note: DiscontinuityNote, tag: int) -> bool:
        """Without both names, only the tags distinguish sessions."""
        if not note.session or not self._session:
            return tag != self.session_tag
        return not is_same_session(note.session, note.trading_date, self._session, self._trading_date)

    def _begin_session(self, name: str, trading_date: str, tag: int) -> None:
        """Start a session: positions in the source begin again."""
        self._session, self._trading_date, self.session_tag = name, trading_date, tag
        self.has_position = self._is_ended = False

    def _end_session(self, early: EarlyMessage) -> Iterator[Outcome]:
        origin, note = early.origin, DiscontinuityNote.decode(early.message.payload)
        if not self.is_started:
            self._begin(origin.term, origin.message_sequence)
        self.number = max(self.number, origin.message_sequence)
        self._is_ended = True
        tag = origin.flags >> SESSION_TAG_SHIFT
        if not self.session_tag:  # nothing of the session has arrived before: its late announcement must not begin it
            self._session, self._trading_date, self.session_tag = note.session, note.trading_date, tag
        yield SessionEvent("end", self.stream_id, note.session or self._session, note.trading_date, tag)

    def _adopt_unseen(self, term: int) -> Discontinuity:
        first = min((early.origin for early in self._waiting[term]), key=_number_of)
        self._begin(term, first.message_sequence - 1)
        self._counters.add("discontinuities", cause=UNSEEN)
        return Discontinuity(self.stream_id, term, self.number, first.source_sequence, UNSEEN)

    def _begin(self, term: int, number: int) -> None:
        self.term, self.number = term, number
        self.begun_after = number
        self.is_started = True

    def _keep(self, early: EarlyMessage) -> None:
        if not early.is_kept:
            early.message = early.message.with_payload(bytes(early.message.payload))  # the datagram's buffer is reused
            early.is_kept = True
            self._counters.add("messages_held")
        self._kept_bytes += len(early.message.payload)
        self.is_smooth = False

    def _drop(self, cause: Cause) -> None:
        self._counters.add("messages_suppressed", cause=cause)


def _number_of(origin: Origin) -> int:
    return origin.message_sequence
