"""The root of a tree, and its standby: streams get their numbers, are kept, and only then distributed (TREE-1, 5, 11).

A publisher's block goes this way: what was taken before is dropped by its numbers; each message gets the next sequence
of its stream; the packets go to the journal and to the standby; when the journal has them (and, with synchronous
replication, the standby too) they are distributed and acknowledged, in the order in which they came. Most go a shorter
way (intake.py): they are in the tail, where they outlive this process, and distributed when they are heard of here;
the journal gets them, and they are acknowledged.

A **term** is the time of one root: `term >> 16` counts takeovers by a standby, the rest restarts. Each begins after
some sequence of every stream. What an older term gave out after that is no part of the stream: whoever has it is told
so.
"""

from collections import deque

import msgspec

from penstock.base.counters import Cause
from penstock.base.errors import LimitError, PenstockError, TopicError
from penstock.middleware.core.reserved_topics import RESERVED_PREFIX
from penstock.topics import InterestTable
from penstock.tree.core.board import Board, Child, Stream
from penstock.tree.core.children import Children
from penstock.tree.core.control import TERMS_MAX, Published, Refused, Stored, StreamInfo
from penstock.tree.core.events import Append, DefineStream, Party, Start
from penstock.tree.core.infostream import NAME, TEXT_SIZE_MAX, Root, StreamDefined, id_of
from penstock.tree.core.kernel._frame import split_packets
from penstock.tree.core.kernel._number import Numbered, Numbering
from penstock.tree.core.root.acknowledgements import Acknowledging, Pending
from penstock.tree.core.root.intake import Intaking
from penstock.tree.core.root.publisher_positions import PublisherMarks
from penstock.tree.core.root.replica import Replica
from penstock.tree.core.root.standbys import Standbys
from penstock.wire import decode

LINEAGE_SHIFT = 16
SEED = bytes(16)


def next_restart(term: int) -> int:
    return term + 1


def next_takeover(term: int) -> int:
    return ((term >> LINEAGE_SHIFT) + 1) << LINEAGE_SHIFT


