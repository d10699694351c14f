"""Line arbitration: takes equal numbered messages over several lines, and delivers each once and in order.

The first copy counts. A message lost on one line usually arrives soon on the other; a message missing on all lines is
requested; if the request is not answered, the message is reported lost, in order.
"""

from collections import deque
from typing import TypeAlias

from penstock.base.clock import NS_PER_MS, NS_PER_US
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause, Counters
from penstock.base.errors import LocalProtocolError, PacketError
from penstock.convert import SourceBatch
from penstock.feed.config import LineConfig
from penstock.feed.core.lines._lines import LINES_MAX, LineCursor
from penstock.feed.core.lines.events import (
    LineDatagram,
    LineDatagrams,
    LineEvent,
    LineHealth,
    LineHeard,
    LineInstruction,
    LineSilent,
    RequestRetransmission,
    SessionEnded,
    SessionStarted,
    SourceLost,
    SourceReady,
)
from penstock.feed.core.lines.session_candidate import CandidateDatagram, SessionCandidate
from penstock.feed.core.lines.session_names import session_name
from penstock.feed.formats.datagram import DatagramFormat, Segment
from penstock.middleware.core.gaps import Gaps
from penstock.wire import DatagramBatch

BACK_OFF_DOUBLINGS_MAX = 6
REQUESTS_PER_TICK = 16
PAST_SESSIONS = 8

Message: TypeAlias = tuple[bytes, int]
"""Content and receive time of a message."""


