"""The fast path of line arbitration: converts in-order datagrams and duplicates to source messages, without Python."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from penstock.convert.kernel._source cimport SourceBatch
from penstock.feed.formats._framing cimport SIZE_SIZE, SOUND, Segment, block_size, open_datagram
from penstock.wire._datagrams cimport DatagramBatch

from penstock.base.errors import LocalProtocolError


cdef class LineCursor:
    """The position of one source stream: its session, the next number, and the counts of each line.

    The core (penstock.feed.core.lines.arbiter) shares it. While `is_smooth`, nothing is missing or waiting, so that
    a datagram with the next messages can be taken unchanged.
    """

    def __cinit__(self, int kind):
        self._kind = kind
        self._batches = []

    def begin(self, const uint8_t[::1] datagram not None, uint64_t next_sequence) -> None:
        """Begin a session with this valid datagram."""
        cdef Segment segment
        self.next_sequence = next_sequence
        if self._kind and open_datagram(self._kind, &datagram[0], datagram.shape[0], &segment) == SOUND:
            memcpy(self._session, segment.session, sizeof(self._session))

    def note(self, int line, int64_t now_ns, uint64_t first_copies, uint64_t duplicates, uint64_t latest) -> None:
        """A datagram of a line took the slow path."""
        self.check(line)
        note(&self._lines[line], now_ns, first_copies, duplicates, latest)
        self.messages += first_copies

    def heard_ns(self, int line) -> int:
        """Time of the line's last datagram in the session, by the core's clock; 0: never."""
        self.check(line)
        return self._lines[line].heard_ns

    def latest_sequence(self, int line) -> int:
        """The newest message known to the line's last datagram."""
        self.check(line)
        return self._lines[line].latest_sequence

    def counts(self, int line) -> tuple:
        """(datagrams, messages delivered first, duplicates) of a line."""
        self.check(line)
        return self._lines[line].datagrams, self._lines[line].first_copies, self._lines[line].duplicates

    cdef int check(self, int line) except -1:
        if not 0 <= line < LINES_MAX:
            raise LocalProtocolError(f"unknown line {line}; the maximum is {LINES_MAX}")
        return 0

    def reset_batches(self) -> None:
        """Release the batches of earlier calls."""
        self._used = 0

    def take(self, DatagramBatch datagrams not None, Py_ssize_t start, int64_t now_ns) -> SourceBatch | None:
        """Return the messages of the datagrams from `start` on, while they are in order: a SourceBatch, or None.

        `index` is the first datagram that was not taken. The batch is valid until reset_batches(), and as long as
        the datagrams are.
        """
        cdef SourceBatch batch
        self.index = start
        if not self.is_smooth or self._kind == 0:
            return None
        if self._used == len(self._batches):
            self._batches.append(SourceBatch())
        batch = self._batches[self._used]
        batch.point_at_memory(datagrams.data, <uint64_t>datagrams.capacity * <uint64_t>datagrams.stride, datagrams)
        while self.index < datagrams.count and self.take_one(batch, datagrams, self.index, now_ns):
            self.index += 1
        if batch.count == 0:
            return None
        self._used += 1
        return batch

    cdef bint take_one(self, SourceBatch batch, DatagramBatch datagrams, Py_ssize_t index, int64_t now_ns) except -1 nogil:
        """True if this datagram was taken completely."""
        cdef Segment segment
        cdef Py_ssize_t start = index * datagrams.stride
        cdef const uint8_t *data = datagrams.data + start
        cdef uint64_t sequence, next_sequence
        cdef Py_ssize_t at
        cdef uint32_t number, size
        cdef uint64_t taken = 0
        if datagrams.sockets[index] >= LINES_MAX:
            return False
        if open_datagram(self._kind, data, datagrams.sizes[index], &segment) != SOUND or segment.is_end:
            return False
        if segment.first_sequence == 0 or segment.first_sequence > self.next_sequence:
            return False
        if memcmp(segment.session, self._session, sizeof(self._session)) != 0:
            return False
        next_sequence = segment.first_sequence + segment.count
        if next_sequence > self.next_sequence:
            sequence = segment.first_sequence
            at = segment.offset
            for number in range(segment.count):
                size = block_size(self._kind, data + at)
                at += SIZE_SIZE
                if sequence == self.next_sequence:
                    batch.append_row(sequence, datagrams.arrivals_ns[index], start + at, size)
                    self.next_sequence += 1
                    taken += 1
                at += size
                sequence += 1
        note(&self._lines[datagrams.sockets[index]], now_ns, taken, segment.count - taken, next_sequence - 1)
        self.messages += taken
        return True


cdef inline void note(Line *line, int64_t now_ns, uint64_t first_copies, uint64_t duplicates, uint64_t latest) noexcept nogil:
    line.heard_ns = now_ns
    line.datagrams += 1
    line.first_copies += first_copies
    line.duplicates += duplicates
    line.latest_sequence = latest
