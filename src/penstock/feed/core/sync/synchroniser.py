"""The synchroniser: keeps the adapters of a feed equal, so that any of them can replace the active one.

    synchroniser = Synchroniser(config, {1: converter}, term=term_on_disk, now_ns=now_ns)
    instructions = synchroniser.handle(SourceMessages(1, batch), now_ns)

One adapter is active, the others are backups; all of them convert and send all the time. Invariant: a message number of
a source stream has one content in all synchronised messages of a lineage (wire/term.py). Therefore

- a term is on this adapter's disk before any message carries it (PersistTerm, TermPersisted);
- a backup whose own source stream breaks is unsynchronised before it sends anything more;
- an active adapter whose source stream breaks sends nothing more of it in its term: a synchronised backup that has the
    missing messages takes over seamlessly, otherwise the adapter takes a new term and announces the discontinuity;
- an adapter that learns of a higher term follows it; an active adapter steps down and is unsynchronised until checked.

Read follower.py for the comparison, membership.py and election.py for roles, image_transfer.py for conversion
states.
"""

from collections.abc import Iterable, Mapping

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause, Counters
from penstock.convert import SourceBatch
from penstock.feed.config import SynchroniserConfig
from penstock.feed.core.conversion import Checkpoint, Conversion
from penstock.feed.core.events import (
    HealthMeasured,
    LaneAdvanced,
    PeerConnected,
    PeerDisconnected,
    PeerMessageReceived,
    Promote,
    ReturnToService,
    Role,
    SendPeer,
    SessionBegan,
    SessionOver,
    SourceBroken,
    SourceMessages,
    SyncEvent,
    SyncInstruction,
    TermPersisted,
    TimeOfDay,
)
from penstock.feed.core.lines.session_names import after_reset
from penstock.feed.core.session_dates import SessionDates
from penstock.feed.core.sync.election import Peers
from penstock.feed.core.sync.flow import Mode, StreamFlow
from penstock.feed.core.sync.follower import StreamFollower
from penstock.feed.core.sync.image_transfer import ImageSender
from penstock.feed.core.sync.membership import Membership
from penstock.feed.core.sync.messages import (
    AdapterState,
    Announced,
    ImageBegin,
    ImageChunk,
    ImageRefused,
    ImageRequest,
    StreamState,
    SyncMessage,
    TakeOver,
)
from penstock.wire.term import Term

CHECKPOINTS_SENT = 8
"""Number of checkpoints that an active adapter sends at once when it becomes active or gets a new backup."""


