"""DistributionAgent: one agent of a distribution tree, without I/O.

It has a fan-out (_fanout.pyi), which takes in packets and passes them on by itself, and says in notices what it cannot
decide. Everything else happens here and in the parts: who is let in and what is said to whom (children.py), what each
may have (entitlements.py), how a leg gets to live (catch_up.py), what is asked of the parent (upstream.py), who that is
(parents.py), and what a root and its standby do (sequencer.py). What comes on links is in conversation.py, and what a
neighbour's words on the infostream lead to in hearing.py.
"""

from collections.abc import Iterable

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND, Randomness
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause, Counters
from penstock.base.errors import PenstockError
from penstock.model import MessageModel
from penstock.tree.config import TreeConfig
from penstock.tree.core.board import Board, Child
from penstock.tree.core.catch_up import CatchUp
from penstock.tree.core.children import Children
from penstock.tree.core.control import Refused
from penstock.tree.core.conversation import Conversation
from penstock.tree.core.entitlements import Rights
from penstock.tree.core.events import (
    Appended,
    Arrived,
    Busy,
    Connected,
    ConnectFailed,
    Define,
    DefineStream,
    Event,
    GotToken,
    Instruction,
    JournalRead,
    LinkClosed,
    Move,
    Noticed,
    Promote,
    Renewed,
    Restore,
    Revoke,
    SendBack,
    Start,
    Stop,
)
from penstock.tree.core.infostream import Load, Stopping, id_of
from penstock.tree.core.kernel._fanout import Fanout
from penstock.tree.core.kernel.notices import (
    ControlFrame,
    InfoPacket,
    LeftLive,
    LegBlock,
    LinkEnded,
    NewerTerm,
    Notice,
    PublishedBlock,
)
from penstock.tree.core.legs import Conditions
from penstock.tree.core.load_balancer import Balancing
from penstock.tree.core.parents import PROBE_HEARTBEATS, Parents
from penstock.tree.core.root.sequencer import Rooting
from penstock.tree.core.upstream import TIDY_INTERVAL_NS, Upstream

NOTICES_PER_TURN = 1_024
"""That are seen to before timers and other events come: many children may have much to say."""
BALANCE_INTERVAL_NS = NS_PER_SECOND
LINKS_BESIDES = 16
"""Links to parents and peers, and such as are being refused."""
LEGS_OF_A_CHILD = 16
WANTS_OF_A_CHILD = 64
"""What there is room for, on average."""
SILENCES_OF_A_CHILD = 3
"""A child may be silent so much longer than a parent."""