class LineArbiter:
    """The core of one source stream. `lines` is the number of lines, without the answers to requests."""

    def __init__(
        self, config: LineConfig, framing: DatagramFormat, *, lines: int = 2, counters: Counters | None = None
    ) -> None:
        if not 1 <= lines < LINES_MAX:
            raise LocalProtocolError(f"a source stream has 1 to {LINES_MAX - 1} lines, not {lines}")
        self.config = config
        self.framing = framing
        self.lines = lines
        self.counters = counters or Counters("lines")
        self.session: str | None = None
        self.cursor = LineCursor(framing.kind)
        self._newest_sequence = 0
        self._window: dict[int, Message] = {}
        self._gaps = Gaps()
        self._end_sequence: int | None = None
        self._past: deque[str] = deque(maxlen=PAST_SESSIONS)
        self._has_begun = False
        self._far_since_ns: int | None = None
        self._far_at_ns: int | None = None  # next request for the messages in between
        self._far_attempts = 0
        self._far_again_ns = 0  # earliest time of the next request for that range
        self._candidate = SessionCandidate(config.jump_wait_ms * NS_PER_MS, self.counters)
        self._restarted = ("", 0)  # the session that was restarted under its name, and how often
        self._title = ""
        self._progress = (0, 0)  # number of messages, and time of their last increase
        self._silent: set[int] = set()
        self._check_ns: int | None = None
        self._armed_ns = 0
        cursor = self.cursor
        self.counters.watch("source_messages", lambda: cursor.messages)
        self.counters.watch("source_duplicates", lambda: sum(cursor.counts(line)[2] for line in range(LINES_MAX)))

    @property
    def next_sequence(self) -> int:
        """The next message that is not accounted for."""
        return self.cursor.next_sequence

    def handle(self, event: LineEvent, now_ns: int) -> list[LineInstruction]:
        match event:
            case LineDatagrams():
                return self.receive_batch(event.batch, now_ns)
            case LineDatagram():
                self._arm(now_ns)
                return self._receive(event.line, event.data, event.receive_ns, now_ns)
            case Tick():
                self._arm(now_ns)
                return self._request(now_ns) + self._look_after_lines(now_ns)
            case _:
                refuse(self, event)

    def next_deadline_ns(self) -> int | None:
        deadlines = (self._gaps.next_nack_ns(), self._far_at_ns, self._check_ns)
        return min((each for each in deadlines if each is not None), default=None)

    def health(self) -> list[LineHealth]:
        return [
            LineHealth(line, line in self._silent, *self.cursor.counts(line), self.cursor.latest_sequence(line))
            for line in range(self.lines)
        ]

    def receive_batch(self, batch: DatagramBatch, now_ns: int) -> list[LineInstruction]:
        """Equals handle(LineDatagrams), without an event."""
        instructions: list[LineInstruction] = []
        cursor = self.cursor
        cursor.reset_batches()
        self._arm(now_ns)
        index, count = 0, len(batch)
        while index < count:
            ready = cursor.take(batch, index, now_ns)
            if ready is not None:
                instructions.append(SourceReady(ready))
            index = cursor.index
            if index < count:
                # datagrams on the slow path may outlive the batch
                data = bytes(batch.datagram(index))
                instructions += self._receive(batch.socket(index), data, batch.arrival_ns(index), now_ns)
                index += 1
        return instructions

    # Handling a datagram

    def _receive(self, line: int, data: bytes, receive_ns: int, now_ns: int) -> list[LineInstruction]:
        try:
            segment = self.framing.decode(data)
        except PacketError as error:
            self.counters.add("packets_dropped", cause=error.cause)
            return []
        if segment.first_sequence < 1:
            self.counters.add("packets_dropped", cause=Cause.LENGTH)  # messages are counted from 1
            return []
        self._newest_sequence = max(self._newest_sequence, self.next_sequence - 1)  # the fast path may have been on
        if segment.session == self.session:
            instructions = self._take(line, segment, receive_ns, now_ns)
        elif segment.session in self._past or line >= self.lines:
            self.counters.add("packets_dropped", cause=Cause.STALE_EPOCH)
            return []
        else:
            instructions = self._take_other((line, segment, data, receive_ns), now_ns)
        self._update_fast_path()
        return instructions

    def _take_other(self, datagram: CandidateDatagram, now_ns: int) -> list[LineInstruction]:
        """Handle a datagram of another session: it begins at once if the current one has ended, otherwise when only
        its datagrams arrive for a time."""
        if not self._candidate.add(datagram, now_ns) and self.session is not None:
            return []
        came = self._candidate.confirm()
        instructions = self._end_session() if self.session is not None else []
        _, segment, data, first_ns = came[0]
        instructions += self._begin_session(segment, data, first_ns, now_ns)
        for line, segment, _, receive_ns in came:
            if segment.session == self.session:
                instructions += self._take(line, segment, receive_ns, now_ns)
        return instructions

    def _forget_doubts(self, *, is_progress: bool) -> None:
        """The current session continues: datagrams from far ahead, or of another session, were stray."""
        self._far_since_ns = self._far_at_ns = None
        if is_progress:
            self._far_attempts = self._far_again_ns = 0
        self._candidate.dismiss()

    def _begin_session(self, segment: Segment, data: bytes, receive_ns: int, now_ns: int) -> list[LineInstruction]:
        is_from_start = self._has_begun or self.config.join == "start"
        first = 1 if is_from_start else max(segment.first_sequence, 1)
        self.session = segment.session
        self._has_begun = True
        self.cursor.begin(data, first)
        self._newest_sequence = first - 1
        self._progress = (self.cursor.messages, now_ns)
        name, resets = self._restarted
        is_reset = name == segment.session
        self._restarted = (segment.session, resets) if is_reset else ("", 0)
        self._title = session_name(name, resets + 1) if is_reset else segment.session
        return [SessionStarted(self._title, first, is_reset, receive_ns)]

    def restart(self) -> list[LineInstruction]:
        """The source restarts or has ended: end the session. The next one may have the same name."""
        if self.session is None:
            return []
        name, resets = self._restarted
        self._restarted = (self.session, resets + 1 if name == self.session else 1)
        instructions = self._end_session()
        self._past.pop()
        return instructions

    def _end_session(self) -> list[LineInstruction]:
        """Deliver the messages that are present, and report the missing ones."""
        assert self.session is not None
        self._gaps.give_up(self.next_sequence, self._newest_sequence, Cause.RESTARTED)
        instructions = self._advance()
        self._past.append(self.session)
        ended = SessionEnded(self._title, self.next_sequence)
        self.session = None
        self._end_sequence = None
        self._forget_doubts(is_progress=True)
        self.cursor.is_smooth = False
        return [*instructions, ended]

    def _take(self, line: int, segment: Segment, receive_ns: int, now_ns: int) -> list[LineInstruction]:
        first, last = segment.first_sequence, segment.next_sequence - 1
        next_sequence = self.next_sequence
        if last >= next_sequence + self.config.window_messages_max:
            self.cursor.note(line, now_ns, 0, 0, last)
            return self._take_far(line, segment, receive_ns, now_ns)
        taken = 0
        for sequence, message in enumerate(segment.messages, first):
            if sequence >= next_sequence and sequence not in self._window:
                self._window[sequence] = (message, receive_ns)
                taken += 1
        self.cursor.note(line, now_ns, taken, len(segment.messages) - taken, last)
        self._forget_doubts(is_progress=taken > 0)
        if taken:
            is_answer = self._gaps.fill(first, last) and line >= self.lines
            if is_answer:
                self._ask_for_the_rest(now_ns)
        if first > self._newest_sequence + 1:
            self._gaps.open(self._newest_sequence + 1, first - 1, now_ns + self.config.gap_wait_us * NS_PER_US)
        self._newest_sequence = max(self._newest_sequence, last)
        if segment.is_end:
            self._end_sequence = segment.first_sequence
        return self._advance() + self._end_if_complete()

    def _take_far(self, line: int, segment: Segment, receive_ns: int, now_ns: int) -> list[LineInstruction]:
        """Handle a message too far ahead to wait for. A single such datagram may be stray; if nothing else arrives
        for a time, the source is there now."""
        if self._far_since_ns is None:
            self._far_since_ns = now_ns
            self._far_at_ns = max(now_ns, self._far_again_ns)
        if now_ns - self._far_since_ns < self.config.jump_wait_ms * NS_PER_MS:
            self.counters.add("packets_dropped", cause=Cause.WINDOW)
            return []
        last_lost = segment.first_sequence - 1
        if last_lost > self._newest_sequence:
            self._gaps.open(self._newest_sequence + 1, last_lost, now_ns)
        self._gaps.give_up(self.next_sequence, last_lost, Cause.WINDOW)
        self._newest_sequence = last_lost
        return self._advance() + self._take(line, segment, receive_ns, now_ns)

    # In order

    def _advance(self) -> list[LineInstruction]:
        """Advance while the next message is present or known to be lost."""
        instructions: list[LineInstruction] = []
        cursor = self.cursor
        while True:
            ready: list[Message] = []
            first = cursor.next_sequence
            while (message := self._window.pop(first + len(ready), None)) is not None:
                ready.append(message)
            if ready:
                cursor.next_sequence += len(ready)
                instructions.append(SourceReady(_batch_of(ready, first)))
            oldest = self._gaps.oldest
            if oldest is None or oldest.given_up is None or oldest.first != cursor.next_sequence:
                return instructions
            self._gaps.pop_oldest()
            cursor.next_sequence = oldest.last + 1
            self.counters.add("source_messages_lost", oldest.last - oldest.first + 1, cause=oldest.given_up)
            instructions.append(SourceLost(oldest.first, oldest.last, oldest.given_up))

    def _end_if_complete(self) -> list[LineInstruction]:
        is_complete = self._end_sequence is not None and self.next_sequence >= self._end_sequence
        return self._end_session() if is_complete else []

    def _update_fast_path(self) -> None:
        """Decide whether the next datagram may take the fast path, which bypasses this class."""
        is_waiting = self._gaps or self._window or self._end_sequence is not None
        is_in_doubt = self._far_since_ns is not None or self._far_attempts or self._candidate
        self.cursor.is_smooth = self.session is not None and not is_waiting and not is_in_doubt

    # Requesting missing messages

    def _ask_for_the_rest(self, now_ns: int) -> None:
        """A request server answers: request the rest of the oldest gap at once."""
        oldest = self._gaps.oldest
        if oldest is not None and oldest.given_up is None:
            oldest.nack_at_ns = now_ns
            self._gaps.find_next_nack_ns()

    def _request(self, now_ns: int) -> list[LineInstruction]:
        instructions = self._request_far(now_ns)
        next_nack_ns = self._gaps.next_nack_ns()
        if self.session is None or next_nack_ns is None or next_nack_ns > now_ns:
            return instructions
        asked = 0
        for gap in self._gaps.hopeful():
            if gap.nack_at_ns > now_ns or asked == REQUESTS_PER_TICK:
                continue
            if gap.attempts >= self.config.request_attempts_max:
                self._gaps.give_up(gap.first, gap.last, Cause.NO_ANSWER)
                continue
            asked += 1
            gap.attempts += 1
            gap.nack_at_ns = now_ns + self._retry_ns(gap.attempts)
            instructions.append(self._requested(gap.first, gap.last))
        self._gaps.find_next_nack_ns()
        instructions += self._advance() + self._end_if_complete()
        self._update_fast_path()
        return instructions

    def _request_far(self, now_ns: int) -> list[LineInstruction]:
        if self._far_at_ns is None or now_ns < self._far_at_ns or self.session is None:
            return []
        if self._far_attempts >= self.config.request_attempts_max:
            self._far_at_ns = None
            return []
        self._far_attempts += 1
        self._far_at_ns = self._far_again_ns = now_ns + self._retry_ns(self._far_attempts)
        return [self._requested(self.next_sequence, self.next_sequence + self.config.window_messages_max - 1)]

    def _requested(self, first: int, last: int) -> RequestRetransmission:
        assert self.session is not None
        self.counters.add("retransmissions_requested")
        return RequestRetransmission(self.session, first, last - first + 1)

    def _retry_ns(self, attempts: int) -> int:
        return self.config.request_retry_ms * NS_PER_MS << min(attempts - 1, BACK_OFF_DOUBLINGS_MAX)

    # Silence

    def _arm(self, now_ns: int) -> None:
        if self._check_ns is None:
            self._check_ns = now_ns + self.config.silent_ms * NS_PER_MS // 4
            self._armed_ns = now_ns
            self._progress = (self.cursor.messages, now_ns)

    def _look_after_lines(self, now_ns: int) -> list[LineInstruction]:
        if self._check_ns is None or now_ns < self._check_ns:
            return []
        instructions: list[LineInstruction] = []
        period_ns = self.config.silent_ms * NS_PER_MS // 4
        # an arbiter that was not called cannot judge the silence of lines
        was_listening = now_ns - self._check_ns < period_ns
        self._check_ns = now_ns + period_ns
        for line in range(self.lines):
            heard_ns = max(self.cursor.heard_ns(line), self._armed_ns)
            is_silent = now_ns - heard_ns >= self.config.silent_ms * NS_PER_MS
            if is_silent and was_listening and line not in self._silent:
                self._silent.add(line)
                self.counters.add("lines_silent")
                instructions.append(LineSilent(line))
            elif not is_silent and line in self._silent:
                self._silent.discard(line)
                instructions.append(LineHeard(line))
        return instructions + self._notice_reset(now_ns)

    def _notice_reset(self, now_ns: int) -> list[LineInstruction]:
        """If the lines only repeat old messages for long, the source has restarted its numbers without notice."""
        messages, since_ns = self._progress
        heard = [line for line in range(self.lines) if self.cursor.heard_ns(line) > since_ns]
        is_behind = heard and all(self.cursor.latest_sequence(line) < self.next_sequence - 1 for line in heard)
        if self.session is None or self.cursor.messages != messages or not is_behind:
            self._progress = (self.cursor.messages, now_ns)
        elif now_ns - since_ns >= self.config.reset_wait_ms * NS_PER_MS:
            self.counters.add("source_resets")
            return self.restart()
        return []


def _batch_of(messages: list[Message], first: int) -> SourceBatch:
    batch = SourceBatch()
    batch.point_at(b"".join(message for message, _ in messages))
    offset = 0
    for sequence, (message, receive_ns) in enumerate(messages, first):
        batch.append(sequence, offset, len(message), receive_ns)
        offset += len(message)
    return batch


__all__ = [
    "LineArbiter",
    "LineDatagram",
    "LineDatagrams",
    "LineEvent",
    "LineHealth",
    "LineHeard",
    "LineInstruction",
    "LineSilent",
    "RequestRetransmission",
    "SessionEnded",
    "SessionStarted",
    "SourceLost",
    "SourceReady",
]
