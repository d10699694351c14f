"""The root of a tree, and its standby: streams get their numbers, are kept, and only then distributed (TREE-1, 5, 11).

A publisher's block goes this way: what was taken before is dropped by its numbers; each message gets the next sequence
of its stream; the packets go to the journal and to the standby; when the journal has them (and, with synchronous
replication, the standby too) they are distributed and acknowledged, in the order in which they came.

A **term** is the time of one root: `term >> 16` counts takeovers by a standby, the rest restarts. Each begins after
some sequence of every stream. What an older term gave out after that is no part of the stream: whoever has it is told
so.
"""

from collections import deque

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.base.counters import Cause
from penstock.base.errors import LimitError, PenstockError, TopicError
from penstock.topics import InterestTable
from penstock.tree._frame import encode_block, split_packets
from penstock.tree._number import Numbered, Numbering
from penstock.tree.acknowledging import Acknowledging
from penstock.tree.board import Board, Child, ChildLeg, Stream
from penstock.tree.children import Children
from penstock.tree.control import TERMS_MAX, Published, Refused, Stored, StreamInfo
from penstock.tree.events import Append, DefineStream, Party, Start
from penstock.tree.infostream import NAME, TEXT_SIZE_MAX, Root, StreamDefined, id_of
from penstock.tree.published import PublisherMarks
from penstock.tree.replica import Replica
from penstock.wire import decode

LINEAGE_SHIFT = 16
SEED = bytes(16)


def next_restart(term: int) -> int:
    return term + 1


def next_takeover(term: int) -> int:
    return ((term >> LINEAGE_SHIFT) + 1) << LINEAGE_SHIFT


class _Pending(msgspec.Struct):
    """Packets of one block that are not distributed yet."""

    link: int
    publisher_id: int
    through: int
    """The publisher's own number of the last."""
    needs: dict[int, int]
    """By stream: the sequence that must be kept."""
    packets: bytes


