"""The core of a message router in a pair, with its peer (REPL-2 to REPL-10, REPL-14).

The lease or an operator's order makes one of the two active; the other is the standby and gets copies of replicated
messages. Epochs decide: a router becomes active in a new epoch, and a router that learns of a newer epoch than its own
is no longer active.

    standby ── _activate() ──► becoming active ── Became ──► active    Became: the router has logged the new epoch
    active ── _want_other() ──► wanted        a planned switch waits until the standby has everything
    wanted ── _finish() ──► yielding          _stand_by(): nothing is delivered or acknowledged from now on
    yielding ── _yielded() ──► standby        the last frames are sent; the other router takes over (_take_over)
    wanted ── _call_off() ──► active          too late, or the link is lost
    yielding ── _call_off() ──► becoming active      in a new epoch; with a lease: in the same one, if it still holds
    yielding ── _call_off() ──► standby              with a lease that is gone
    active, becoming active ── _stand_by() ──► standby      the lease is lost, or the peer has a newer epoch

A standby that catches up is partial, and is not fit for the lease, from _become_partial() to _become_whole().
"""

from penstock.assured.core.lease import protocol as lease_protocol
from penstock.assured.core.lease.keeper import LeaseKeeper, lease_event
from penstock.assured.core.lease.protocol import Memory
from penstock.assured.core.pair import protocol as pair_protocol
from penstock.assured.core.pair.degradation import Degradation
from penstock.assured.core.pair.history import ReplicaHistory
from penstock.assured.core.pair.peer_link import PeerLink
from penstock.assured.core.pair.planned_switch import PlannedSwitch, told_left
from penstock.assured.core.pair.protocol import Standing
from penstock.assured.core.pair.replication_receiver import RECEIVED_KINDS, MatchesDifferError, ReplicationReceiver
from penstock.assured.core.pair.replication_sender import ReplicationSender, left_behind
from penstock.assured.core.pair.uncopied import Uncopied
from penstock.assured.core.router import events
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.wire import _layout
from penstock.base.clock import Randomness
from penstock.base.core import Tick
from penstock.base.errors import PenstockError