class DistributionAgent:
    """`fanout` is the driver's to feed and to empty; nobody else opens links, legs or streams in it."""

    def __init__(
        self,
        config: TreeConfig,
        randomness: Randomness,
        counters: Counters,
        *,
        models: Iterable[MessageModel] = (),
    ) -> None:
        self.fanout = Fanout(
            id_of(config.tree),
            history_size=config.history_bytes,
            streams_max=config.streams_max,
            links_max=config.children_max + LINKS_BESIDES,
            legs_max=LEGS_OF_A_CHILD * config.children_max,
            wants_max=WANTS_OF_A_CHILD * config.children_max,
            queue_packets_max=config.queue_packets,
        )
        self.board = Board(config, self.fanout, Conditions(models), counters)
        self._upstream = Upstream(self.board)
        self._catch_up = CatchUp(self.board, self._upstream)
        self._rights = Rights(self.board, self._catch_up)
        self.children = Children(self.board, self._catch_up, self._rights)
        self._balancing = Balancing(self.board, self.children)
        self.parents = Parents(self.board, self._upstream, randomness)
        self.rooting = Rooting(self.board, self.children)
        self._conversation = Conversation(
            self.board, self._upstream, self._catch_up, self.children, self.parents, self.rooting, self._forget
        )
        self._upstream.on_live = self.parents.is_live
        self._upstream.on_learned = self._learned
        self.parents.on_adopted = self._adopted
        self.parents.on_fenced = self.rooting.fenced
        self.children.on_gone = self._child_gone
        self._beat_ns: int | None = None
        self._beats = 0
        self._is_more = False
        self._balance_ns = 0

    # The machine

    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        board = self.board
        board.now_ns = now_ns
        if not isinstance(event, Appended | Tick):  # these two come without end while there is much to append
            self.rooting.note_taken()
        match event:
            case Noticed():
                self._take_turn()
            case Arrived():
                self._arrived(event)
            case LinkClosed():
                self._closed(event.link)
            case Connected():
                self.parents.connected(event.attempt, event.link, event.name)
            case ConnectFailed():
                self.parents.failed(event.attempt, event.why)
            case JournalRead():
                self._catch_up.journal_read(event)
            case Appended():
                self.rooting.appended(event.stream, event.through)
            case Tick():
                if self._is_more:
                    self._take_turn()
                self._tick()
            case Start():
                self._start(event)
            case _:
                self._operate(event)
        if self.rooting.settle() or board.refilled:
            self._take_turn()
            self._is_more |= self.rooting.settle()
        self._catch_up.take_turn()
        self.rooting.note_standbys()
        out, board.out = board.out, []
        return out

    def _operate(
        self, event: Renewed | GotToken | Revoke | Restore | Move | SendBack | Promote | Define | Busy | Stop
    ) -> None:
        """What an operator, the administration server or the node wants."""
        board = self.board
        match event:
            case Renewed():
                self._renewed(event)
            case GotToken():
                self.parents.renew(event.token)
            case Revoke():
                self._revoke(event)
            case Restore():
                self._rights.restore(event.name)
            case Move():
                self._balancing.move(event.name, event.place, event.reason)
            case SendBack():
                self._balancing.send_back(event.name, event.reason)
            case Promote():
                self._promote()
            case Define():
                if board.role == "root":
                    self.rooting.define(event.name, event.topics)
            case Busy():
                self._busy(min(max(event.percent, 0), 100))
            case Stop():
                board.inform(Stopping(board.config.name, event.reason[:256]))
            case _:
                refuse(self, event)

    def next_deadline_ns(self) -> int | None:
        if self._beat_ns is None or self._is_more:
            return self.board.now_ns if self._is_more else None
        found = self._beat_ns
        waits_ns = (self.parents.deadline_ns(), self.rooting.deadline_ns(), self._catch_up.deadline_ns())
        for due_ns in (*waits_ns, self._promote_ns()):
            if due_ns is not None and due_ns < found:
                found = due_ns
        return found

    # Links

    def _start(self, event: Start) -> None:
        board = self.board
        board.place = event.place
        self.rooting.wall_offset_ns = event.wall_ns - board.now_ns
        if board.config.role != "agent":
            self.rooting.start(event)
        self._beat_ns = board.now_ns
        self.parents.start()
        if board.role == "root" and board.standby_place:
            self.parents.probe(board.standby_place)

    def _arrived(self, event: Arrived) -> None:
        party = event.party
        if party.term > self.board.term and self.board.role == "root" and self.children.is_agent_here(party):
            self.rooting.fenced(party.term, self.board.standby_place)
        marks = self.rooting.replica.publishers
        is_publisher = party.role == "publisher"
        through = self.rooting.confirmed(party.publisher_id) if is_publisher else 0
        is_anothers = is_publisher and marks.is_of_another(party.publisher_id, party.subject)
        child = self.children.arrived(event.link, party, published_through=through, is_anothers=is_anothers)
        if child is None:
            return
        if party.role == "publisher":
            self.rooting.arrived(child, self._rights.revoked(child.party)[0])
        elif party.role == "standby":
            self.rooting.standby_came(child.link)
        elif party.role == "peer":
            self.parents.peering.came(child.link)

    def _closed(self, link: int) -> None:
        self._lost(link)
        if link in self.board.ledger.open:
            self.board.ledger.end(link, self.fanout.link(link))
        self.fanout.close_link(link)

    def _forget(self, link: int, cause: str, reason: str = "") -> None:
        """End a link, and go on as if it were closed."""
        self.board.close(link, cause, reason)
        self._lost(link)

    def _lost(self, link: int) -> None:
        self.children.gone(link)
        self.parents.link_closed(link)

    def _child_gone(self, child: Child) -> None:
        self.rooting.note_bearer(child.party)
        self.rooting.gone(child.link)
        if child.party.role == "peer":
            self.parents.peering.gone(child.link, child.party.place)

    def _adopted(self) -> None:
        """There is a parent, and what it brings is live, or a move is over."""
        self.rooting.replica.link = self._upstream.link
        self._catch_up.serve_waiting()

    def _learned(self, stream: int, is_term_new: bool) -> None:
        if self.board.role == "standby":
            self.board.out.append(DefineStream(self.board.streams[stream].info))
            if is_term_new:
                self.rooting.replica.begin_term(stream)

    # Notices

    def _take_turn(self) -> None:
        """See to a bounded number of notices; if there are more, timers and other events come first."""
        self.board.refilled = False
        left = NOTICES_PER_TURN
        while left > 0 and (notices := self.fanout.notices(left)):
            left -= len(notices)
            for notice in notices:
                try:
                    self._notice(notice)
                except PenstockError as error:  # what is wrong with one link is no matter of the others
                    self._ended(LinkEnded(notice.link, Cause.FAILED, str(error)))
        self._is_more = self.fanout.release_held()

    def _notice(self, notice: Notice) -> None:
        match notice:
            case ControlFrame():
                self._conversation.control(notice.link, notice.payload)
            case InfoPacket():
                self._conversation.info(notice.link, notice.packet)
            case LegBlock():
                try:
                    self._conversation.block(notice)
                finally:
                    self.fanout.resume(notice.link)
            case PublishedBlock():
                child = self.board.children.get(notice.link)
                if child is not None:
                    self.rooting.published(child, notice.packets)
            case LeftLive():
                self.children.left_live(notice.link, notice.leg, notice.through)
            case NewerTerm():
                self._conversation.newer_term(notice)
            case LinkEnded():
                self._ended(notice)

    def _ended(self, notice: LinkEnded) -> None:
        """The other side has ended it; or it broke the rules or was too slow for its class, and is told so."""
        self.board.counters.add("connections_closed", cause=notice.cause)
        if notice.link in self.board.children and notice.cause != Cause.CLOSED:
            self.board.say(notice.link, Refused(notice.cause, notice.reason[:256]))
        self._forget(notice.link, notice.cause, notice.reason)

    # Operators and time

    def _renewed(self, event: Renewed) -> None:
        child = self.board.children.get(event.link)
        if child is None:
            return
        if event.refusal:
            self.children.end(event.link, Refused("token", event.refusal[:256]))
        else:
            self._rights.renewed(child, event.grants)
            if child.party.role == "publisher":
                self.rooting.arrived(child, self._rights.revoked(child.party)[0])

    def _revoke(self, event: Revoke) -> None:
        self._rights.revoke(event.name, event.topics, event.reason, is_lasting=event.is_lasting)
        for child in list(self.board.children.values()):
            if child.party.role != "publisher" or not child.party.is_called(event.name):
                continue
            if event.topics and self._rights.why_none(child.party) is None:
                self.rooting.arrived(child, self._rights.revoked(child.party)[0])
            else:
                self.children.end(child.link, Refused("revoked", f"its authority was revoked: {event.reason}"[:256]))

    def _busy(self, percent: int) -> None:
        board = self.board
        if percent != board.percent:
            board.percent = percent
            self.parents.tell_parent(Load(board.config.name, percent))
        if board.now_ns - self._balance_ns >= BALANCE_INTERVAL_NS and self._balancing.balance():
            self._balance_ns = board.now_ns

    def _promote(self) -> None:
        if self.board.role == "standby" and self.board.term:
            self.parents.give_up()
            self.rooting.promote()

    def _promote_ns(self) -> int | None:
        """When a standby that has lost its root takes over by itself."""
        on = self.board.config.on
        is_due = self.board.role == "standby" and on.root_lost == "promote" and self._upstream.link is None
        if not is_due or not self.rooting.replica.was_linked:
            return None
        return self.parents.lost_ns + on.promote_after_ms * NS_PER_MS

    def _tick(self) -> None:
        now_ns = self.board.now_ns
        self.parents.tick()
        self.rooting.tick()
        promote_ns = self._promote_ns()
        if promote_ns is not None and now_ns >= promote_ns:
            self._promote()
        if self._beat_ns is not None and now_ns >= self._beat_ns:
            self._beat_ns = now_ns + self.board.config.heartbeat_ms * NS_PER_MS
            self._beats += 1
            self._heartbeat()
        if now_ns - self._upstream.tidy_ns >= TIDY_INTERVAL_NS:
            self._upstream.tidy_ns = now_ns
            self._upstream.tidy()

    def _heartbeat(self) -> None:
        board = self.board
        self.children.heartbeat()
        silence_ns = SILENCES_OF_A_CHILD * board.config.silence_ms * NS_PER_MS
        for child in self.children.silent(silence_ns):
            self.children.end(child.link, Refused("silent", "nothing was heard"))
        has_standby = any(child.party.role == "standby" for child in board.children.values())
        if board.role == "root" and board.standby_place and not has_standby and self._beats % PROBE_HEARTBEATS == 0:
            self.parents.probe(board.standby_place)
