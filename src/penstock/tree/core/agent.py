"""DistributionAgent: one agent of a distribution tree, without I/O.

The fan-out (kernel/_fanout.pyi) accepts packets and passes them on by itself; what it cannot decide, it reports in
notices. The parts decide the rest. Each owns its state, and none knows this module:

    Membership          role, term, path to the root
    StreamTable         the streams and their terms
    ChildTable          the children and their legs
    Outbox              frames, infostream messages and instructions, in order
    Upstream            the agent's own legs at its parent and peers
    CatchUp             brings children's legs from the past to live
    Downstream          admits children, serves them, checks their entitlements
    LoadBalancer        moves children to other agents
    ParentSelection     finds, keeps and replaces the parent
    Peers               when peers are dialled
    Sequencer           the root's sequencing and replication, and the standby's replica

The agent hands each event, notice and message to the part that owns the matter, and carries the events that parts
return (ParentEvent) to the other parts.
"""

from collections.abc import Iterable

from penstock.base.clock import NS_PER_MS, Randomness
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause, Counters
from penstock.base.errors import PacketError, PenstockError, RemoteProtocolError
from penstock.model import MessageModel
from penstock.net.core.control import ErrorMessage, Goodbye, Ping, Pong, UnknownMessageError, encode_session
from penstock.net.core.framing import encode_frame
from penstock.tree.config import TreeConfig
from penstock.tree.core.catch_up import CatchUp
from penstock.tree.core.children import ChildTable
from penstock.tree.core.control import (
    TERMS_MAX,
    TREE,
    Bearers,
    Fetch,
    Fetched,
    Held,
    Published,
    Refused,
    RenewToken,
    Stored,
    StreamInfo,
    Subscribe,
    Unsubscribe,
    Welcome,
)
from penstock.tree.core.downstream import Downstream
from penstock.tree.core.environment import Environment
from penstock.tree.core.events import (
    Appended,
    Arrived,
    Busy,
    CheckToken,
    Connected,
    ConnectFailed,
    Define,
    Event,
    GotToken,
    Informed,
    Instruction,
    JournalRead,
    LinkClosed,
    Move,
    Noticed,
    Party,
    Promote,
    Renewed,
    Restore,
    Revoke,
    SendBack,
    Start,
    Stop,
)
from penstock.tree.core.infostream import (
    Alternates,
    Diverged,
    Gone,
    Info,
    Lagging,
    Load,
    MoveTo,
    Neighbour,
    ParentFound,
    ParentLost,
    Path,
    ReturnTo,
    Root,
    Siblings,
    Stopping,
    StreamDefined,
    Through,
    decode_info,
    id_of,
)
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
from penstock.tree.core.load_balancer import LoadBalancer
from penstock.tree.core.membership import Membership
from penstock.tree.core.outbox import Outbox
from penstock.tree.core.parent_selection import (
    PROBE_HEARTBEATS,
    HigherTermSeen,
    ParentEvent,
    ParentReady,
    ParentSelection,
    PeerConnected,
    PeerUnreachable,
)
from penstock.tree.core.peers import Peers
from penstock.tree.core.root.sequencer import Sequencer
from penstock.tree.core.streams import StreamTable
from penstock.tree.core.upstream import RelayEnded, StreamLearned, Upstream, UpstreamLeg
from penstock.tree.core.want_compiler import WantCompiler

NOTICES_PER_TURN = 1_024
"""Notices handled before timers and other events get their turn."""
EXTRA_LINKS = 16
"""Links to parents and peers, and links that are being refused."""
LEGS_PER_CHILD = 16
WANTS_PER_CHILD = 64
"""Room in the fan-out, on average."""
CHILD_SILENCES = 3
"""A child may be silent this many times longer than a parent."""


