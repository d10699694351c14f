"""Datagrams received from the network, in reusable memory.

A socket fills a batch, a core reads it; no memory is allocated or copied per datagram.
"""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

import numpy

from penstock.base.errors import LocalProtocolError
from penstock.base.limits import PACKET_SIZE_MAX

cdef enum:
    CACHE_LINE = 64
    CACHE_LINES_BETWEEN = 17 # odd, so that the datagrams' headers do not compete for the same cache sets

cdef uint64_t NAMED = <uint64_t>1 << 63


cdef class DatagramBatch:
    """Room for `capacity` datagrams of any size, with their sources and the kernel's receive times.

    `seed` determines which datagrams lose() drops.
    """

    def __cinit__(self, Py_ssize_t capacity = 64, uint64_t seed = 1):
        if not 1 <= capacity <= 1024:
            raise LocalProtocolError(f"a batch of {capacity} datagrams is outside the limits of 1 to 1024")
        self.capacity = capacity
        self.stride = (PACKET_SIZE_MAX + CACHE_LINE) // CACHE_LINE * CACHE_LINE + CACHE_LINE * CACHE_LINES_BETWEEN
        self._array = numpy.empty(capacity * self.stride, numpy.uint8)
        self._view = memoryview(self._array)
        cdef uint8_t[::1] memory = self._array
        self.data = &memory[0]
        self._names = []
        self._keys = {}
        self._addresses = {}
        self._random_state = seed
        self.sizes = <uint32_t *>PyMem_Calloc(capacity, sizeof(uint32_t))
        self.sources = <uint64_t *>PyMem_Calloc(capacity, sizeof(uint64_t))
        self.arrivals_ns = <int64_t *>PyMem_Calloc(capacity, sizeof(int64_t))
        self.sockets = <uint8_t *>PyMem_Calloc(capacity, sizeof(uint8_t))
        if self.sizes is NULL or self.sources is NULL or self.arrivals_ns is NULL or self.sockets is NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.sizes)
        PyMem_Free(self.sources)
        PyMem_Free(self.arrivals_ns)
        PyMem_Free(self.sockets)

    def __len__(self) -> int:
        return self.count

    def clear(self) -> None:
        self.count = 0
        self.generation += 1

    def append(self, data not None, source not None, int64_t arrival_ns = 0, uint8_t socket = 0) -> None:
        """Add a datagram that did not come from a socket; `source` is a host name and a port."""
        cdef const uint8_t[::1] content = memoryview(data).cast("B")
        cdef Py_ssize_t index = self.count
        self.put(&content[0] if content.shape[0] else NULL, content.shape[0], self.key_of(source))
        self.arrivals_ns[index] = arrival_ns
        self.sockets[index] = socket

    cdef int put(self, const uint8_t *content, Py_ssize_t size, uint64_t source) except -1:
        """Add a datagram; `source` is a key."""
        if self.count == self.capacity or size > self.stride:
            raise LocalProtocolError(f"no room for {size} bytes after {self.count} datagrams")
        if size:
            memcpy(self.data + self.count * self.stride, content, size)
        self.sizes[self.count] = <uint32_t>size
        self.sources[self.count] = source
        self.arrivals_ns[self.count] = 0
        self.sockets[self.count] = 0
        self.count += 1
        return 0

    def datagram(self, Py_ssize_t index) -> memoryview:
        """The bytes of one datagram, in place; they change when the batch is reused."""
        self.check(index)
        return self._view[index * self.stride : index * self.stride + self.sizes[index]]

    def source(self, Py_ssize_t index) -> tuple:
        """The source host and port."""
        self.check(index)
        cdef uint64_t key = self.sources[index]
        if key & NAMED:
            return self._names[key & ~NAMED]
        known = self._addresses.get(key)
        if known is None:
            if len(self._addresses) >= 65_536:
                self._addresses.clear() # bounds the memory when addresses are forged
            known = self._addresses[key] = (
                f"{key >> 40 & 255}.{key >> 32 & 255}.{key >> 24 & 255}.{key >> 16 & 255}", key & 0xFFFF
            )
        return known

    def source_key(self, Py_ssize_t index) -> int:
        """A number for the source, valid while this batch exists."""
        self.check(index)
        return self.sources[index]

    def socket(self, Py_ssize_t index) -> int:
        """The index of the receiving socket among an inlet's sockets."""
        self.check(index)
        return self.sockets[index]

    def arrival_ns(self, Py_ssize_t index) -> int:
        """The kernel's receive time by the wall clock; 0 if unknown."""
        self.check(index)
        return self.arrivals_ns[index]

    def lose(self, double share) -> int:
        """Drop a random share of the datagrams, to simulate loss; return how many."""
        cdef Py_ssize_t index
        cdef Py_ssize_t kept = 0
        cdef uint64_t threshold = <uint64_t>(min(max(share, 0.0), 1.0) * 4294967296.0)
        for index in range(self.count):
            self._random_state = self._random_state * <uint64_t>6364136223846793005 + <uint64_t>1442695040888963407
            if self._random_state >> 32 < threshold:
                continue
            if kept < index:
                self.move(kept, index)
            kept += 1
        cdef Py_ssize_t lost = self.count - kept
        self.count = kept
        return lost

    cdef void move(self, Py_ssize_t to, Py_ssize_t index) noexcept nogil:
        """Move datagram `index` to position `to`."""
        memmove(self.data + to * self.stride, self.data + index * self.stride, self.sizes[index])
        self.sizes[to] = self.sizes[index]
        self.sources[to] = self.sources[index]
        self.arrivals_ns[to] = self.arrivals_ns[index]
        self.sockets[to] = self.sockets[index]

    cdef uint64_t key_of(self, source) except 0:
        key = self._keys.get(source)
        if key is None:
            key = self._keys[source] = NAMED | <uint64_t>len(self._names)
            self._names.append(source)
        return key

    cdef int check(self, Py_ssize_t index) except -1:
        if not 0 <= index < self.count:
            raise IndexError(f"the batch has no datagram {index}")
        return 0
