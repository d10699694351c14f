"""Source messages where they lie: rows over memory that a socket, a file or a test filled.

Between what receives messages and what converts them nothing is copied and no Python object is made per message.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

from penstock.base.errors import LocalProtocolError

cdef enum:
    CAPACITY_MIN = 64


cdef class SourceBatch:
    """Numbered messages of one source stream, in order.

    Made by of() or from_messages(), or filled again and again: clear(), point_at() some memory, append() rows. The
    memory is held, not copied.
    """

    def __dealloc__(self):
        free(self.row)

    @staticmethod
    def of(data not None, offsets not None, sizes not None, first_sequence: int, int64_t receive_ns = 0) -> SourceBatch:
        """Messages at these places of `data`, numbered from `first_sequence`, all received at `receive_ns`."""
        cdef SourceBatch batch = SourceBatch()
        cdef uint64_t sequence = first_sequence
        if len(offsets) != len(sizes):
            raise LocalProtocolError(f"there are {len(offsets)} offsets and {len(sizes)} sizes")
        batch.point_at(data)
        for offset, size in zip(offsets, sizes):
            batch.append_row(sequence, receive_ns, offset, size)
            sequence += 1
        return batch

    @staticmethod
    def from_messages(messages not None, first_sequence: int, int64_t receive_ns = 0) -> SourceBatch:
        """A copy of these messages, numbered from `first_sequence`, all received at `receive_ns`."""
        cdef SourceBatch batch = SourceBatch()
        cdef uint64_t sequence = first_sequence
        cdef uint64_t offset = 0
        batch.point_at(b"".join(messages))
        for message in messages:
            batch.append_row(sequence, receive_ns, offset, len(message))
            offset += len(message)
            sequence += 1
        return batch

    def clear(self) -> None:
        """Forget the rows; the memory stays, until another is pointed at."""
        self.count = 0

    def point_at(self, data not None) -> None:
        """Rows added from now on count their offsets from the start of `data`, which is held; forgets the rows."""
        cdef const uint8_t[::1] view = memoryview(data).cast("B")
        self.point_at_memory(&view[0] if view.shape[0] else NULL, view.shape[0], None)
        self._view = view

    def append(self, sequence: int, offset: int, size: int, int64_t receive_ns = 0) -> None:
        """Add the message of `size` bytes at `offset`."""
        self.append_row(sequence, receive_ns, offset, size)

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        """(sequence, a copy of the bytes) of each message."""
        cdef Py_ssize_t index
        for index in range(self.count):
            yield self.row[index].sequence, self[index]

    def __getitem__(self, Py_ssize_t index) -> bytes:
        """A copy of one message's bytes."""
        if index < 0:
            index += self.count
        if not 0 <= index < self.count:
            raise IndexError(f"the batch has no message {index}")
        cdef const SourceRow *row = &self.row[index]
        return PyBytes_FromStringAndSize(<const char *>self.data + row.offset, row.size) if row.size else b""

    def receive_ns(self, Py_ssize_t index) -> int:
        """When one message was received."""
        if not 0 <= index < self.count:
            raise IndexError(f"the batch has no message {index}")
        return self.row[index].receive_ns

    def find_received(self, int64_t receive_ns, uint64_t sequence) -> int:
        """The index of the first message of this number or a higher one that was received at that time or later; -1 if
        there is none."""
        cdef Py_ssize_t index
        for index in range(self.count):
            if self.row[index].receive_ns >= receive_ns and self.row[index].sequence >= sequence:
                return index
        return -1

    def part(self, Py_ssize_t start, Py_ssize_t stop) -> SourceBatch:
        """The messages from index `start` to before `stop`, over the same memory."""
        cdef SourceBatch made = SourceBatch()
        cdef Py_ssize_t index
        if not 0 <= start <= stop <= self.count:
            raise LocalProtocolError(f"a batch of {self.count} messages has no part from {start} to {stop}")
        made.point_at_memory(self.data, self.data_size, self)
        for index in range(start, stop):
            made.append_row(
                self.row[index].sequence, self.row[index].receive_ns, self.row[index].offset, self.row[index].size
            )
        return made

    cdef int point_at_memory(self, const uint8_t *data, uint64_t size, object owner) except -1:
        if size > UINT32_MAX:
            raise LocalProtocolError(f"a batch has at most {UINT32_MAX} bytes, not {size}")
        self._view = None
        self._owner = owner
        self.data = data
        self.data_size = size
        self.count = 0
        return 0

    cdef int append_row(self, uint64_t sequence, int64_t receive_ns, uint64_t offset, uint64_t size) except -1 nogil:
        cdef SourceRow *row
        if offset > self.data_size or size > self.data_size - offset:
            with gil:
                raise LocalProtocolError(
                    f"message {sequence} at {offset} with {size} bytes is not within the {self.data_size} bytes of data"
                )
        if self.count == self._capacity:
            grow(self)
        row = &self.row[self.count]
        row.sequence = sequence
        row.receive_ns = receive_ns
        row.offset = <uint32_t>offset
        row.size = <uint32_t>size
        self.count += 1
        return 0


cdef int grow(SourceBatch batch) except -1 nogil:
    cdef Py_ssize_t capacity = batch._capacity * 2 if batch._capacity else CAPACITY_MIN
    cdef SourceRow *grown = <SourceRow *>realloc(batch.row, capacity * sizeof(SourceRow))
    if grown is NULL:
        with gil:
            raise MemoryError
    batch.row = grown
    batch._capacity = capacity
    return 0
