"""The standby's side of replication: what the root sends is kept with the same sequences and terms (TREE-11)."""

from collections import deque
from collections.abc import Iterable

import numpy

from penstock.base.counters import Cause
from penstock.tree.core.board import Board
from penstock.tree.core.control import Stored
from penstock.tree.core.events import Append
from penstock.tree.core.kernel._frame import split_packets
from penstock.tree.core.legs import UpstreamLeg
from penstock.tree.core.root.publisher_positions import PublisherMarks
from penstock.wire import decode


class Replica:
    def __init__(self, board: Board) -> None:
        self._board = board
        self.publishers = PublisherMarks()
        self.was_linked = False
        """Whether it ever had a root: one that had none knows nothing to take over."""
        self._link: int | None = None
        self._through: dict[int, int] = {}
        """By stream, the last sequence that the journal was given."""
        self._cut: dict[int, int] = {}
        self._storing: dict[int, deque[tuple[int, bytes]]] = {}
        self._bearers: dict[int, str] = {}
        """By publisher id, as the root said; some may have published nothing yet."""

    @property
    def link(self) -> int | None:
        """To the root."""
        return self._link

    @link.setter
    def link(self, link: int | None) -> None:
        self._link = link
        self.was_linked |= link is not None

    def start(self) -> None:
        for number in self._board.streams:
            self._through[number] = self._board.last(number)

    def begin_term(self, stream: int) -> None:
        """Of a stream that is new here, or goes on in a newer term."""
        last = self._board.last(stream)
        if self._through.setdefault(stream, last) > last:
            self._cut[stream] = self._through[stream] = last
            self._storing.pop(stream, None)

    def gone(self, stream: int, first: int, last: int) -> None:
        """The root keeps these no more: the stream begins behind them here, or goes on there."""
        through = self._through.get(stream, 0)
        if first <= through + 1 <= last:
            self._board.counters.add("messages_lost", last - through, cause=Cause.GONE)
            self._through[stream] = last

    def block(self, leg: UpstreamLeg, packets: bytes) -> bool:
        """Packets of a stream, in order. False if some are missing before or between them."""
        stream = leg.stream
        expected = self._through.get(stream, 0) + 1
        rows = split_packets(packets)
        first, last = decode(rows[0]).sequence, decode(rows[-1]).sequence
        if first > expected or last - first >= len(rows):
            return False
        rows = rows[expected - first :]
        if not rows:
            return True
        data = b"".join(rows)
        sizes = numpy.array([len(each) for each in rows], numpy.uint32)
        offsets = numpy.concatenate(([0], numpy.cumsum(sizes)[:-1])).astype(numpy.uint32)
        through = expected + len(rows) - 1
        self._through[stream] = through
        self.publishers.note(data)
        self.publishers.trim(self._board.config.publishers_max)
        self._storing.setdefault(stream, deque()).append((through, data))
        self._board.out.append(Append(stream, data, offsets, sizes, through, self._cut.pop(stream, None)))
        return True

    def appended(self, stream: int, through: int) -> None:
        waiting = self._storing.get(stream, deque())
        is_more = False
        while waiting and waiting[0][0] <= through:
            self._board.fanout.absorb(waiting.popleft()[1])
            is_more = True
        if is_more and self.link is not None:
            self._board.say(self.link, Stored(stream, through))

    def note_bearers(self, bearers: Iterable[tuple[int, str]]) -> None:
        """The newest of them are remembered, as many as the root remembers publishers."""
        for publisher_id, bearer in bearers:
            self._bearers.pop(publisher_id, None)
            self._bearers[publisher_id] = bearer
        while len(self._bearers) > self._board.config.publishers_max:
            del self._bearers[next(iter(self._bearers))]

    def settle_bearers(self) -> None:
        """Publisher ids keep the clients that they had at the replaced root."""
        for publisher_id, bearer in self._bearers.items():
            if publisher_id in self.publishers:
                self.publishers.bearers.setdefault(publisher_id, bearer)

    def settle(self) -> None:
        """What the journal was given counts, whether or not it has said so."""
        for waiting in self._storing.values():
            while waiting:
                self._board.fanout.absorb(waiting.popleft()[1])
        self.link = None
