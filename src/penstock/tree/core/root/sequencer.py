"""Sequencer: the root of a tree numbers, persists, replicates and only then distributes messages (TREE-1, 5, 11).

A publisher's block is handled in steps: duplicates are dropped by the publisher's numbers; each message gets the next
sequence of its stream; the packets go to the journal and to the standbys; when the journal has them (and, with
synchronous replication, the standbys too) they are distributed and acknowledged, in the order in which they came. Most
messages take a shorter path (intake_gate.py): they are already in the tail, which outlives this process, and
distributed when the sequencer learns of them; the journal gets them, and they are acknowledged.

A **term** is the time of one root: `term >> 16` counts takeovers by a standby, the rest restarts. In every stream a
term begins after some sequence. Messages of an older term after that sequence are not part of the stream.
"""

from collections import deque

import msgspec

from penstock.base.counters import Cause
from penstock.base.errors import LimitError, PenstockError, TopicError
from penstock.middleware.core.reserved_topics import RESERVED_PREFIX
from penstock.topics import InterestTable
from penstock.tree.core.children import Child, ChildTable
from penstock.tree.core.control import TERMS_MAX, Published, Refused, Stored, StreamInfo
from penstock.tree.core.environment import Environment
from penstock.tree.core.events import Append, DefineStream, Party, Start
from penstock.tree.core.infostream import NAME, TEXT_SIZE_MAX, Root, StreamDefined, id_of
from penstock.tree.core.kernel._fanout import Fanout
from penstock.tree.core.kernel._frame import split_packets
from penstock.tree.core.kernel._number import Numbered, Numbering
from penstock.tree.core.kernel._tail import TailMemory
from penstock.tree.core.membership import Membership
from penstock.tree.core.outbox import Outbox
from penstock.tree.core.root.acknowledgements import Acknowledgements
from penstock.tree.core.root.intake_gate import IntakeGate
from penstock.tree.core.root.publisher_positions import PublisherPositions
from penstock.tree.core.root.replica import Replica
from penstock.tree.core.root.standbys import Standbys
from penstock.tree.core.streams import Stream, StreamTable
from penstock.wire import decode

LINEAGE_SHIFT = 16
SEED = bytes(16)


def next_restart(term: int) -> int:
    return term + 1


def next_takeover(term: int) -> int:
    return ((term >> LINEAGE_SHIFT) + 1) << LINEAGE_SHIFT


class PendingBlock(msgspec.Struct):
    """Sequenced packets of one publisher that are not distributed and acknowledged yet."""

    publisher_id: int
    before: int
    through: int
    """The publisher's own numbers: of the message before these, and of the last one."""
    needs: dict[int, int]
    """By stream: the sequence that must be persisted."""
    packets: bytes
    """b"": they are distributed, and wait only for their acknowledgement."""