class Rooting:
    def __init__(self, board: Board, children: Children) -> None:
        self._board = board
        self._children = children
        self.replica = Replica(board)
        self.wall_offset_ns = 0
        """What the wall clock is ahead of the core's."""
        self._tree_id = id_of(board.config.tree)
        self._numbering: Numbering | None = None
        self._topics = InterestTable(seed=SEED)
        self._allowed: dict[int, InterestTable | None] = {}
        self._pending: deque[_Pending] = deque()
        self._appended: dict[int, int] = {}
        self._stored: dict[int, dict[int, int]] = {}
        """By standby's link and stream."""
        self._acknowledging = Acknowledging(board)
        self._waits_since_ns: int | None = None
        """Since when a standby has held up the oldest block."""

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
        for topic in stream.info.topics:
            self._topics.remove(topic, stream.number)
        stream.info = msgspec.structs.replace(stream.info, topics=topics)
        for topic in topics:
            self._topics.add(topic, stream.number)
        self._announce(stream)

    def _announce(self, stream: Stream) -> None:
        info = stream.info
        term, after = info.begins[-1]
        self._board.out.append(DefineStream(info))
        self._board.inform(StreamDefined(info.number, info.name, info.topics, term, after))

    # Publishers

    def arrived(self, child: Child, revoked: tuple[str, ...]) -> None:
        """Of a publisher: what it may publish."""
        grants = child.party.grants
        if grants is None and not revoked:
            self._allowed[child.link] = None
            return
        sends = (">",) if grants is None else tuple(each.pattern for each in grants if each.action == "send")
        table = self._allowed[child.link] = InterestTable(seed=SEED)
        for pattern in (*sends, *revoked):
            table.add(pattern, 0)

    def through(self, publisher_id: int) -> int:
        """The publisher's last number that is kept, or will be."""
        return self.replica.publishers.get(publisher_id)

    def note_bearer(self, party: Party) -> None:
        """Whoever has published with an id is the one who may later on."""
        marks = self.replica.publishers
        if party.publisher_id in marks:
            marks.bearers.setdefault(party.publisher_id, party.subject)

    def gone(self, link: int) -> None:
        self._allowed.pop(link, None)
        self._acknowledging.gone(link)
        if self._stored.pop(link, None) is not None:
            self.distribute()

    def published(self, child: Child, packets: bytes) -> None:
        """A publisher's block."""
        if self._numbering is None:
            return
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
                    self.define(name, (f"{name}.>", name))
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
        self.replica.publishers.set(publisher_id, numbered.through, board.now_ns)
        needs: dict[int, int] = {}
        count = 0
        for run, data, offsets, sizes in numbered.pieces():
            needs[run.stream] = run.first + run.count - 1
            board.out.append(Append(run.stream, data, offsets, sizes, needs[run.stream]))
            self._replicate(run.stream, data)
            count += run.count
        board.counters.add("messages_published", count)
        board.ledger.took(child.link, count)
        self._pending.append(_Pending(child.link, publisher_id, numbered.through, needs, numbered.packets))

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
        while self._pending and self._is_kept(self._pending[0]):
            each = self._pending.popleft()
            board.fanout.absorb(each.packets)
            board.refilled = True
            acknowledged[each.link] = each.through
        for link, through in acknowledged.items():
            self._acknowledging.kept(link, through)
        if acknowledged or not self._pending:
            self._waits_since_ns = None

    def _is_kept(self, pending: _Pending) -> bool:
        if any(self._appended.get(stream, 0) < last for stream, last in pending.needs.items()):
            return False
        if self._board.config.replicate != "synchronous":
            return True
        is_stored = all(
            marks.get(stream, last) >= last for marks in self._stored.values() for stream, last in pending.needs.items()
        )
        if not is_stored and self._waits_since_ns is None:
            self._waits_since_ns = self._board.now_ns
        return is_stored

    # The standby

    def standby_came(self, link: int) -> None:
        self._stored[link] = {}

    def note_standbys(self) -> None:
        """A standby's leg that has come to live is fed by the root itself, before anything more is distributed."""
        if self._board.role == "root" and self._board.config.replicate != "none":
            for child in filter(None, map(self._board.children.get, list(self._stored))):
                self._note_standby(child)

    def _note_standby(self, child: Child) -> None:
        """Its legs that have everything which was distributed: from here on it is sent messages before they are. One
        whose leg has ended is not waited for."""
        marks = self._stored.setdefault(child.link, {})
        for stream in marks.keys() - {leg.stream for leg in child.legs.values()}:
            del marks[stream]
            self.distribute()
        for leg in child.legs.values():
            if leg.is_live and leg.stream not in marks:
                self._feed(child, leg)

    def _feed(self, child: Child, leg: ChildLeg) -> None:
        board = self._board
        board.fanout.change_leg(leg.link, leg.number, [])
        self._stored.setdefault(child.link, {})[leg.stream] = board.last(leg.stream)
        for pending in self._pending:
            packets = [each for each in split_packets(pending.packets) if decode(each).group == leg.stream]
            if packets:
                board.send(leg.link, encode_block(b"".join(packets), leg=leg.number))

    def _replicate(self, stream: int, packets: bytes) -> None:
        for link, marks in list(self._stored.items()):
            child = self._board.children.get(link)
            legs = () if child is None or stream not in marks else child.legs.values()
            leg = next((leg for leg in legs if leg.stream == stream), None)
            if leg is not None:
                self._board.send(link, encode_block(packets, leg=leg.number))

    def stored(self, link: int, message: Stored) -> None:
        marks = self._stored.get(link)
        if marks is not None and message.stream in marks:
            marks[message.stream] = max(marks[message.stream], message.through)
            self.distribute()

    def deadline_ns(self) -> int | None:
        owed_ns, until_ns = self._acknowledging.deadline_ns(), self._waits_until_ns()
        if owed_ns is None or until_ns is None:
            return until_ns if owed_ns is None else owed_ns
        return min(owed_ns, until_ns)

    def _waits_until_ns(self) -> int | None:
        """When a standby that does not answer is no longer waited for."""
        if self._waits_since_ns is None:
            return None
        return self._waits_since_ns + self._board.config.replicate_wait_ms * NS_PER_MS

    def tick(self) -> None:
        self._acknowledging.tick()
        until_ns = self._waits_until_ns()
        if until_ns is not None and self._board.now_ns >= until_ns:
            self._waits_since_ns = None
            for link in [link for link, marks in self._stored.items() if self._is_behind(marks)]:
                self._board.counters.add("consumers_refused", cause=Cause.SILENT)
                self._stored.pop(link)
                self._children.end(link, Refused("silent", "the standby did not answer in time"))
            self.distribute()

    def _is_behind(self, marks: dict[int, int]) -> bool:
        needs = self._pending[0].needs if self._pending else {}
        return any(marks.get(stream, last) < last for stream, last in needs.items())

    # Taking over, and being replaced

    def promote(self) -> None:
        """The standby is the root from now on; one that has never known the tree has nothing to go on with."""
        board = self._board
        if board.role != "standby" or not board.term:
            return
        self.replica.settle()
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
        board.counters.add("messages_suppressed", len(self._pending), cause=Cause.FENCED)
        board.role, board.is_rooted = "fenced", False
        board.standby_place = place or board.standby_place
        self._numbering = None
        self._pending.clear()
        refusal = Refused("fenced", f"{board.config.name} was replaced in term {term}", place=board.standby_place)
        for link in list(board.children):
            self._children.end(link, refusal)
        board.show()
