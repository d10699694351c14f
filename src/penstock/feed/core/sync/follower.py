"""One source stream of a backup: compares its conversion with the active adapter's, and repairs differences.

A StreamState of the active adapter is compared with this adapter's own conversion at the same source position:

    the position is ahead                conversion stops there, to be compared (SYNC-3)
    it stays ahead, no progress here     the state is fetched (SYNC-9)
    equal digest, equal number           synchronised (SYNC-2)
    equal digest, not yet sent           the number is set to the active adapter's: synchronised (SYNC-3)
    equal digest, already sent           pauses, until the active adapter is ahead (SYNC-4)
    other digest                         the differing units are fetched (SYNC-5); source messages are held meanwhile
    position passed, no checkpoint       pauses as well
    another converter plan               never synchronised: other messages would have the same numbers
"""

from penstock.base.clock import NS_PER_MS
from penstock.base.errors import PenstockError
from penstock.feed.config import SynchroniserConfig
from penstock.feed.core.conversion import Checkpoint
from penstock.feed.core.events import Announce, Reason, SendPeer, SessionBegan, SynchronisationChanged, SyncInstruction
from penstock.feed.core.lines.session_names import is_later_of_same
from penstock.feed.core.sync.announcement import announcement_body, announcement_message
from penstock.feed.core.sync.flow import Mode, StreamFlow
from penstock.feed.core.sync.image_transfer import ImageReceiver
from penstock.feed.core.sync.messages import Announced, ImageBegin, ImageChunk, ImageRefused, ImageRequest, StreamState
from penstock.middleware.core.source_stream import DiscontinuityNote
from penstock.wire.term import Term, lineage

STUCK_INTERVALS = 3
"""Time without progress, in multiples of state_interval_ms, after which the conversion state is fetched."""

OTHER_PLAN = "the active adapter converts by another table, or with other parameters"