class Sequencer:
    """Composed of what a root needs (intake gate, standbys, acknowledgements) and what a standby needs (replica)."""

    def __init__(
        self,
        environment: Environment,
        fanout: Fanout,
        membership: Membership,
        streams: StreamTable,
        children: ChildTable,
        outbox: Outbox,
    ) -> None:
        self._environment = environment
        self._fanout = fanout
        self._membership = membership
        self._streams = streams
        self._children = children
        self._outbox = outbox
        self.replica = Replica(environment, fanout, streams, outbox)
        self._intake = IntakeGate(environment, fanout)
        self._standbys = Standbys(environment, fanout, streams, children, outbox)
        self._acknowledgements = Acknowledgements(environment, children, outbox)
        self.wall_offset_ns = 0
        """Wall clock minus the core's clock."""
        self._tree_id = id_of(environment.config.tree)
        self._numbering: Numbering | None = None
        """None unless this agent is the root."""
        self._topics = InterestTable(seed=SEED)
        """The topics of each stream."""
        self._allowed: dict[int, InterestTable | None] = {}
        """By link: the topics on which the publisher may publish; None: all."""
        self._pending: deque[PendingBlock] = deque()
        self._appended: dict[int, int] = {}
        """By stream: the last persisted sequence."""
        self._has_distributed = False

    def set_tail(self, tail: TailMemory) -> None:
        """Messages in the tail outlive the process; without a tail there is no intake."""
        self._intake.set_tail(tail)

    # Start

    def start(self, event: Start) -> None:
        self.wall_offset_ns = event.wall_ns - self._environment.now_ns
        config = self._environment.config
        if config.role == "agent":
            return
        for recovered in event.streams:
            self._open(recovered.info, recovered.last)
        positions = PublisherPositions(event.publishers, event.bearers)
        for publisher_id, numbers in event.beyond.items():
            positions.note_numbers(publisher_id, numbers)
        self.replica.recover(positions)
        self._membership.recover(event.term)
        if config.role == "root" or event.was_root:
            self._become_root(next_restart(event.term) if event.term else 1 << LINEAGE_SHIFT)
            self._define_configured()
        else:
            self.replica.start()

    def _open(self, info: StreamInfo, last: int) -> Stream:
        stream = self._streams.open(info, last=last, term=Stream(info).term)
        self._appended[stream.number] = last
        return stream

    def _become_root(self, term: int) -> None:
        self._membership.become_root(term, self._environment.config.standby)
        self._fanout.be_origin()
        self._numbering = Numbering(self._tree_id, term)
        self._intake.begin_term(self._tree_id, term, self._topics, self.wall_offset_ns)
        self.replica.publishers.since_ns = self._environment.now_ns
        for stream in self._streams:
            last = self._streams.last(stream.number)
            kept = [each for each in stream.info.begins if each[1] < last]
            begins = (*kept, (term, last))[-TERMS_MAX:]
            self._streams.replace(msgspec.structs.replace(stream.info, begins=begins))
            self._fanout.set_stream(stream.number, term=term, last=last)
            self._number_stream(stream, last)
            self._outbox.instruct(DefineStream(stream.info))
        self._outbox.report_membership()

    def _number_stream(self, stream: Stream, last: int) -> None:
        assert self._numbering is not None
        self._numbering.open_stream(stream.number, last)
        accepted = self._fanout.stream(stream.number).accepted
        self._environment.accounts.begun[stream.number] = (last, accepted)
        with self._fanout:
            for topic in stream.info.topics:
                self._topics.add(topic, stream.number)

    def _define_configured(self) -> None:
        for config in self._environment.config.streams:
            self.define(config.name, config.topics)

    def define(self, name: str, topics: tuple[str, ...]) -> Stream:
        """Define a stream of this name; an existing one gets these topics."""
        if name == NAME:
            raise TopicError(f"{name!r} is reserved", hint="choose another name for the stream")
        if len(" ".join(topics).encode()) > TEXT_SIZE_MAX:
            raise LimitError(f"the topics of {name} are too long", hint=f"at most {TEXT_SIZE_MAX} bytes")
        known = self._streams.named(name)
        if known is not None:
            self._set_topics(known, topics)
            return known
        if self._streams.is_full:
            raise LimitError(f"there are {len(self._streams)} streams already", hint="raise streams_max")
        number = 1 + max(self._streams.numbers(), default=0)
        stream = self._open(StreamInfo(number, name, topics, ((self._membership.term, 0),)), 0)
        self._number_stream(stream, 0)
        self._announce(stream)
        return stream

    def _set_topics(self, stream: Stream, topics: tuple[str, ...]) -> None:
        if stream.info.topics == topics:
            return
        with self._fanout:
            for topic in stream.info.topics:
                self._topics.remove(topic, stream.number)
            for topic in topics:
                self._topics.add(topic, stream.number)
        self._streams.set_topics(stream, topics)
        self._announce(stream)

    def _announce(self, stream: Stream) -> None:
        info = stream.info
        term, after = info.begins[-1]
        self._outbox.instruct(DefineStream(info))
        self._outbox.inform(StreamDefined(info.number, info.name, info.topics, term, after))

    # Publishers

    def allow(self, child: Child, revoked: tuple[str, ...]) -> None:
        """A publisher has logged in, or its entitlements have changed."""
        self._dismiss(child.link)
        self._acknowledgements.add(child.party.publisher_id, child.link)
        self._standbys.send_bearers([(child.party.publisher_id, child.party.subject)])
        grants = child.party.grants
        if grants is None and not revoked:
            self._allowed[child.link] = None
            return
        sends = (">",) if grants is None else tuple(each.pattern for each in grants if each.action == "send")
        table = self._allowed[child.link] = InterestTable(seed=SEED)
        for pattern in (*sends, *revoked, f"!{RESERVED_PREFIX}>"):
            table.add(pattern, 0)

    def accepted_through(self, publisher_id: int) -> int:
        """The publisher's last number that is persisted, or about to be."""
        return self.replica.publishers.get(publisher_id)

    def persisted_through(self, publisher_id: int) -> int:
        """The publisher's last number that is persisted; pending messages may still be lost."""
        waiting = (each.before for each in self._pending if each.publisher_id == publisher_id)
        return next(waiting, self.accepted_through(publisher_id))

    def is_id_of_another(self, party: Party) -> bool:
        """True if the party's publisher id belongs to another client."""
        return self.replica.publishers.is_of_another(party.publisher_id, party.subject)

    def note_bearer(self, party: Party) -> None:
        """A publisher id belongs to the client that has published with it first."""
        positions = self.replica.publishers
        if party.publisher_id in positions:
            positions.bearers.setdefault(party.publisher_id, party.subject)

    def child_removed(self, child: Child) -> None:
        self.note_bearer(child.party)
        self._dismiss(child.link)
        self._allowed.pop(child.link, None)
        self._acknowledgements.remove(child.link)
        if self._standbys.remove(child.link):
            self._distribute()

    def _dismiss(self, link: int) -> None:
        """From now on the sequencer checks the link's messages, until the intake may do so again."""
        with self._fanout:
            self.take_sequenced()
            self._fanout.dismiss(link)

    def _hold_intake(self) -> None:
        """Until the end of this event only the sequencer assigns sequences; it knows all that the intake has
        assigned."""
        self._intake.hold()
        self.take_sequenced()

    def take_sequenced(self) -> None:
        """Pass the messages that the intake has sequenced to the journal; they are acknowledged when they are
        stored."""
        taken = self._intake.take()
        if taken is None or self._numbering is None:
            return
        if self._pending:  # the disk is behind: further messages wait for it
            self._intake.hold()
        needs: dict[int, int] = {}
        for stream, offsets, sizes in taken.streams():
            needs[stream] = self._numbering.last(stream) + len(sizes)
            self._numbering.set_last(stream, needs[stream])
            self._outbox.instruct(Append(stream, taken.packets, offsets, sizes, needs[stream], is_in_tail=True))
        for source in taken.sources:
            before = self.accepted_through(source.publisher_id)
            self.replica.publishers.set(source.publisher_id, source.through, self._environment.now_ns)
            self._count_published(source.link, source.messages)
            self._pending.append(PendingBlock(source.publisher_id, before, source.through, needs, b""))

    def _count_published(self, link: int, messages: int) -> None:
        self._environment.counters.add("messages_published", messages)
        self._environment.accounts.published(link, messages)

    def settle(self) -> bool:
        """At the end of an event. True if publishers that waited for the intake go on."""
        if self._standbys.come_first:  # perhaps only since the configuration was reloaded
            self._hold_intake()
        return self._intake.settle(is_distributed=not self._pending, is_wanted=not self._standbys.come_first)

    def published(self, child: Child, packets: bytes) -> Refused | None:
        """Handle a publisher's block. Return the refusal with which the publisher's link ends, or None."""
        if self._numbering is None:
            return None
        self._hold_intake()
        if not self._has_room(child.party.publisher_id):
            return Refused("limit", "there are too many publishers")
        try:
            for portion in self.replica.publishers.portions(child.party.publisher_id, packets):
                refusal = self._accept(child, portion)
                if refusal and self._create_on_use(portion, self.accepted_through(child.party.publisher_id)):
                    refusal = self._accept(child, portion)
                if refusal:
                    return Refused("publish", refusal[:256])
        except PenstockError as error:
            return Refused(error.code, str(error)[:256])
        return None

    def _has_room(self, publisher_id: int) -> bool:
        """Checked before anything is sequenced, because a sequenced message must be persisted."""
        positions = self.replica.publishers
        if publisher_id in positions:
            return True
        connected = {child.party.publisher_id for child in self._children}
        return positions.has_room(self._environment.config.publishers_max, self._environment.now_ns, connected)

    def _accept(self, child: Child, packets: bytes) -> str:
        """Sequence new messages up to the first refused one. Return the reason of the refusal, or ""."""
        assert self._numbering is not None
        now_ns = self._environment.now_ns + self.wall_offset_ns
        allowed = self._allowed.get(child.link)
        publisher_id = child.party.publisher_id
        through = self.accepted_through(publisher_id)
        numbered = self._numbering.number(packets, publisher_id, through, now_ns, topics=self._topics, allowed=allowed)
        self._persist(child, numbered)
        return numbered.refused

    def _create_on_use(self, packets: bytes, through: int) -> bool:
        """Create a stream for a message without one, if configured. True if it was created."""
        config = self._environment.config
        if not config.create_on_use:
            return False
        for packet in split_packets(packets):
            whole = decode(packet)
            if whole.sequence == through + 1 and len(whole) == 1:
                topic = whole[0].topic
                name = topic.split(".")[0]
                if self._streams.named(name) is None and not len(self._topics.match(topic)):
                    self.define(name, config.topics_on_use(name))
                    return True
        return False

    def _persist(self, child: Child, numbered: Numbered) -> None:
        if numbered.duplicates:
            self._environment.counters.add("messages_suppressed", numbered.duplicates, cause=Cause.DUPLICATE)
        publisher_id = child.party.publisher_id
        if not numbered.runs:
            if not any(each.publisher_id == publisher_id for each in self._pending):
                self._outbox.send(child.link, Published(self.accepted_through(publisher_id)))
            return
        before = self.accepted_through(publisher_id)
        self.replica.publishers.set(publisher_id, numbered.through, self._environment.now_ns)
        needs: dict[int, int] = {}
        count = 0
        for run, data, offsets, sizes in numbered.pieces():
            needs[run.stream] = run.first + run.count - 1
            self._outbox.instruct(Append(run.stream, data, offsets, sizes, needs[run.stream]))
            self._standbys.replicate(run.stream, data)
            count += run.count
        self._count_published(child.link, count)
        if self.replica.publishers.is_whole(publisher_id):
            self._fanout.admit(child.link, publisher_id, numbered.through, self._allowed.get(child.link))
        self._pending.append(PendingBlock(publisher_id, before, numbered.through, needs, numbered.packets))

    # Distribution

    def appended(self, stream: int, through: int) -> None:
        if self._membership.role != "root":
            self.replica.appended(stream, through)
            return
        self._appended[stream] = max(through, self._appended.get(stream, 0))
        self._distribute()

    def _distribute(self) -> None:
        """Distribute and acknowledge what is persisted."""
        acknowledged: dict[int, int] = {}
        degraded: set[int] = set()
        is_synchronous = self._environment.config.replicate == "synchronous"
        while self._pending and self._is_persisted(self._pending[0]):
            block = self._pending.popleft()
            if is_synchronous and not self._standbys.cover(block.needs):
                self._environment.counters.add("messages_degraded", block.through - block.before)
                degraded.add(block.publisher_id)
            if block.packets:
                self._fanout.absorb(block.packets)
                self._has_distributed = True
            acknowledged[block.publisher_id] = block.through
        for publisher_id, through in acknowledged.items():
            self._acknowledgements.kept(publisher_id, through, is_degraded=publisher_id in degraded)
        if acknowledged or not self._pending:
            self._standbys.stop_waiting()

    def take_distributed(self) -> bool:
        """True if something was distributed since the last call: the fan-out may have new notices."""
        taken, self._has_distributed = self._has_distributed, False
        return taken

    def _is_persisted(self, block: PendingBlock) -> bool:
        if any(self._appended.get(stream, 0) < last for stream, last in block.needs.items()):
            return False
        return self._environment.config.replicate != "synchronous" or self._standbys.have(block.needs)

    # Standbys

    def add_standby(self, link: int) -> None:
        """From now on nothing is distributed before it is sent to the standby: the intake stays closed."""
        self._hold_intake()
        self._standbys.add(link)
        connected = [each.party for each in self._children.of_role("publisher")]
        bearers = self.replica.publishers.bearers | {each.publisher_id: each.subject for each in connected}
        self._standbys.send_bearers(list(bearers.items()))

    @property
    def is_degraded(self) -> bool:
        """True if messages are acknowledged without the copy at a standby that the configuration requires."""
        is_synchronous = self._environment.config.replicate == "synchronous"
        return self._membership.role == "root" and is_synchronous and not self._standbys.is_following

    def replicate(self) -> None:
        """A standby's leg that has become live gets messages from the root itself, before they are distributed."""
        if self._membership.role == "root" and self._standbys.come_first:
            if self._standbys.end_streams():
                self._distribute()
            self._standbys.begin_streams([each.packets for each in self._pending if each.packets])

    def note_stored(self, link: int, message: Stored) -> None:
        if self._standbys.note_stored(link, message):
            self._distribute()

    # Time

    def deadlines_ns(self) -> list[int]:
        found = (self._acknowledgements.deadline_ns(), self._standbys.deadline_ns())
        return [each for each in found if each is not None]

    def tick(self) -> list[int]:
        """The links of standbys that did not answer in time."""
        self._acknowledgements.tick()
        until_ns = self._standbys.deadline_ns()
        if until_ns is None or self._environment.now_ns < until_ns:
            return []
        late = self._standbys.drop_late(self._pending[0].needs if self._pending else {})
        for _ in late:
            self._environment.counters.add("consumers_refused", cause=Cause.SILENT)
        self._distribute()
        return late

    # Takeover and fencing

    def promote(self) -> None:
        """The standby becomes the root; the agent has checked that it knows the tree."""
        self.replica.promote()
        for stream in self._streams:
            self._appended[stream.number] = self._streams.last(stream.number)
        self._environment.counters.add("terms_claimed", cause="takeover")
        self._become_root(next_takeover(self._membership.term))
        self._define_configured()
        membership = self._membership
        self._outbox.inform(Root(membership.term, membership.root_place, membership.standby_place))

    def fence(self, term: int, place: str) -> Refused:
        """Another root has a higher term: stop serving. Return the refusal for all children."""
        self._hold_intake()
        self._intake.end()
        undistributed = sum(1 for each in self._pending if each.packets)
        self._environment.counters.add("messages_suppressed", undistributed, cause=Cause.FENCED)
        self._membership.become_fenced(place)
        self._numbering = None
        self._pending.clear()
        why = f"{self._environment.config.name} was replaced in term {term}"
        return Refused("fenced", why, place=self._membership.standby_place)