class Pair:
    """`memory` is the state of this router's voter on its disk, if there is a lease."""

    def __init__(
        self,
        router: MessageRouter,
        config: pair_protocol.PairConfig,
        randomness: Randomness,
        memory: Memory | None = None,
    ) -> None:
        self.router = router
        self._log = router.log
        self._replication = router.replication
        self.degradation = Degradation(config, router.log, Uncopied(config, router.tables))
        self.sending: ReplicationSender | None = None
        self.receiving: ReplicationReceiver | None = None
        self.keeper: LeaseKeeper | None = None
        self._config = config
        self._name = router.config.name
        self._is_first = self._name == config.routers[0]
        self._randomness = randomness
        self._memory = memory or Memory()
        self._past = ReplicaHistory(router.log, is_first=self._is_first)
        self._stream = 0
        self.planned_switch = PlannedSwitch()
        self._has_other_matches = False  # other matches than the active router, with unchanged endpoints
        self._is_started = False
        self._out: list[pair_protocol.PairInstruction] = []
        self.link = PeerLink(lambda each: self._out.append(each))
        router.pair_up(is_mirrored=config.mirror != "none")

    @property
    def is_active(self) -> bool:
        return self.router.is_active

    @property
    def epoch(self) -> int:
        """The newest epoch in which this router was active, or had everything."""
        return self._past.epoch

    def handle(self, event: pair_protocol.PairEvent, now_ns: int) -> list[pair_protocol.PairInstruction]:
        self._out = []
        if self.keeper is not None:
            self._lease(lease_event(event, self.router.is_active), now_ns)
        if self.planned_switch.is_late(now_ns):
            self._call_off(now_ns)
        match event:
            case events.Start():
                self._start(event, now_ns)
            case pair_protocol.PeerOpened(link):
                self._forget_link(now_ns)
                self.link.number = link
                self._tell_standing()
            case pair_protocol.PeerClosed(link):
                if link == self.link.number:
                    self._forget_link(now_ns)
            case pair_protocol.PeerFrame(link, data):
                if link == self.link.number:
                    self._frame(data, now_ns)
            case pair_protocol.SwitchHere(is_forced):
                self._switch_here(is_forced, now_ns)
            case pair_protocol.HandOver():
                self._want_other(now_ns)
            case pair_protocol.Degrade(is_ordered):
                self.degradation.is_ordered = is_ordered and self.router.is_active
            case lease_protocol.Heard() | lease_protocol.Kept() | lease_protocol.Reached():
                if self.keeper is not None:
                    self._lease(event, now_ns)
            case _:
                self._route(event, now_ns)
        if self._is_started:
            self._finish(now_ns)
        out, self._out = self._out, []
        return out

    def next_deadline_ns(self) -> int | None:
        deadlines = [self.router.next_deadline_ns(), self.planned_switch.next_deadline_ns()]
        if self.router.is_active:
            is_ready = self.planned_switch.is_wanted and self.degradation.keeps_up(self.sending)
            gathered_ns = self.sending.gathered_ns if self.sending is not None else None
            deadlines += [self.degradation.next_deadline_ns(), 0 if is_ready else None, gathered_ns]
        if self.keeper is not None:
            deadlines.append(self.keeper.next_deadline_ns())
        return min((each for each in deadlines if each is not None), default=None)

    # The router

    def _start(self, event: events.Start, now_ns: int) -> None:
        """Start as the standby until the active router is known."""
        self._is_started = True
        self._route(events.Start(event.next_sequence, event.wall_ns, "standby", 0), now_ns)
        self._past.start(self.router.newest_id)
        if (lease := self._config.lease) is not None:
            self.keeper = LeaseKeeper(lease, self._name, self._memory, self._randomness, now_ns, self.epoch)
            self._lease(lease_protocol.Fit(self._past.is_fit(self.keeper)), now_ns)

    def _route(self, event: events.Event, now_ns: int) -> None:
        told = self.router.handle(event, now_ns)
        self._out += told
        match event:
            case events.Stored():
                if self.receiving is not None:
                    self.receiving.stored(self._log.stored_through)
            case events.RecordsRead():
                if self.sending is not None:
                    self.sending.fetched(event)
            case events.DiskTroubled() | events.DiskFailed() | events.DiskRecovered():
                self._tell_standing()
        if any(isinstance(each, events.Noted) and each.what in ("defined", "deleted") for each in told):
            self._has_other_matches = False
        if self.router.is_active and any(isinstance(each, events.Became) for each in told):
            self._tell_standing()
            self._begin_sending()

    def _activate(self, epoch: int, now_ns: int) -> None:
        if not self.router.is_active or self.epoch != epoch:
            self._past.activate(epoch)
            self.receiving = None
            self.degradation.activate(now_ns)
            self.planned_switch.forget()
            self._note("active", epoch=epoch)
            self._route(events.Become("active", epoch), now_ns)

    def _stand_by(self, now_ns: int, why: str) -> None:
        """Become the standby at once: nothing is delivered or acknowledged from now on."""
        self._note("stands_by", why=why, epoch=self.epoch)
        self._route(events.Become("standby", self.epoch), now_ns)
        if not self.planned_switch.is_yielding:
            self._end_sending()
            self._tell_standing()

    # The lease

    def _lease(self, event: lease_protocol.LeaseEvent, now_ns: int) -> None:
        assert self.keeper is not None
        for each in self.keeper.handle(event, now_ns):
            match each:
                case lease_protocol.LeaseAcquired(epoch):
                    self._activate(epoch, now_ns)
                case lease_protocol.LeaseLost(epoch):
                    if not self.planned_switch.is_yielding and epoch == self.epoch:
                        self._stand_by(now_ns, "the lease is gone")
                case lease_protocol.DegradedNoted(_, is_degraded):
                    before = self.degradation.state
                    self.degradation.noted(is_degraded)
                    self._mode_changed(before)
                case _:
                    self._out.append(each)
        if self.epoch == 0 and not isinstance(event, lease_protocol.Fit) and not self._past.is_fit(self.keeper):
            self._lease(lease_protocol.Fit(False), now_ns)

    # The link

    def _forget_link(self, now_ns: int) -> None:
        self._end_sending()
        self.receiving = None
        self.link.forget()
        self.degradation.lost(now_ns)
        self._call_off(now_ns)

    def _end_sending(self) -> None:
        if self.sending is not None:
            self.sending.end()
            self.sending = None

    def _standing(self) -> Standing:
        votes, is_storing = self._config.lease is not None, not self.router.trouble
        matches = self._config.matching == "secondary" and not self._has_other_matches
        is_degraded = self.is_active and self.degradation.state != "synchronous"
        return self._past.standing(self._name, self.is_active, votes, matches, is_storing, is_degraded)

    def _tell_standing(self) -> None:
        self.link.say(self._standing())

    def _end_link(self, why: str, now_ns: int) -> None:
        if self.link.number is not None:
            self.link.end(why)
            self._note("link_ended", why=why, is_trouble=True)
        self._forget_link(now_ns)

    def _frame(self, data: bytes, now_ns: int) -> None:
        try:
            match data[0]:
                case kind if kind in RECEIVED_KINDS and self.receiving is not None:
                    self.receiving.frame(data)
                    self._past.received(self.receiving.epoch, self.receiving.id_highest)
                case kind if kind == _layout.KIND_MISSING and self.sending is not None:
                    self.sending.frame(data)
                case kind if kind >= 0x80:
                    message = pair_protocol.PAIR.decode(data)
                    if isinstance(message, pair_protocol.Message):
                        self._said(message, now_ns)
                case _:
                    pass  # sent before the roles changed
        except (PenstockError, IndexError) as error:
            self._has_other_matches |= isinstance(error, MatchesDifferError)
            self._end_link(str(error), now_ns)

    def _said(self, message: pair_protocol.Message, now_ns: int) -> None:
        match message:
            case Standing():
                self._heard_standing(message, now_ns)
            case pair_protocol.Resync(_, epoch):
                if self.router.is_active or epoch < self.epoch:
                    self._tell_standing()
                elif self._log.is_troubled:  # its duration is unknown: another one follows
                    self.receiving = None
                else:
                    self.receiving = ReplicationReceiver(self.router, self._config, message, self._is_first)
            case pair_protocol.Defined() if self.receiving is not None:
                if name := self.receiving.define(message):
                    self._note("endpoint_differs", endpoint=name, hint="define it alike here", is_trouble=True)
            case pair_protocol.Listed(id_highest) if self.receiving is not None:
                self._catch_up(self.receiving, id_highest, now_ns)
            case pair_protocol.Whole(epoch) if self.receiving is not None:
                self._become_whole(self.receiving, epoch, now_ns)
            case pair_protocol.StoredTo() | pair_protocol.Lacking() if self.sending is not None:
                self.sending.said(message)
            case pair_protocol.Switch():
                self._want_other(now_ns)
            case pair_protocol.Yielded(epoch, left):
                if not self.router.is_active and epoch == self.epoch:
                    self.planned_switch.left_there = left
                    self._take_over(now_ns)
            case _:
                pass  # sent before the roles changed

    def _heard_standing(self, peer: Standing, now_ns: int) -> None:
        pair_protocol.check_standing(self._standing(), peer, self._config.routers)
        if news := self.link.heard(peer):
            self._note(news, is_trouble=not peer.is_storing)
        if peer.epoch > self.epoch and self.router.is_active:
            self._stand_by(now_ns, f"{peer.name} is active in epoch {peer.epoch}")
            self._past.is_willing = False
        elif self.router.is_active:
            if peer.role == "active":
                self._tell_standing()
            elif self.sending is None:  # otherwise it was reported before
                self._begin_sending()
        elif self._config.lease is not None or self.router.is_becoming_active or self.planned_switch.is_yielding:
            return
        elif pair_protocol.is_to_begin(self._standing(), peer, self._is_first):
            self._activate(lease_protocol.next_epoch(max(self.epoch, peer.epoch), self._is_first), now_ns)
        elif peer.role == "standby" and self._past.is_willing and self.epoch < peer.epoch:
            self._note("behind", epoch=self.epoch, other=peer.epoch, hint="switch at the other router", is_trouble=True)

    def _begin_sending(self) -> None:
        peer = self.link.peer
        if peer is not None and peer.role == "standby" and self.router.is_active:
            self._end_sending()
            self._stream += 1
            self.sending = ReplicationSender(self.router, self._config, self._stream, peer)

    def _catch_up(self, receiving: ReplicationReceiver, id_highest: int, now_ns: int) -> None:
        if receiving.has_doubts:
            self._become_partial(now_ns)
            receiving.resolve()
        if receiving.compare(id_highest):
            self._become_partial(now_ns)
        self._past.compared(receiving.epoch, receiving.id_highest)
        receiving.answer()
        if receiving.stranded:
            self._note("stranded", messages=receiving.stranded, is_trouble=True)

    def _become_partial(self, now_ns: int) -> None:
        self._past.catch_up()
        if self.keeper is not None:
            self._lease(lease_protocol.Fit(False), now_ns)

    def _become_whole(self, receiving: ReplicationReceiver, epoch: int, now_ns: int) -> None:
        receiving.become_whole()
        self._past.become_whole(epoch, receiving.id_highest)
        self._note("whole", epoch=epoch, dropped=receiving.dropped)
        self._route(events.Become("standby", epoch), now_ns)
        if self.keeper is not None:
            self._lease(lease_protocol.Fit(True), now_ns)

    # Switching

    def _switch_here(self, is_forced: bool, now_ns: int) -> None:
        self.planned_switch.left_there = {}
        if self.router.is_active:
            return
        if not is_forced:
            self.link.say(pair_protocol.Switch())
        elif self.planned_switch.is_yielding:
            self._call_off(now_ns)
        elif self.keeper is not None:
            self._lease(lease_protocol.Force(), now_ns)
        else:
            theirs = self.link.peer.epoch if self.link.peer is not None else 0
            self._activate(lease_protocol.next_epoch(max(self.epoch, theirs), self._is_first), now_ns)

    def _want_other(self, now_ns: int) -> None:
        if self.router.is_active:
            self.planned_switch.want(now_ns)
            self.degradation.is_ordered = False  # the other router needs all messages

    def _take_over(self, now_ns: int) -> None:
        """The other router has stopped. With a lease, it was given up, and this router requests it."""
        self._past.is_willing = True
        if self.keeper is None:
            self._activate(lease_protocol.next_epoch(self.epoch, self._is_first), now_ns)

    def _call_off(self, now_ns: int) -> None:
        """A planned switch has failed: a router that had stopped for it continues."""
        if self.planned_switch.is_wanted:
            self._note("switch_called_off", is_trouble=True)
        if self.planned_switch.forget():
            self._end_sending()
            if self.keeper is None:
                self._activate(lease_protocol.next_epoch(self.epoch, self._is_first), now_ns)
            elif self.keeper.holds(now_ns):
                self._activate(self.epoch, now_ns)

    def _yielded(self, now_ns: int) -> None:
        left = left_behind(self.router.tables, self.router.endpoints)
        self.link.say(pair_protocol.Yielded(self.epoch, left))
        self._note("yielded", left_behind=told_left(left) or "nothing", is_trouble=bool(left))
        self.planned_switch.forget()
        self._past.is_willing = False
        self._end_sending()
        if self.keeper is not None:
            self._lease(lease_protocol.Release(), now_ns)
        self._tell_standing()

    # Consequences of an event

    def _finish(self, now_ns: int) -> None:
        self._pump(now_ns)
        self._look_how_it_keeps_up(now_ns)
        if self.router.is_active:
            if self.router.awaits_release:
                self._route(events.Release(*self.degradation.released(self.sending)), now_ns)
                self._pump(now_ns)
            if self._replication.has_met_absent:
                self._look_how_it_keeps_up(now_ns)
        elif self.receiving is not None:
            if self._log.has_pending:
                self._route(Tick(), now_ns)
            self.receiving.look_what_lacks()
            self.receiving.stored(self._log.stored_through)
            self.link.send(self.receiving.out)
        is_ready = self.planned_switch.is_wanted and self.degradation.keeps_up(self.sending)
        # only an active router has frames to send
        if is_ready and not any(isinstance(each, events.SendData) for each in self._out):
            self.planned_switch.begin_yielding(now_ns)
            self._stand_by(now_ns, "the other router takes over by a planned switch")
        if self.sending is not None and self.planned_switch.is_yielding and self.sending.is_drained:
            self._yielded(now_ns)

    def _pump(self, now_ns: int) -> None:
        if self.sending is not None and not self.sending.mirror(now_ns):
            self.degradation.lost(now_ns)
            self._begin_sending()
        if (sending := self.sending) is None:
            return
        if self._replication.is_stream_broken:
            self._end_link("the other router is too far behind", now_ns)
            return
        self._out += sending.pump(now_ns, is_hurried=self.planned_switch.is_wanted or self.planned_switch.is_yielding)
        self.link.send(sending.out)

    def _look_how_it_keeps_up(self, now_ns: int) -> None:
        if self.router.is_active:
            before = self.degradation.state
            is_degraded = self.degradation.look(self.sending, now_ns, is_switching=self.planned_switch.is_wanted)
            self._mode_changed(before)
            if is_degraded is not None and self.keeper is not None:
                self._lease(lease_protocol.NoteDegraded(is_degraded), now_ns)
            if self._log.has_pending:
                self._route(Tick(), now_ns)

    def _mode_changed(self, before: str) -> None:
        """Log changes of the mode."""
        mode = self.degradation.state
        if mode != before:
            self._note("replication", mode=mode, is_trouble=mode != "synchronous")
            self._tell_standing()

    def _note(self, what: str, *, is_trouble: bool = False, **values: str | int) -> None:
        self._out.append(events.Noted(what, values, is_trouble))