class DistributionAgent:
    """The driver feeds and empties `fanout`; nobody else opens links, legs or streams in it."""

    def __init__(
        self,
        config: TreeConfig,
        randomness: Randomness,
        counters: Counters,
        *,
        models: Iterable[MessageModel] = (),
    ) -> None:
        self.fanout = fanout = Fanout(
            id_of(config.tree),
            history_size=config.history_bytes,
            streams_max=config.streams_max,
            links_max=config.children_max + EXTRA_LINKS,
            legs_max=LEGS_PER_CHILD * config.children_max,
            wants_max=WANTS_PER_CHILD * config.children_max,
            queue_packets_max=config.queue_packets,
        )
        self.environment = environment = Environment(config, counters)
        self.membership = membership = Membership(config.name, config.role)
        self.streams = streams = StreamTable(environment, fanout)
        self.children = children = ChildTable()
        self.outbox = outbox = Outbox(environment, fanout, membership, children)
        self.upstream = upstream = Upstream(environment, fanout, membership, streams, children, outbox)
        self._catch_up = CatchUp(environment, fanout, membership, streams, children, outbox, upstream)
        self.downstream = Downstream(
            environment, fanout, membership, streams, children, outbox, self._catch_up, WantCompiler(models)
        )
        self.load_balancer = LoadBalancer(environment, fanout, children, outbox, self.downstream)
        self.parents = ParentSelection(environment, fanout, membership, outbox, upstream, randomness)
        self._peers = Peers(environment, children)
        self.sequencer = Sequencer(environment, fanout, membership, streams, children, outbox)
        self._heartbeat_ns: int | None = None
        self._heartbeats = 0
        self._has_new_notices = False
        """True if something was done that may have made new notices."""
        self._is_more = False
        """True if notices are left for the next turn."""

    def reconfigure(self, config: TreeConfig) -> None:
        """Use what may change while the agent runs: its tables and limits."""
        self.environment.config = config

    # Events

    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        self.environment.now_ns = now_ns
        # Appended and Tick events follow each other while much is appended: each would append more.
        if not isinstance(event, Appended | Tick):
            self.sequencer.take_sequenced()
        match event:
            case Noticed():
                self._take_turn()
            case Arrived():
                self._arrived(event.link, event.party)
            case LinkClosed():
                self._link_closed(event.link)
            case Connected():
                self.parents.connected(event.attempt, event.link, event.name)
            case ConnectFailed():
                self._pass_on(self.parents.failed(event.attempt, event.why))
            case JournalRead():
                self._catch_up.journal_read(event)
            case Appended():
                self.sequencer.appended(event.stream, event.through)
            case Tick():
                if self._is_more:
                    self._take_turn()
                self._tick()
            case Start():
                self._start(event)
            case _:
                self._operate(event)
        self._end_event()
        self._catch_up.take_turn()
        self.sequencer.replicate()
        return self.outbox.take()

    def _end_event(self) -> None:
        """Take a turn if the event may have made new notices."""
        do_publishers_continue = self.sequencer.settle()
        is_distributed = self.sequencer.take_distributed()
        if do_publishers_continue or is_distributed or self._has_new_notices:
            self._take_turn()
            # In the turn the sequencer holds the intake when a publisher's message takes the slow path. If the intake
            # opens again, publishers continue, and may have notices for the next turn.
            self._is_more |= self.sequencer.settle()

    def _operate(
        self, event: Renewed | GotToken | Revoke | Restore | Move | SendBack | Promote | Define | Busy | Stop
    ) -> None:
        """Events from an operator, the administration server or the node."""
        match event:
            case Renewed():
                self._renewed(event)
            case GotToken():
                self.parents.renew(event.token, self._peers.dialled_links())
            case Revoke():
                self._revoke(event)
            case Restore():
                self.downstream.entitlements.restore(event.name)
            case Move():
                self.load_balancer.move(event.name, event.place, event.reason)
            case SendBack():
                self.load_balancer.send_back(event.name, event.reason)
            case Promote():
                self._promote()
            case Define():
                if self.membership.role == "root":
                    self.sequencer.define(event.name, event.topics)
            case Busy():
                if self.load_balancer.set_load(event.percent):
                    self.parents.inform_parent(Load(self._name, self.load_balancer.percent))
                self.load_balancer.balance()
            case Stop():
                self.outbox.inform(Stopping(self._name, event.reason[:256]))
            case _:
                refuse(self, event)

    def next_deadline_ns(self) -> int | None:
        if self._is_more:
            return self.environment.now_ns
        if self._heartbeat_ns is None:
            return None
        found = [self._heartbeat_ns, *self.parents.deadlines_ns(), *self._peers.deadlines_ns()]
        found += self.sequencer.deadlines_ns()
        found += [each for each in (self._catch_up.deadline_ns(), self._promotion_ns()) if each is not None]
        return min(found)

    def _pass_on(self, events: Iterable[ParentEvent]) -> None:
        """Carry the events of one part to the others."""
        for event in events:
            match event:
                case ParentReady():
                    self.sequencer.replica.set_link(self.upstream.link)
                    self._catch_up.serve_all()
                case RelayEnded(child):
                    self._catch_up.relay_ended(child)
                case StreamLearned(stream, is_term_new):
                    if self.membership.role == "standby":
                        self.sequencer.replica.stream_learned(stream, is_term_new=is_term_new)
                case PeerConnected():
                    self._peer_connected(event)
                case PeerUnreachable(place):
                    self._peers.failed(place)
                case HigherTermSeen(term, place):
                    self._fence(term, place)

    @property
    def _name(self) -> str:
        return self.environment.config.name

    # Links

    def _start(self, event: Start) -> None:
        self.membership.set_place(event.place)
        self.sequencer.start(event)
        self._heartbeat_ns = self.environment.now_ns
        self.parents.start()
        self._peers.start()
        if self.membership.role == "root" and self.membership.standby_place:
            self.parents.probe(self.membership.standby_place)

    def _arrived(self, link: int, party: Party) -> None:
        membership = self.membership
        is_agent = self.downstream.is_agent_of_tree(party)
        if party.term > membership.term and membership.role == "root" and is_agent:
            self._fence(party.term, membership.standby_place)
        is_publisher = party.role == "publisher"
        through = self.sequencer.persisted_through(party.publisher_id) if is_publisher else 0
        is_id_taken = is_publisher and self.sequencer.is_id_of_another(party)
        self.downstream.open_link(link, party)
        refusal = self.downstream.refusal_of(party, is_id_taken=is_id_taken)
        if refusal is not None:
            self.downstream.refuse(link, refusal)
            return
        for child in self.downstream.replaced_by(party):
            self._end_child(child.link, Refused("replaced", f"{party.name} has opened a newer link"))
        child = self.downstream.admit(link, party, through)
        match party.role:
            case "publisher":
                self.sequencer.allow(child, self.downstream.entitlements.revoked(party)[0])
            case "standby":
                self.sequencer.add_standby(link)
            case "peer":
                self.upstream.add_peer(link)

    def _peer_connected(self, event: PeerConnected) -> None:
        if self._peers.is_redundant(event.name):
            self.outbox.close(event.link, "peered")
            self._pass_on(self.upstream.drop_link(event.link))
            self._peers.failed(event.place)
            return
        self.downstream.admit_dialled_peer(event.link, Party(event.name, "peer", event.welcome.tree, event.place))
        for info in event.welcome.streams:
            self._pass_on(self.upstream.learn(info, is_from_peer=True))
        self.upstream.add_peer(event.link)

    def _link_closed(self, link: int) -> None:
        self._forget(link)
        if link in self.environment.accounts.open:
            self.environment.accounts.end(link, self.fanout.link(link))
        self.fanout.close_link(link)

    def _close(self, link: int, cause: str, reason: str = "") -> None:
        """Close a link, and go on as if it were closed."""
        self.outbox.close(link, cause, reason)
        self._forget(link)

    def _forget(self, link: int) -> None:
        self._remove_child(link)
        self._pass_on(self.parents.link_closed(link))

    def _end_child(self, link: int, refusal: Refused) -> None:
        """Refuse a child and close its link, with the reason."""
        self._remove_child(link)
        self.downstream.refuse(link, refusal)

    def _remove_child(self, link: int) -> None:
        child = self.downstream.remove(link)
        if child is None:
            return
        self.sequencer.child_removed(child)
        if child.party.role == "peer":
            self._pass_on(self.upstream.remove_peer(link))
            self._peers.left(child.party.place)

    # Notices

    def _take_turn(self) -> None:
        """Handle a bounded number of notices; if there are more, timers and other events come first."""
        self._has_new_notices = False
        self.sequencer.take_distributed()
        left = NOTICES_PER_TURN
        while left > 0 and (notices := self.fanout.notices(left)):
            left -= len(notices)
            for notice in notices:
                try:
                    self._noticed(notice)
                except PenstockError as error:  # a fault of one link does not concern the others
                    self._link_ended(LinkEnded(notice.link, Cause.FAILED, str(error)))
        self._is_more = self.fanout.release_held()

    def _noticed(self, notice: Notice) -> None:
        match notice:
            case ControlFrame():
                self._control(notice.link, notice.payload)
            case InfoPacket():
                self._info(notice.link, notice.packet)
            case LegBlock():
                try:
                    self._leg_block(notice)
                finally:
                    self.fanout.resume(notice.link)
            case PublishedBlock():
                self._published(notice)
            case LeftLive():
                leg = self.children.leg(notice.link, notice.leg)
                if leg is not None:
                    self._catch_up.left_live(leg, notice.through)
            case NewerTerm():
                self._newer_term(notice)
            case LinkEnded():
                self._link_ended(notice)

    def _link_ended(self, notice: LinkEnded) -> None:
        """The peer closed the link, or violated the protocol or was too slow for its class; in the latter cases it
        is told."""
        self.environment.counters.add("connections_closed", cause=notice.cause)
        if notice.link in self.children and notice.cause != Cause.CLOSED:
            self.outbox.send(notice.link, Refused(notice.cause, notice.reason[:256]))
        self._close(notice.link, notice.cause, notice.reason)

    def _published(self, notice: PublishedBlock) -> None:
        child = self.children.get(notice.link)
        refusal = None if child is None else self.sequencer.published(child, notice.packets)
        if refusal is not None:
            self._end_child(notice.link, refusal)

    def _leg_block(self, notice: LegBlock) -> None:
        """Packets of the past arrived on one of this agent's legs."""
        leg = self.upstream.leg(notice.link, notice.leg)
        if leg is None:
            return
        if leg.child is not None:
            self._catch_up.relay_block(leg, notice.packets)
        elif self.membership.role != "standby":
            self.upstream.absorb(leg, notice.packets)
            self._has_new_notices = True
        elif not self.sequencer.replica.append(leg.stream, notice.packets):
            self._pass_on(self.upstream.lagging(leg))

    def _newer_term(self, notice: NewerTerm) -> None:
        """Packets of a term that was not announced: the term begins with them."""
        stream = self.streams.get(notice.stream)
        if stream is not None:
            info = stream.info
            if notice.term > stream.term:
                after = max(notice.sequence, 1) - 1
                self._stream_defined(StreamDefined(info.number, info.name, info.topics, notice.term, after))
            self.fanout.set_stream(stream.number, term=notice.term, last=self.streams.last(stream.number))
        self.fanout.resume(notice.link)
        self._has_new_notices = True

    # Control messages

    def _control(self, link: int, payload: bytes) -> None:
        try:
            message = TREE.decode(payload)
        except UnknownMessageError:
            self.environment.counters.add("messages_skipped", cause=Cause.MESSAGE)
            return
        except RemoteProtocolError as error:
            self._misbehaved(link, str(error))
            return
        match message:
            case Ping():
                now_ns = self.environment.now_ns
                pong = encode_frame(encode_session(Pong(message.t1, now_ns, now_ns)))
                self.outbox.send_frames(link, pong, is_behind=False)
            case Pong():
                pass
            case Goodbye() | ErrorMessage():
                self._close(link, Cause.GOODBYE)
            case Welcome() | Held() | Fetched() | Published() | Refused():
                self._message_from_above(link, message)
            case Bearers(bearers):
                if self.membership.role == "standby" and link == self.sequencer.replica.link:
                    self.sequencer.replica.note_bearers(bearers)
            case Subscribe() | Fetch() | Unsubscribe() | Stored() | RenewToken():
                self._message_from_below(link, message)
            case _:
                self._misbehaved(link, f"a {type(message).__name__} out of turn")

    def _misbehaved(self, link: int, why: str) -> None:
        self.environment.counters.add("connections_closed", cause=Cause.MESSAGE)
        self.outbox.send(link, Refused("message", why[:256]))
        self._close(link, Cause.MESSAGE, why)

    def _message_from_below(self, link: int, message: Subscribe | Fetch | Unsubscribe | Stored | RenewToken) -> None:
        child = self.children.get(link)
        if child is None:
            return
        match message:
            case Subscribe():
                self.downstream.subscribe(child, message)
            case Fetch():
                self.downstream.fetch(child, message)
            case Unsubscribe():
                self.downstream.unsubscribe(child, message)
            case Stored():
                self.sequencer.note_stored(link, message)
            case RenewToken():
                self.outbox.instruct(CheckToken(link, message.token))
        if child.party.role == "standby":
            self.sequencer.replicate()

    def _message_from_above(self, link: int, message: Welcome | Held | Fetched | Published | Refused) -> None:
        attempt = self.parents.attempt_on(link)
        if isinstance(message, Welcome):
            if attempt is not None:
                self._pass_on(self.parents.welcome(attempt, message))
        elif isinstance(message, Refused) and not message.number:
            if attempt is not None:
                self._pass_on(self.parents.refused(attempt, message))
            else:
                self._close(link, message.code, message.reason)
        elif not isinstance(message, Published):
            leg = self.upstream.leg(link, message.number)
            if leg is not None:
                self._answer_about_leg(leg, message)

    def _answer_about_leg(self, leg: UpstreamLeg, message: Held | Fetched | Refused) -> None:
        if isinstance(message, Refused):
            self._catch_up.relay_refused(leg, message)
            self.upstream.refused(leg)
        elif leg.child is not None:
            if isinstance(message, Held):
                self._catch_up.relay_held(leg, message)
            else:
                self._catch_up.relay_fetched(leg, message)
        elif self.upstream.held(leg, message) if isinstance(message, Held) else self.upstream.fetched(leg, message):
            self._pass_on(self.parents.link_complete(leg.link))

    # The infostream (TREE-3)

    def _info(self, link: int, packet: bytes) -> None:
        """Only agents send on the infostream, and each for itself."""
        name = self._agent_on(link)
        if name is None:
            return
        try:
            heard = decode_info(packet)
        except PacketError as error:
            self.environment.counters.add("messages_skipped", cause=error.cause)
            return
        if heard.publisher_id != id_of(name):
            self._misbehaved(link, f"{name} sent a message on the infostream of another agent")
            return
        self.outbox.instruct(Informed("heard", link, name, heard.info))
        self._informed(link, heard.info)

    def _agent_on(self, link: int) -> str | None:
        if link == self.upstream.link:
            return self.membership.parent
        child = self.children.get(link)
        if child is not None:
            return child.party.name
        attempt = self.parents.attempt_on(link)
        return None if attempt is None else attempt.name

    def _informed(self, link: int, info: Info) -> None:
        attempt = self.parents.attempt_on(link)
        if link == self.upstream.link:
            if not self._informed_about_stream(link, info):
                self._informed_by_parent(info)
        elif attempt is not None:
            if not self._informed_about_stream(link, info) and isinstance(info, Path | ParentFound):
                self._pass_on(
                    self.parents.set_path_of_attempt(attempt, info.path, is_rooted=info.is_rooted, term=info.term)
                )
        elif link in self.upstream.peers:
            if self.membership.role != "root":  # a root defines its streams itself
                self._informed_about_stream(link, info)
        elif isinstance(info, Load) and (child := self.children.get(link)) is not None:
            self.downstream.set_load(child, info.percent)

    def _informed_about_stream(self, link: int, info: Info) -> bool:
        """Handle a message that every link with streams may send. False for other kinds."""
        match info:
            case Through():
                stream = self.streams.get(info.stream)
                if stream is not None and info.term == stream.term:
                    self.upstream.advance(link, stream, info.last)
            case Lagging():
                leg = self.upstream.leg(link, info.leg)
                if leg is not None and leg.child is None:
                    self._pass_on(self.upstream.lagging(leg))
            case Gone():
                leg = self.upstream.leg(link, info.leg)
                if leg is not None and leg.child is not None:
                    self._catch_up.relay_gone(leg, info)
                elif leg is not None:
                    self._gone(info)
            case Diverged():
                self._diverged(info)
            case StreamDefined():
                self._stream_defined(info, is_from_peer=link in self.upstream.peers)
            case _:
                return False
        return True

    def _gone(self, info: Gone) -> None:
        """Messages that are lost for good here are lost for all children."""
        if self.membership.role == "standby":
            self.sequencer.replica.gone(info.stream, info.first, info.last)
        links = self.children.links_with(info.stream)
        self.outbox.inform(Gone(info.stream, 0, info.first, info.last), links)

    def _diverged(self, info: Diverged) -> None:
        """An agent that knows where the term ended has removed the rest already."""
        stream = self.streams.get(info.stream)
        if stream is None or not info.first or self.streams.last(info.stream) < info.first:
            return
        end = stream.end_of(info.term)
        if end is None or end >= info.first:
            self.upstream.take_back(stream, info.term, info.first - 1)

    def _stream_defined(self, info: StreamDefined, *, is_from_peer: bool = False) -> None:
        known = self.streams.get(info.number)
        begins = known.info.begins if known is not None else ()
        if not info.topics or (begins and info.term < begins[-1][0]):
            return
        if not begins or info.term > begins[-1][0]:
            begins = (*(each for each in begins if each[1] < info.after), (info.term, info.after))[-TERMS_MAX:]
        stream = StreamInfo(info.number, info.name, info.topics, begins)
        self._pass_on(self.upstream.learn(stream, is_from_peer=is_from_peer))

    def _informed_by_parent(self, info: Info) -> None:
        on = self.environment.config.on
        match info:
            case Path() | ParentFound():
                self._pass_on(self.parents.set_path(info.path, is_rooted=info.is_rooted, term=info.term))
            case ParentLost():
                self.parents.parent_lost_its_own()
            case Siblings():
                self.downstream.set_siblings(info.agents)
            case Alternates():
                self.parents.set_alternates(info.agents)
            case MoveTo():
                if on.move == "obey":
                    self.parents.move(info.place, Neighbour(self.membership.parent, self.parents.place))
            case ReturnTo():
                if on.send_back == "obey":
                    self.parents.return_home()
            case Stopping():
                self.parents.parent_stops()
            case Root():
                if self.membership.learn_root(info.term, info.root, info.standby):
                    self.outbox.inform(info)
            case _:
                pass

    # Operators

    def _renewed(self, event: Renewed) -> None:
        child = self.children.get(event.link)
        if child is None:
            return
        if event.refusal:
            self._end_child(event.link, Refused("token", event.refusal[:256]))
            return
        self.downstream.renew(child, event.grants)
        if child.party.role == "publisher":
            self.sequencer.allow(child, self.downstream.entitlements.revoked(child.party)[0])

    def _revoke(self, event: Revoke) -> None:
        if self.downstream.revoke(event.name, event.topics, event.reason, is_lasting=event.is_lasting):
            self._has_new_notices = True
        entitlements = self.downstream.entitlements
        for child in self.children.of_role("publisher"):
            if not child.party.is_called(event.name):
                continue
            if event.topics and entitlements.revocation_reason(child.party) is None:
                self.sequencer.allow(child, entitlements.revoked(child.party)[0])
            else:
                self._end_child(child.link, Refused("revoked", f"its authority was revoked: {event.reason}"[:256]))

    # Takeover and fencing

    def _promote(self) -> None:
        """Promote a standby, unless it has never learned of a term and so has no state to continue from."""
        if self.membership.role == "standby" and self.membership.term:
            self._pass_on(self.parents.give_up())
            self.sequencer.promote()

    def _promotion_ns(self) -> int | None:
        """The time at which a standby that has lost its root takes over by itself."""
        on = self.environment.config.on
        is_alone = self.membership.role == "standby" and self.upstream.link is None
        if not is_alone or on.root_lost != "promote" or not self.sequencer.replica.was_linked:
            return None
        return self.parents.lost_ns + on.promote_after_ms * NS_PER_MS

    def _fence(self, term: int, place: str) -> None:
        """Another root has a higher term: stop serving."""
        if self.membership.role == "root":
            refusal = self.sequencer.fence(term, place)
            for link in self.children.links():
                self._end_child(link, refusal)
            self.outbox.report_membership()

    # Time

    def _tick(self) -> None:
        now_ns = self.environment.now_ns
        self._pass_on(self.parents.tick())
        for place in self._peers.due():
            self.parents.connect(place, "peer")
        self._pass_on(self.parents.check_silence())
        for link in self.sequencer.tick():
            self._end_child(link, Refused("silent", "the standby did not answer in time"))
        promotion_ns = self._promotion_ns()
        if promotion_ns is not None and now_ns >= promotion_ns:
            self._promote()
        if self._heartbeat_ns is not None and now_ns >= self._heartbeat_ns:
            self._heartbeat_ns = now_ns + self.environment.config.heartbeat_ms * NS_PER_MS
            self._heartbeats += 1
            self._heartbeat()
        self.upstream.tick()

    def _heartbeat(self) -> None:
        self.downstream.heartbeat()
        silence_ns = CHILD_SILENCES * self.environment.config.silence_ms * NS_PER_MS
        for child in self.downstream.ping(silence_ns):
            self._end_child(child.link, Refused("silent", "no data arrived within the time limit"))
        standby_place = self.membership.standby_place
        is_probe_due = self._heartbeats % PROBE_HEARTBEATS == 0 and not self.children.of_role("standby")
        if self.membership.role == "root" and standby_place and is_probe_due:
            self.parents.probe(standby_place)
