"""Data frames are checked here, once, before anything is used; who reads a checked frame need not look again."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.assured.wire._layout cimport FrameError

# Each says whether these bytes are one whole frame of a kind, without its length: every message lies within it with its
# topic and its payload, every run is in order, and nothing is left over.
cdef FrameError check_publish(const uint8_t *frame, uint64_t size) noexcept nogil
cdef FrameError check_acknowledge(const uint8_t *frame, uint64_t size) noexcept nogil
cdef FrameError check_deliver(const uint8_t *frame, uint64_t size) noexcept nogil
cdef FrameError check_settle(const uint8_t *frame, uint64_t size) noexcept nogil
cdef FrameError check_credit(const uint8_t *frame, uint64_t size) noexcept nogil

# Any of them, by its kind.
cdef FrameError check_frame(const uint8_t *frame, uint64_t size) noexcept nogil


cdef class FrameSplitter:
    cdef readonly uint32_t size_max
    cdef readonly str failure
    cdef bytearray kept
    cdef uint64_t awaited       # bytes until something in `kept` may be whole
