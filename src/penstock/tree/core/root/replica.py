"""Replica: the standby's copy of the streams, with the root's sequences and terms (TREE-11)."""

from collections import deque
from collections.abc import Iterable

import numpy

from penstock.base.counters import Cause
from penstock.tree.core.control import Stored
from penstock.tree.core.environment import Environment
from penstock.tree.core.events import Append, DefineStream
from penstock.tree.core.kernel._fanout import Fanout
from penstock.tree.core.kernel._frame import split_packets
from penstock.tree.core.outbox import Outbox
from penstock.tree.core.root.publisher_positions import PublisherPositions
from penstock.tree.core.streams import StreamTable
from penstock.wire import decode


class Replica:
    def __init__(self, environment: Environment, fanout: Fanout, streams: StreamTable, outbox: Outbox) -> None:
        self._environment = environment
        self._fanout = fanout
        self._streams = streams
        self._outbox = outbox
        self.publishers = PublisherPositions()
        self.link: int | None = None
        """The link to the root."""
        self.was_linked = False
        """True once there was a root: a standby that never had one has nothing to take over."""
        self._through: dict[int, int] = {}
        """By stream: the last sequence that the journal was given."""
        self._cut: dict[int, int] = {}
        """By stream: the sequence after which the journal is truncated before the next append."""
        self._appending: dict[int, deque[tuple[int, bytes]]] = {}
        """By stream: packets that the journal has not confirmed, with their last sequence."""
        self._bearers: dict[int, str] = {}
        """By publisher id: its client, as reported by the root, even if the client has published nothing yet."""

    def recover(self, publishers: PublisherPositions) -> None:
        self.publishers = publishers

    def start(self) -> None:
        for stream in self._streams:
            self._through[stream.number] = self._streams.last(stream.number)

    def set_link(self, link: int | None) -> None:
        self.link = link
        self.was_linked |= link is not None

    def stream_learned(self, stream: int, *, is_term_new: bool) -> None:
        self._outbox.instruct(DefineStream(self._streams[stream].info))
        if is_term_new:
            last = self._streams.last(stream)
            if self._through.setdefault(stream, last) > last:
                self._cut[stream] = self._through[stream] = last
                self._appending.pop(stream, None)

    def gone(self, stream: int, first: int, last: int) -> None:
        """The root no longer keeps these messages: the stream continues after them."""
        through = self._through.get(stream, 0)
        if first <= through + 1 <= last:
            self._environment.counters.add("messages_lost", last - through, cause=Cause.GONE)
            self._through[stream] = last

    def append(self, stream: int, packets: bytes) -> bool:
        """Packets of a stream, in order. False if some are missing before or between them."""
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
        self.publishers.trim(self._environment.config.publishers_max)
        self._appending.setdefault(stream, deque()).append((through, data))
        self._outbox.instruct(Append(stream, data, offsets, sizes, through, self._cut.pop(stream, None)))
        return True

    def appended(self, stream: int, through: int) -> None:
        waiting = self._appending.get(stream, deque())
        is_more = False
        while waiting and waiting[0][0] <= through:
            self._fanout.absorb(waiting.popleft()[1])
            is_more = True
        if is_more and self.link is not None:
            self._outbox.send(self.link, Stored(stream, through))

    def note_bearers(self, bearers: Iterable[tuple[int, str]]) -> None:
        """Remember the newest ones, as many as the root remembers publishers."""
        for publisher_id, bearer in bearers:
            self._bearers.pop(publisher_id, None)
            self._bearers[publisher_id] = bearer
        while len(self._bearers) > self._environment.config.publishers_max:
            del self._bearers[next(iter(self._bearers))]

    def promote(self) -> None:
        """The standby becomes the root. Packets that the journal was given count, confirmed or not; publisher ids stay
        with the clients that they had at the replaced root."""
        for waiting in self._appending.values():
            while waiting:
                self._fanout.absorb(waiting.popleft()[1])
        self.set_link(None)
        for publisher_id, bearer in self._bearers.items():
            if publisher_id in self.publishers:
                self.publishers.bearers.setdefault(publisher_id, bearer)