class Rooting:
    def __init__(self, board: Board, children: Children) -> None:
        self._board = board
        self._children = children
        self.replica = Replica(board)
        self.intaking = Intaking(board)
        self.wall_offset_ns = 0
        """What the wall clock is ahead of the core's."""
        self._tree_id = id_of(board.config.tree)
        self._numbering: Numbering | None = None
        self._topics = InterestTable(seed=SEED)
        self._allowed: dict[int, InterestTable | None] = {}
        self._pending: deque[Pending] = deque()
        self._appended: dict[int, int] = {}
        self._standbys = Standbys(board, children)
        self._acknowledging = Acknowledging(board)

    # Beginning

    def start(self, event: Start) -> None:
        board = self._board
        for recovered in event.streams:
            self._open(Stream(recovered.info), recovered.last)
        marks = self.replica.publishers = PublisherMarks(event.publishers, event.bearers)
        for publisher_id, numbers in event.beyond.items():
            marks.note_numbers(publisher_id, numbers)
        board.term = event.term
        if board.config.role == "root" or event.was_root:
            self._rule(next_restart(event.term) if event.term else 1 << LINEAGE_SHIFT)
            for config in board.config.streams:
                self.define(config.name, config.topics)
        else:
            self.replica.start()

    def _open(self, stream: Stream, last: int) -> None:
        board = self._board
        board.streams[stream.number] = stream
        board.numbers[stream.info.name] = stream.number
        board.fanout.open_stream(stream.number, term=stream.term, last=last)
        board.ledger.begun[stream.number] = (last, 0)
        self._appended[stream.number] = last

    def _rule(self, term: int) -> None:
        """Be the root, in this term."""
        board = self._board
        board.role, board.term, board.is_rooted = "root", term, True
        board.fanout.be_origin()
        board.path, board.parent, board.root_place = (board.config.name,), "", board.place
        board.standby_place = board.config.standby if board.config.standby != board.place else ""
        self._numbering = Numbering(self._tree_id, term)
        self.intaking.begin(self._tree_id, term, self._topics, self.wall_offset_ns)
        self.replica.publishers.since_ns = board.now_ns
        for stream in board.streams.values():
            last = board.last(stream.number)
            kept = [each for each in stream.info.begins if each[1] < last]
            begins = (*kept, (term, last))[-TERMS_MAX:]
            stream.info = msgspec.structs.replace(stream.info, begins=begins)
            board.fanout.set_stream(stream.number, term=term, last=last)
            self._number_stream(stream, last)
            board.out.append(DefineStream(stream.info))
        board.show()

    def _number_stream(self, stream: Stream, last: int) -> None:
        assert self._numbering is not None
        self._numbering.open_stream(stream.number, last)
        self._board.ledger.begun[stream.number] = (last, self._board.fanout.stream(stream.number).accepted)
        with self._board.fanout:
            for topic in stream.info.topics:
                self._topics.add(topic, stream.number)

    def define(self, name: str, topics: tuple[str, ...]) -> Stream:
        """A stream of this name; one that there is already gets these topics."""
        board = self._board
        if name == NAME:
            raise TopicError(f"{name!r} is reserved", hint="choose another name for the stream")
        if len(" ".join(topics).encode()) > TEXT_SIZE_MAX:
            raise LimitError(f"the topics of {name} are too long", hint=f"at most {TEXT_SIZE_MAX} bytes")
        known = board.stream_of(name)
        if known is not None:
            self._retopic(known, topics)
            return known
        if len(board.streams) >= board.config.streams_max:
            raise LimitError(f"there are {len(board.streams)} streams already", hint="raise streams_max")
        number = 1 + max(board.streams, default=0)
        stream = Stream(StreamInfo(number, name, topics, ((board.term, 0),)))
        self._open(stream, 0)
        self._number_stream(stream, 0)
        self._announce(stream)
        return stream

    def _retopic(self, stream: Stream, topics: tuple[str, ...]) -> None:
        if stream.info.topics == topics:
            return
        with self._board.fanout:
            for topic in stream.info.topics:
                self._topics.remove(topic, stream.number)
            for topic in topics:
                self._topics.add(topic, stream.number)
        stream.info = msgspec.structs.replace(stream.info, topics=topics)
        self._announce(stream)

    def _announce(self, stream: Stream) -> None:
        info = stream.info
        term, after = info.begins[-1]
        self._board.out.append(DefineStream(info))
        self._board.inform(StreamDefined(info.number, info.name, info.topics, term, after))

    # Publishers

    def arrived(self, child: Child, revoked: tuple[str, ...]) -> None:
        """Of a publisher: what it may publish."""
        self._dismiss(child.link)
        self._acknowledging.came(child.party.publisher_id, child.link)
        self._standbys.tell([(child.party.publisher_id, child.party.subject)])
        grants = child.party.grants
        if grants is None and not revoked:
            self._allowed[child.link] = None
            return
        sends = (">",) if grants is None else tuple(each.pattern for each in grants if each.action == "send")
        table = self._allowed[child.link] = InterestTable(seed=SEED)
        for pattern in (*sends, *revoked, f"!{RESERVED_PREFIX}>"):
            table.add(pattern, 0)

    def through(self, publisher_id: int) -> int:
        """The publisher's last number that is kept, or will be."""
        return self.replica.publishers.get(publisher_id)

    def confirmed(self, publisher_id: int) -> int:
        """The publisher's last number that is kept: what only waits to be may be lost yet."""
        waiting = (each.before for each in self._pending if each.publisher_id == publisher_id)
        return next(waiting, self.through(publisher_id))

    def note_bearer(self, party: Party) -> None:
        """Whoever has published with an id is the one who may later on."""
        marks = self.replica.publishers
        if party.publisher_id in marks:
            marks.bearers.setdefault(party.publisher_id, party.subject)

    def gone(self, link: int) -> None:
        self._dismiss(link)
        self._allowed.pop(link, None)
        self._acknowledging.gone(link)
        if self._standbys.gone(link):
            self.distribute()

    def _dismiss(self, link: int) -> None:
        """What comes on the link is judged here, by what it may now."""
        with self._board.fanout:
            self.note_taken()
            self._board.fanout.dismiss(link)

    def _hold_up(self) -> None:
        """Nobody else gives places before the end of this event, and nobody else has given some."""
        self.intaking.hold()
        self.note_taken()

    def note_taken(self) -> None:
        """What the intake has taken goes to the journal, and is acknowledged when that has it."""
        board = self._board
        taken = self.intaking.take_out()
        if taken is None or self._numbering is None:
            return
        if self._pending:  # the disk is behind: what comes now waits for it
            self.intaking.hold()
        needs: dict[int, int] = {}
        for stream, offsets, sizes in taken.streams():
            needs[stream] = self._numbering.last(stream) + len(sizes)
            self._numbering.set_last(stream, needs[stream])
            board.out.append(Append(stream, taken.packets, offsets, sizes, needs[stream], is_in_tail=True))
        for source in taken.sources:
            before = self.through(source.publisher_id)
            self.replica.publishers.set(source.publisher_id, source.through, board.now_ns)
            board.counters.add("messages_published", source.messages)
            board.ledger.took(source.link, source.messages)
            self._pending.append(Pending(source.publisher_id, before, source.through, needs, b""))

    def settle(self) -> bool:
        """After an event: whether publishers go on who waited for what it brought."""
        if self._standbys.come_first:  # perhaps only since the configuration was read again
            self._hold_up()
        return self.intaking.settle(is_distributed=not self._pending, is_wanted=not self._standbys.come_first)

    def published(self, child: Child, packets: bytes) -> None:
        """A publisher's block."""
        if self._numbering is None:
            return
        self._hold_up()
        if not self._has_room(child.party.publisher_id):
            self._children.end(child.link, Refused("limit", "there are too many publishers"))
            return
        try:
            for portion in self.replica.publishers.portions(child.party.publisher_id, packets):
                refusal = self._take(child, portion)
                if refusal and self._created_on_use(portion, self.through(child.party.publisher_id)):
                    refusal = self._take(child, portion)
                if refusal:
                    self._children.end(child.link, Refused("publish", refusal[:256]))
                    return
        except PenstockError as error:
            self._children.end(child.link, Refused(error.code, str(error)[:256]))

    def _has_room(self, publisher_id: int) -> bool:
        """Looked at before anything is numbered: what has a sequence must be kept."""
        board, marks = self._board, self.replica.publishers
        if publisher_id in marks:
            return True
        here = {child.party.publisher_id for child in board.children.values()}
        return marks.has_room(board.config.publishers_max, board.now_ns, here)

    def _take(self, child: Child, packets: bytes) -> str:
        """Number what is new, up to what cannot be; why it cannot."""
        assert self._numbering is not None
        now_ns = self._board.now_ns + self.wall_offset_ns
        allowed = self._allowed.get(child.link)
        publisher_id = child.party.publisher_id
        through = self.through(publisher_id)
        numbered = self._numbering.number(packets, publisher_id, through, now_ns, topics=self._topics, allowed=allowed)
        self._keep(child, numbered)
        return numbered.refused

    def _created_on_use(self, packets: bytes, through: int) -> bool:
        """Whether there is a stream now for the message that there was none for."""
        board = self._board
        if not board.config.create_on_use:
            return False
        for packet in split_packets(packets):
            whole = decode(packet)
            if whole.sequence == through + 1 and len(whole) == 1:
                topic = whole[0].topic
                name = topic.split(".")[0]
                if board.stream_of(name) is None and not len(self._topics.match(topic)):
                    self.define(name, board.config.topics_on_use(name))
                    return True
        return False

    def _keep(self, child: Child, numbered: Numbered) -> None:
        board = self._board
        if numbered.duplicates:
            board.counters.add("messages_suppressed", numbered.duplicates, cause=Cause.DUPLICATE)
        publisher_id = child.party.publisher_id
        if not numbered.runs:
            if not any(each.publisher_id == publisher_id for each in self._pending):
                board.say(child.link, Published(self.through(publisher_id)))
            return
        before = self.through(publisher_id)
        self.replica.publishers.set(publisher_id, numbered.through, board.now_ns)
        needs: dict[int, int] = {}
        count = 0
        for run, data, offsets, sizes in numbered.pieces():
            needs[run.stream] = run.first + run.count - 1
            board.out.append(Append(run.stream, data, offsets, sizes, needs[run.stream]))
            self._standbys.replicate(run.stream, data)
            count += run.count
        board.counters.add("messages_published", count)
        board.ledger.took(child.link, count)
        if self.replica.publishers.is_whole(publisher_id):
            board.fanout.admit(child.link, publisher_id, numbered.through, self._allowed.get(child.link))
        self._pending.append(Pending(publisher_id, before, numbered.through, needs, numbered.packets))

    # Distribution

    def appended(self, stream: int, through: int) -> None:
        if self._board.role != "root":
            self.replica.appended(stream, through)
            return
        self._appended[stream] = max(through, self._appended.get(stream, 0))
        self.distribute()

    def distribute(self) -> None:
        """What is kept goes out."""
        board = self._board
        acknowledged: dict[int, int] = {}
        degraded: set[int] = set()
        while self._pending and self._is_kept(self._pending[0]):
            each = self._pending.popleft()
            if board.config.replicate == "synchronous" and not self._standbys.cover(each.needs):
                board.counters.add("messages_degraded", each.through - each.before)
                degraded.add(each.publisher_id)
            if each.packets:
                board.fanout.absorb(each.packets)
                board.refilled = True
            acknowledged[each.publisher_id] = each.through
        for publisher_id, through in acknowledged.items():
            self._acknowledging.kept(publisher_id, through, is_degraded=publisher_id in degraded)
        if acknowledged or not self._pending:
            self._standbys.went_on()

    def _is_kept(self, pending: Pending) -> bool:
        if any(self._appended.get(stream, 0) < last for stream, last in pending.needs.items()):
            return False
        return self._board.config.replicate != "synchronous" or self._standbys.have(pending.needs)

    # The standby

    def standby_came(self, link: int) -> None:
        """From now on nothing is distributed before it is sent to it: the intake is not opened."""
        self._hold_up()
        self._standbys.came(link)
        here = [each.party for each in self._board.children.values() if each.party.role == "publisher"]
        bearers = self.replica.publishers.bearers | {each.publisher_id: each.subject for each in here}
        self._standbys.tell(list(bearers.items()))

    @property
    def is_degraded(self) -> bool:
        """Whether messages are acknowledged without the standby's copy that the configuration asks for."""
        board = self._board
        return board.role == "root" and board.config.replicate == "synchronous" and not self._standbys.is_following

    def note_standbys(self) -> None:
        """A standby's leg that has come to live is fed by the root itself, before anything more is distributed."""
        if self._board.role == "root" and self._standbys.come_first:
            if self._standbys.leave():
                self.distribute()
            self._standbys.feed([each.packets for each in self._pending if each.packets])

    def stored(self, link: int, message: Stored) -> None:
        if self._standbys.stored(link, message):
            self.distribute()

    def deadline_ns(self) -> int | None:
        owed_ns, until_ns = self._acknowledging.deadline_ns(), self._standbys.deadline_ns()
        if owed_ns is None or until_ns is None:
            return until_ns if owed_ns is None else owed_ns
        return min(owed_ns, until_ns)

    def tick(self) -> None:
        self._acknowledging.tick()
        if self._standbys.end_late(self._pending[0].needs if self._pending else {}):
            self.distribute()

    # Taking over, and being replaced

    def promote(self) -> None:
        """The standby is the root from now on; one that has never known the tree has nothing to go on with."""
        board = self._board
        if board.role != "standby" or not board.term:
            return
        self.replica.settle()
        self.replica.settle_bearers()
        for stream in board.streams.values():
            self._appended[stream.number] = board.last(stream.number)
        board.counters.add("terms_claimed", cause="takeover")
        self._rule(next_takeover(board.term))
        for config in board.config.streams:
            self.define(config.name, config.topics)
        board.inform(Root(board.term, board.root_place, board.standby_place))

    def fenced(self, term: int, place: str) -> None:
        """Another root has a higher term: this one serves nobody any more."""
        board = self._board
        if board.role != "root":
            return
        self._hold_up()
        self.intaking.end()
        undistributed = sum(1 for each in self._pending if each.packets)
        board.counters.add("messages_suppressed", undistributed, cause=Cause.FENCED)
        board.role, board.is_rooted = "fenced", False
        board.standby_place = place or board.standby_place
        self._numbering = None
        self._pending.clear()
        refusal = Refused("fenced", f"{board.config.name} was replaced in term {term}", place=board.standby_place)
        for link in list(board.children):
            self._children.end(link, refusal)
        board.show()
