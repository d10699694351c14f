"""Records that come one at a time, each brought to the disk before the next one is known.

The writer's way, through its threads' lock, its core and back for the write and for the sync, takes as long as a quick
disk. Here is the same work for one record, without stopping; the core hears of all of them together.
"""

from libc.errno cimport EINTR, ENOSPC, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.journal._log cimport RecordBuffer, record_space

cdef extern from "<unistd.h>" nogil:
    ssize_t pwrite(int fd, const void *data, size_t size, int64_t offset)
    int fdatasync(int fd)


cdef class LoneWriter:
    """Of the segment in use, lent by its writer (JournalWriter.alone). `batch` has the record that is on its way, so that
    the writer can go on with it if the disk fails."""

    def __init__(
        self, int fd, uint32_t nonce, uint64_t at, uint64_t end, RecordBuffer batch not None, uint64_t next_sequence
    ) -> None:
        self.fd = fd
        self.nonce = nonce
        self.at = at
        self.end = end
        self.batch = batch
        self.next_sequence = next_sequence

    def end_loan(self) -> None:
        """Nothing more is taken."""
        self.end = 0

    def append(self, const uint8_t[::1] payload not None, int64_t timestamp_ns) -> bool:
        """Whether the record is on the disk. If not: there is no room for it, or the disk has failed."""
        cdef const uint8_t *start = &payload[0] if payload.shape[0] else NULL
        return self.has_room(payload.shape[0]) and self.store(start, payload.shape[0], timestamp_ns)

    cdef bint has_room(self, uint64_t payload_size) noexcept:
        return self.failure == 0 and self.at + record_space(payload_size) <= self.end

    cdef bint store(self, const uint8_t *payload, uint64_t payload_size, int64_t timestamp_ns) except -1:
        self.batch.clear(self.next_sequence)
        self.batch._reserve(payload_size)
        self.batch._put(payload, payload_size, timestamp_ns)
        self.batch.seal(self.nonce, self.next_sequence - 1)
        self.next_sequence += 1
        with nogil:
            self.failure = write_all(self.fd, self.batch._data, self.batch.size, self.at)
            if self.failure == 0:
                self.is_written = True
                self.failure = errno if fdatasync(self.fd) else 0
        if self.failure:
            return False
        self.is_written = False
        self.at += self.batch.size
        self.size += self.batch.size
        self.count += 1
        return True


cdef int write_all(int fd, const uint8_t *data, uint64_t size, uint64_t at) noexcept nogil:
    """0, or an errno."""
    cdef ssize_t written
    while size:
        written = pwrite(fd, data, size, <int64_t>at)
        if written < 0 and errno == EINTR:
            continue
        if written <= 0:
            return errno if written < 0 else ENOSPC
        data += written
        at += written
        size -= written
    return 0