class Synchroniser:
    """The core of one adapter's membership in its feed; `term` is the highest on its disk, 0 for none."""

    def __init__(
        self,
        config: SynchroniserConfig,
        streams: Mapping[int, Conversion],
        *,
        term: int,
        now_ns: int,
        counters: Counters | None = None,
        dates: Mapping[int, SessionDates] | None = None,
    ) -> None:
        """`dates` has the trading dates of the sessions of source streams."""
        self.config = config
        self.counters = counters or Counters("feed")
        self._streams = {
            stream_id: StreamFollower(
                StreamFlow(stream_id, converter, config, (dates or {}).get(stream_id)), config, term
            )
            for stream_id, converter in streams.items()
        }
        self._peers = Peers(config)
        self._membership = Membership(config, self._streams, self._peers, self.counters, term=term, now_ns=now_ns)
        self._images = ImageSender(config, self._flow)
        self._handover_ns: int | None = None
        self._report_ns = now_ns
        self._reported: AdapterState | None = None

    # For drivers

    @property
    def role(self) -> Role:
        return self._membership.role

    @property
    def term(self) -> int:
        """The highest term that this adapter knows."""
        return self._membership.term

    def state(self, now_ns: int) -> AdapterState:
        """Role, term, health, and whether the adapter is in service and synchronised, for an operator."""
        return self._membership.state(now_ns)

    def is_synchronised(self, stream_id: int) -> bool:
        """True if subscribers may use this adapter's messages of a source stream."""
        return self.role == "active" or self._streams[stream_id].is_synchronised

    def roll_ns(self, stream_id: int) -> int | None:
        """The calendar's end of the trading day of a source stream, in nanoseconds since 1970: after it, the driver
        may not convert itself."""
        return self._streams[stream_id].flow.roll_ns

    def is_flowing(self, stream_id: int) -> bool:
        """True if the driver may convert and publish in-order messages itself, and report LaneAdvanced afterwards.

        The result may change with every handled event.
        """
        flow = self._streams[stream_id].flow
        return flow.is_immediate() and flow.is_sending and not self._membership.is_asked_to_take_over

    def day_end_ns(self, stream_id: int) -> int | None:
        """The time at which TimeOfDay ends the session of a source stream by the calendar, in nanoseconds since
        1970; None: never."""
        return self._streams[stream_id].flow.day_end_ns

    def is_ended(self, stream_id: int) -> bool:
        """True if the session of a source stream has ended and no other one has begun."""
        return self._streams[stream_id].flow.is_ended

    # The core

    def handle(self, event: SyncEvent, now_ns: int) -> list[SyncInstruction]:
        return self.handle_all([event], now_ns)

    def handle_all(self, events: Iterable[SyncEvent], now_ns: int) -> list[SyncInstruction]:
        """Handle several events whose instructions are carried out together."""
        for follower in self._streams.values():
            follower.flow.begin_event()
        role, term = self.role, self.term
        instructions: list[SyncInstruction] = []
        for event in events:
            instructions += self._take(event, now_ns)
        if (self.role, self.term) != (role, term):
            instructions += self._begin_role(now_ns)
        instructions += self._work(now_ns)
        instructions += self._membership.elect(now_ns)
        return instructions + self._report(now_ns)

    def next_deadline_ns(self) -> int | None:
        deadlines = [self._report_ns, self._handover_ns, self._membership.due_ns, self._images.next_due_ns()]
        if self.role == "backup":
            deadlines += [each.next_due_ns() for each in self._streams.values()]
        return min(each for each in deadlines if each is not None)

    def _take(self, event: SyncEvent, now_ns: int) -> list[SyncInstruction]:
        match event:
            case SourceMessages(stream_id, batch):
                flow = self._streams[stream_id].flow
                at = flow.new_day_at(batch)
                return flow.take(batch) if at < 0 else self._roll_day(flow, batch, at)
            case LaneAdvanced(stream_id):
                return self._streams[stream_id].flow.advanced()
            case SourceBroken():
                return self._break(event, now_ns)
            case SessionBegan():
                return self._begin_session(event)
            case SessionOver(stream_id):
                return self._streams[stream_id].flow.end_session()
            case TimeOfDay(stream_id, wall_ns):
                flow = self._streams[stream_id].flow
                is_over = flow.day_end_ns is not None and wall_ns >= flow.day_end_ns
                return flow.end_session() if is_over else []
            case PeerMessageReceived(index, message):
                return self._receive(index, message, now_ns)
            case PeerConnected(index):
                self._peers.connect(index, now_ns)
                return [SendPeer(index, self.state(now_ns)), *self._whole_state([index])] if self._is_online() else []
            case PeerDisconnected(index):
                self._peers.disconnect(index)
                self._images.forget(peer=index)
                return []
            case TermPersisted(term):
                return self._membership.persist_done(term, now_ns)
            case HealthMeasured(health):
                self._membership.note_health(health)
                return []
            case Promote():
                return self._membership.promote(now_ns)
            case ReturnToService():
                return self._membership.return_to_service()
            case Tick():
                return []
            case _:
                refuse(self, event)

    def _work(self, now_ns: int) -> list[SyncInstruction]:
        """Do the work of source streams that has become possible or due."""
        instructions: list[SyncInstruction] = []
        for follower in self._streams.values():
            if self.role == "active":
                instructions += self._checkpointed(follower.flow)
            else:
                instructions += follower.tick(now_ns)
                instructions += follower.go_on(now_ns)
        instructions += self._images.send(now_ns)
        if self._handover_ns is not None and now_ns >= self._handover_ns:
            self._handover_ns = None
            instructions += self._membership.claim_break("source_gap")
        return instructions + self._membership.consider_leaving(now_ns)

    def _begin_role(self, now_ns: int) -> list[SyncInstruction]:
        """Drop the images of the former term. The peers get the adapter's state first, so that they do not take over,
        and then the states of the streams."""
        self._handover_ns = None
        self._images.forget()
        if self.role == "backup":
            return []
        state, indexes = self.state(now_ns), self._peers.indexes()
        return [*(SendPeer(index, state) for index in indexes), *self._whole_state(indexes)]

    def _flow(self, stream_id: int) -> StreamFlow | None:
        follower = self._streams.get(stream_id)
        return follower.flow if follower else None

    def _is_online(self) -> bool:
        return self._membership.is_online

    # The source

    def _break(self, event: SourceBroken, now_ns: int) -> list[SyncInstruction]:
        follower = self._streams[event.stream_id]
        if self.role == "backup":
            return follower.lose(event.first, event.last)
        self._hold_broken(follower.flow)
        follower.flow.lose(event.first, event.last)
        if self._membership.is_claiming or self._handover_ns is not None:
            return []  # the claim or the handover covers this loss too
        able = [each for each in self._peers.online(now_ns) if each.is_synchronised and each.term == self.term]
        if not able:
            return self._membership.claim_break("source_gap")
        self._handover_ns = now_ns + self.config.handover_ms * NS_PER_MS
        request = TakeOver(self.term, event.stream_id, event.last + 1)
        return [SendPeer(each.index, request) for each in able]

    def _begin_session(self, event: SessionBegan) -> list[SyncInstruction]:
        follower = self._streams[event.stream_id]
        if self.role == "backup":
            return follower.begin_session(event)
        if not follower.flow.is_change(event):
            return []
        if event.name == follower.flow.session:  # an earlier session had this name, as the peers reported
            event = msgspec.structs.replace(event, name=after_reset(event.name))
        self._hold_broken(follower.flow)
        follower.flow.begin_session(event)
        self._handover_ns = None
        return self._membership.claim_break("session")

    def _roll_day(self, flow: StreamFlow, batch: SourceBatch, at: int) -> list[SyncInstruction]:
        """The feed's session continues, but the trading day has ended by the venue's calendar: the messages from index
        `at` on belong to a new session."""
        before, after = batch.part(0, at), batch.part(at, len(batch))
        instructions = flow.take(before) if at else []
        first = next(sequence for sequence, _ in after)
        name = after_reset(flow.session or "")
        event = SessionBegan(
            flow.stream_id, name, first, is_reset=True, receive_ns=after.receive_ns(0), is_continued=True
        )
        return [*instructions, *self._begin_session(event), *flow.take(after)]

    def _hold_broken(self, flow: StreamFlow) -> None:
        self._images.forget(stream_id=flow.stream_id)
        flow.hold(Mode.BROKEN)

    # The other adapters

    def _receive(self, index: int, message: SyncMessage, now_ns: int) -> list[SyncInstruction]:
        is_about_sender = not isinstance(message, AdapterState) or message.index == index
        if index not in self._peers or index == self.config.index or not is_about_sender:
            return self._skip(Cause.UNEXPECTED)
        self._peers.heard(index, now_ns, message if isinstance(message, AdapterState) else None)
        term = getattr(message, "term", 0)
        instructions = self._membership.follow(term) if term > self.term else []
        match message:
            case AdapterState():
                if message.is_active and term < self.term:
                    instructions.append(SendPeer(index, self.state(now_ns)))  # the peer learns the higher term
            case ImageRequest():
                instructions += self._serve_image(index, message, now_ns)
            case _:
                instructions += self._take_from_active(index, message, now_ns)
        return instructions

    def _take_from_active(
        self,
        index: int,
        message: Announced | StreamState | TakeOver | ImageBegin | ImageChunk | ImageRefused,
        now_ns: int,
    ) -> list[SyncInstruction]:
        """A message that only the active adapter sends to its backups."""
        is_from_active = self.role == "backup" and index == Term.of(self.term).claimant
        if not is_from_active or getattr(message, "term", self.term) != self.term:
            return self._skip(Cause.STALE_TERM)
        follower = self._streams.get(message.stream_id)
        if follower is None:
            return self._skip(Cause.UNKNOWN_STREAM)
        match message:
            case Announced():
                follower.announce(message)
            case TakeOver():
                self._membership.ask_to_take_over(message, now_ns)
            case StreamState() if message.plan != follower.flow.converter.plan_number:
                self.counters.add("messages_skipped", cause=Cause.OTHER_PLAN)
                return follower.refuse_plan()
            case StreamState():
                is_usable = self._is_online() and self._membership.is_term_persisted
                return follower.compare(message, now_ns) if is_usable else []
            case _:
                return follower.take_image(message, now_ns)
        return []

    def _skip(self, cause: Cause) -> list[SyncInstruction]:
        self.counters.add("messages_skipped", cause=cause)
        return []

    def _serve_image(self, index: int, request: ImageRequest, now_ns: int) -> list[SyncInstruction]:
        if self.role == "active" and request.term == self.term:
            return list(self._images.ask(index, request, now_ns))
        return [SendPeer(index, ImageRefused(request.stream_id, request.request, "not the active adapter"))]

    # Reports to the other adapters

    def _whole_state(self, indexes: list[int]) -> list[SyncInstruction]:
        """The messages that a backup needs to compare itself with this active adapter."""
        messages: list[SyncMessage] = []
        for follower in self._streams.values() if self.role == "active" else ():
            flow = follower.flow
            if follower.announced is not None:
                messages.append(msgspec.structs.replace(follower.announced, term=self.term))
            if flow.mode is Mode.FLOWING:
                newest = flow.newest_checkpoints(CHECKPOINTS_SENT)
                messages += [self._stream_state(flow, checkpoint) for checkpoint in newest]
                messages.append(self._stream_state(flow))
        return [SendPeer(index, message) for index in indexes for message in messages]

    def _stream_state(self, flow: StreamFlow, checkpoint: Checkpoint | None = None) -> StreamState:
        at = checkpoint or flow.converter.checkpoint_now()
        position = checkpoint.next_source_sequence if checkpoint else flow.position
        return StreamState(
            self.term,
            flow.stream_id,
            flow.session or "",
            position,
            at.next_message_sequence,
            at.digest,
            flow.converter.plan_number,
        )

    def _checkpointed(self, flow: StreamFlow) -> list[SyncInstruction]:
        states = [self._stream_state(flow, checkpoint) for checkpoint in flow.fresh_checkpoints()]
        return [SendPeer(index, state) for index in self._peers.indexes() for state in states]

    def _report(self, now_ns: int) -> list[SyncInstruction]:
        """Send this adapter's state to the others: at once after a change, otherwise every state_interval_ms."""
        state = self.state(now_ns)
        is_due = now_ns >= self._report_ns
        is_news = (
            self._reported is None or msgspec.structs.replace(state, health=self._reported.health) != self._reported
        )
        if not is_due and not is_news:
            return []
        was_online = self._reported is None or self._reported.is_online
        self._reported = state
        self._report_ns = now_ns + self.config.state_interval_ms * NS_PER_MS
        if not state.is_online and not was_online:
            return []  # an off-line adapter does not use the other adapters' middleware
        messages: list[SyncMessage] = [state]
        if self.role == "active" and is_due:
            flows = [follower.flow for follower in self._streams.values()]
            messages += [self._stream_state(flow) for flow in flows if flow.mode is Mode.FLOWING]
        return [SendPeer(index, message) for index in self._peers.indexes() for message in messages]