class StreamFollower:
    """Compares one source stream with the active adapter's while this adapter is a backup."""

    def __init__(self, flow: StreamFlow, config: SynchroniserConfig, term: int) -> None:
        self.flow = flow
        self._term = term
        self._is_synchronised = False
        self._failures = 0
        self._announced: Announced | None = None
        self._config = config
        self._pending: dict[int, StreamState] = {}
        self._image: ImageReceiver | None = None
        self._positions = (0, 0)  # the last positions, of the active adapter and of this one
        self._positions_ns = 0  # time since when they are unchanged
        self._requests = 0
        self._trusts_units = True
        self._has_other_plan = False
        flow.stamp(term, is_synchronised=False)

    @property
    def is_synchronised(self) -> bool:
        return self._is_synchronised

    @property
    def failures(self) -> int:
        """Comparisons that failed since the last successful one, the last discontinuity, or reset_failures()."""
        return self._failures

    @property
    def announced(self) -> Announced | None:
        """The announcement that began the current lineage."""
        return self._announced

    @property
    def is_awaiting(self) -> bool:
        """True if a session has begun here without losses, and the active adapter may not have entered it yet."""
        return self.flow.mode is Mode.AWAITING and not self.flow.is_damaged

    # Messages of the active adapter

    def follow(self, term: int) -> list[SyncInstruction]:
        """Follow a higher term. Numbers are comparable within a lineage, so a synchronised stream stays
        synchronised. Failed comparisons with an earlier lineage do not count any more."""
        is_same_lineage = lineage(term) == lineage(self._term)
        self._term = term
        self._pending.clear()
        instructions = self.abandon_repair()
        if not is_same_lineage:
            instructions += self.unsynchronise("the active adapter began anew")
            self._announced, self._failures = None, 0
        self._set_stop()
        return instructions

    def lead(self, term: int) -> None:
        """This adapter becomes active: comparisons end."""
        self._term = term
        self._is_synchronised, self._failures = False, 0
        self._image = None
        self._pending.clear()
        self.flow.stop_before(None)
        self.flow.stamp(term, is_synchronised=True)

    def begin_lineage(self, reason: Reason) -> list[SyncInstruction]:
        """As the active adapter: announce where the stream continues after a discontinuity, and continue."""
        flow = self.flow
        is_affected = flow.mode in (Mode.BROKEN, Mode.AWAITING) or reason == "promotion"
        flow.enter_flowing()
        flow.forget_checkpoints()
        lost = flow.take_losses()
        note = DiscontinuityNote(reason, lost if is_affected else [], flow.session or "", flow.trading_date)
        number = flow.converter.next_message_sequence - 1
        self._announced = Announced(self._term, flow.stream_id, number, flow.position, announcement_body(note))
        message = announcement_message(self._announced, self._term, flow.flags, is_repeated=False)
        return [Announce(flow.stream_id, message), *flow.drain()]

    def step_down(self) -> list[SyncInstruction]:
        """This adapter is no longer the active one; its stream is unsynchronised until a comparison succeeds."""
        self.flow.stamp(self._term, is_synchronised=False)
        if self.flow.mode is not Mode.BROKEN:
            return []
        self.flow.enter_flowing()
        return self.flow.drain()

    def announce(self, announced: Announced) -> None:
        if lineage(announced.term) == lineage(self._term):
            self._announced = announced

    def compare(self, state: StreamState, now_ns: int) -> list[SyncInstruction]:
        """Compare with a position of the active adapter of this term."""
        flow = self.flow
        self._has_other_plan = False
        mine = flow.session or ""  # a stream without messages has none
        is_later = is_later_of_same(state.session, mine)
        if flow.mode in (Mode.REPAIRING, Mode.BROKEN) or self._announced is None:
            return []
        if state.session != mine and not is_later:
            return []
        if flow.mode is Mode.AWAITING:
            flow.enter_flowing()
        instructions = self._adopt_session_name(state.session) if is_later else []
        return instructions + self._compare(state, now_ns)

    def refuse_plan(self) -> list[SyncInstruction]:
        """The active adapter uses another plan, so its numbers denote different messages. Logged once."""
        if self._has_other_plan:
            return []
        self._has_other_plan = True
        self._pending.clear()
        instructions = self.abandon_repair()
        changes = self.unsynchronise(OTHER_PLAN)
        self._set_stop()
        return [*instructions, *(changes or [SynchronisationChanged(self.flow.stream_id, False, OTHER_PLAN)])]

    def _adopt_session_name(self, name: str) -> list[SyncInstruction]:
        """Use the active adapter's name of the session. A source may restart its numbers under the same name; an
        adapter that started later does not know how often."""
        self._pending.clear()
        self.flow.rename_session(name)
        return self.unsynchronise("the session is another one")

    def _compare(self, state: StreamState, now_ns: int) -> list[SyncInstruction]:
        flow = self.flow
        if flow.is_damaged:
            return self._repair("this adapter lost source messages", now_ns)
        at = state.next_source_sequence
        if at > flow.position:
            if self._is_stuck(at, now_ns):
                return self._repair("this adapter does not receive the source messages of the active one", now_ns)
            return self._expect(state, now_ns)
        mine = flow.converter.checkpoint_now() if at == flow.position else flow.checkpoint(at)
        if mine is not None:
            return self._judge(state, mine, now_ns)
        if self._is_synchronised:
            return []
        self._failures += 1
        return self._pause(now_ns)

    def _is_stuck(self, at: int, now_ns: int) -> bool:
        """True if neither adapter makes progress and this one is behind: it started after the missing messages."""
        positions = (at, self.flow.position)
        if positions != self._positions or self._is_synchronised:
            self._positions, self._positions_ns = positions, now_ns
        return now_ns - self._positions_ns >= STUCK_INTERVALS * self._config.state_interval_ms * NS_PER_MS

    def _expect(self, state: StreamState, now_ns: int) -> list[SyncInstruction]:
        self._pending[state.next_source_sequence] = state
        if len(self._pending) > self._config.checkpoints_max:
            self._pending.pop(next(iter(self._pending)))
        if self.flow.mode is Mode.PAUSING:
            self.flow.enter_flowing()
        self._set_stop()
        return self.go_on(now_ns)

    def go_on(self, now_ns: int) -> list[SyncInstruction]:
        """Convert the backlog up to each position to compare; then compare at new checkpoints."""
        instructions = self.flow.drain()
        while self.flow.is_at_stop():
            state = self._pending.pop(self.flow.position)
            instructions += self._judge(state, self.flow.converter.checkpoint_now(), now_ns)
            self._set_stop()
            instructions += self.flow.drain()
        for checkpoint in self.flow.fresh_checkpoints():
            expected = self._pending.pop(checkpoint.next_source_sequence, None)
            if expected is not None and self._is_synchronised:
                instructions += self._judge(expected, checkpoint, now_ns)
        self._set_stop()
        return instructions

    def _set_stop(self) -> None:
        """Stop an unsynchronised stream at the next position to compare; a synchronised one is compared at its own
        checkpoints."""
        position = self.flow.position
        for passed in [at for at in self._pending if at < position]:
            del self._pending[passed]
        self.flow.stop_before(None if self._is_synchronised else min(self._pending, default=None))

    def _judge(self, state: StreamState, mine: Checkpoint, now_ns: int) -> list[SyncInstruction]:
        if state.digest != mine.digest:
            return self._repair("the conversion state differs", now_ns)
        if state.next_message_sequence == mine.next_message_sequence:
            return self._synchronise("numbers and state match")
        instructions = self._fail("the numbers differ")
        if state.next_source_sequence != self.flow.position:
            return instructions + self._pause(now_ns)
        self.flow.renumber(state.next_message_sequence)
        return instructions + self._synchronise("the numbers were set to the active adapter's")

    # Results of a comparison

    def _synchronise(self, why: str) -> list[SyncInstruction]:
        self._failures = 0
        if self.flow.mode is Mode.PAUSING:
            self.flow.enter_flowing()
        if self._is_synchronised:
            return []
        self._is_synchronised = True
        self.flow.stamp(self._term, is_synchronised=True)
        self.flow.forget_losses()
        self._set_stop()
        return [SynchronisationChanged(self.flow.stream_id, True, why), *self._repeat_announcement()]

    def _repeat_announcement(self) -> list[SyncInstruction]:
        """Repeat the announcement for subscribers that receive only this adapter: numbers may be missing since it
        was last synchronised."""
        assert self._announced is not None
        return [
            Announce(
                self.flow.stream_id,
                announcement_message(self._announced, self._term, self.flow.flags, is_repeated=True),
            )
        ]

    def _fail(self, why: str) -> list[SyncInstruction]:
        self._failures += 1
        return self.unsynchronise(why)

    def unsynchronise(self, why: str) -> list[SyncInstruction]:
        self.flow.stamp(self._term, is_synchronised=False)
        if not self._is_synchronised:
            return []
        self._is_synchronised = False
        self._set_stop()
        return [SynchronisationChanged(self.flow.stream_id, False, why)]

    def _pause(self, now_ns: int) -> list[SyncInstruction]:
        return self.flow.pause(now_ns) if self.flow.mode is Mode.FLOWING else []

    # Losses and sessions of this adapter's own source stream

    def lose(self, first: int, last: int) -> list[SyncInstruction]:
        self.flow.lose(first, last)
        self._pending.clear()
        self._set_stop()
        return self.unsynchronise("source messages were lost")

    def begin_session(self, event: SessionBegan) -> list[SyncInstruction]:
        """Hold the messages of a new session until the active adapter has entered it, because receivers could not
        use them earlier. If the active adapter dies in the meantime, this adapter continues with the session's first
        message."""
        is_change, is_first = self.flow.is_change(event), self.flow.session is None
        instructions = self.abandon_repair() if is_change else []
        if is_change:
            self._pending.clear()
            instructions += self.unsynchronise("the session changed")
        self.flow.begin_session(event)
        if is_change and not is_first:
            self.flow.hold(Mode.AWAITING)
        self._set_stop()
        return instructions

    def reset_failures(self) -> None:
        self._failures = 0

    def confirm_term(self) -> None:
        """The term is on the disk: synchronised messages may carry it."""
        if self._is_synchronised:
            self.flow.stamp(self._term, is_synchronised=True)

    def return_to_service(self) -> None:
        self.flow.send(is_sending=True)

    def leave(self) -> list[SyncInstruction]:
        """Go off-line: publish and compare nothing until the adapter returns to service."""
        instructions = self.abandon_repair()
        self._pending.clear()
        instructions += self.unsynchronise("off-line")
        self._set_stop()
        self.flow.send(is_sending=False)
        return instructions

    # Repair

    def _repair(self, why: str, now_ns: int) -> list[SyncInstruction]:
        instructions = self._fail(why)
        self.flow.hold(Mode.REPAIRING)
        self._pending.clear()
        self._set_stop()
        return [*instructions, self._request(now_ns)]

    def _request(self, now_ns: int) -> SyncInstruction:
        self._requests += 1
        self._image = ImageReceiver(self._config, self._requests, now_ns)
        known = self.flow.converter.state.unit_digests().tobytes() if self._trusts_units else b""
        at_least = max(self.flow.position, self.flow.held_from)
        request = ImageRequest(self._term, self.flow.stream_id, self._requests, at_least, known)
        return SendPeer(Term.of(self._term).claimant, request)

    def abandon_repair(self) -> list[SyncInstruction]:
        """No adapter can send the rest of the image: continue with the previous conversion state."""
        self._image = None
        if self.flow.mode is not Mode.REPAIRING:
            return []
        self.flow.enter_flowing()
        return self.flow.drain()

    def next_due_ns(self) -> int | None:
        return self.flow.resume_ns if self._image is None else self._image.expiry_ns

    def tick(self, now_ns: int) -> list[SyncInstruction]:
        if self._image is not None and now_ns >= self._image.expiry_ns:
            return [self._request(now_ns)]
        if self.flow.resume_ns is not None and now_ns >= self.flow.resume_ns:
            return self.flow.resume(now_ns)
        return []

    def take_image(self, message: ImageBegin | ImageChunk | ImageRefused, now_ns: int) -> list[SyncInstruction]:
        image = self._image
        if image is None or message.request != image.request:
            return []
        if isinstance(message, ImageRefused):
            return self.abandon_repair()
        if not image.take(message, now_ns):
            return [self._request(now_ns)]
        return self._install(image, now_ns) if image.is_complete else []

    def _install(self, image: ImageReceiver, now_ns: int) -> list[SyncInstruction]:
        begin, flow = image.begin, self.flow
        assert begin is not None
        if begin.term != self._term or begin.session != (flow.session or ""):
            return self.abandon_repair()
        if begin.next_source_sequence < flow.held_from:
            return [self._request(now_ns)]  # messages between the image and the backlog were lost
        try:
            flow.converter.state.install(image.chunks)
        except PenstockError:
            self._trusts_units = False
            return [self._request(now_ns)]
        self._trusts_units = flow.converter.state.digest == begin.digest
        if not self._trusts_units:
            return [self._request(now_ns)]
        self._image = None
        flow.take_over(begin.next_source_sequence, begin.next_message_sequence)
        self._set_stop()
        return self.go_on(now_ns)
