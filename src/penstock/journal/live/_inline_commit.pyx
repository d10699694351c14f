"""Inline commit in the journal: write and sync single records in the calling thread.

The normal path (writer lock, core, write, sync) adds as much latency as a fast disk. This path does the same work for
one record in one call; the core is informed once for all records.
"""

from libc.errno cimport EINTR, ENOSPC, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.journal.core._log cimport RecordBuffer, record_space

cdef extern from "<unistd.h>" nogil:
    ssize_t pwrite(int fd, const void *data, size_t size, int64_t offset)
    int fdatasync(int fd)


cdef class InlineWriter:
    """Writes to the current segment (JournalWriter.inline_commit). `batch` has the record being written, so that the
    JournalWriter can continue with it if the disk fails.
    """

    def __init__(
        self, int fd, uint32_t nonce, uint64_t at, uint64_t end, RecordBuffer batch not None, uint64_t next_sequence
    ) -> None:
        self.fd = fd
        self.nonce = nonce
        self.at = at
        self.end = end
        self.batch = batch
        self.next_sequence = next_sequence

    def close(self) -> None:
        """Accept no further records."""
        self.end = 0

    def append(self, const uint8_t[::1] payload not None, int64_t timestamp_ns) -> bool:
        """Write and sync a record; true if it is on disk. False: there is no room, or the disk has failed."""
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
    """Write all bytes; return 0 or an errno."""
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
