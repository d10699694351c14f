"""Contiguous packets in memory that survives this process, followed by zeros."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy, memset

from penstock.wire._codec cimport PACKET_HEADER_SIZE

from penstock.base.errors import LimitError, LocalProtocolError


cdef class TailMemory:
    """Memory of two halves, which is held until release(). One thread at a time uses it."""

    def __cinit__(self, memory not None, uint64_t half_size):
        PyObject_GetBuffer(memory, &self._memory, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self._is_held = True
        self.half_size = half_size
        if half_size < PACKET_HEADER_SIZE or <uint64_t>self._memory.len < 2 * half_size:
            raise LocalProtocolError(f"{self._memory.len} bytes are not two halves of {half_size}")

    def __dealloc__(self):
        self.release()

    def release(self) -> None:
        """Release the memory; there is no room in it any more."""
        if self._is_held:
            self._is_held = False
            PyBuffer_Release(&self._memory)

    def has_room(self, uint64_t size) -> bool:
        """True if this half has room."""
        if size + PACKET_HEADER_SIZE > self.half_size:
            raise LimitError(f"cannot make room for {size} bytes of packets at once", hint=f"at most {self.half_size}")
        return self.room(size) is not NULL

    def turn(self) -> None:
        """Continue in the other half, overwriting it."""
        self.check_told()
        self._at = self._untold_at = self.end_of_half() % (2 * self.half_size)

    def write(self, const uint8_t[::1] packets not None) -> None:
        """Write whole packets, for which there is room."""
        cdef uint8_t *place = self.room(packets.shape[0])
        self.check_told()
        if place is NULL:
            raise LocalProtocolError("the tail has no room for these packets", hint="make room first")
        memset(place + packets.shape[0], 0, PACKET_HEADER_SIZE)
        if packets.shape[0]:
            memcpy(place, &packets[0], packets.shape[0])
        self._at += packets.shape[0]
        self._untold_at = self._at

    def take_untold(self) -> bytes:
        """Return the packets that compiled code has put here since the last call; they stay here, too."""
        cdef uint64_t begin = self._untold_at
        self._untold_at = self._at
        if begin == self._at or not self._is_held:
            return b""
        return PyBytes_FromStringAndSize(<const char *>self._memory.buf + begin, self._at - begin)

    cdef uint8_t *room(self, uint64_t size) noexcept nogil:
        if not self._is_held or self._at + size + PACKET_HEADER_SIZE > self.end_of_half():
            return NULL
        return <uint8_t *>self._memory.buf + self._at

    cdef void put(self, uint64_t size) noexcept nogil:
        self._at += size

    cdef int check_told(self) except -1:
        if self._untold_at != self._at:
            raise LocalProtocolError("the tail has packets that take_untold() has not returned", hint="take them first")
        return 0

    cdef uint64_t end_of_half(self) noexcept nogil:
        return self.half_size if self._at < self.half_size else 2 * self.half_size
