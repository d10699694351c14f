"""Checks of data frames, done once before any use; readers of a checked frame need no further checks."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.assured.wire._layout cimport FrameError

# Each returns whether these bytes are one complete frame of a kind, without its length: every message lies within it
# with its topic and payload, all runs are in order, and no bytes are left over.
cdef FrameError check_publish(const uint8_t *frame, uint64_t size) noexcept nogil
cdef FrameError check_acknowledge(const uint8_t *frame, uint64_t size) noexcept nogil
cdef FrameError check_deliver(const uint8_t *frame, uint64_t size) noexcept nogil
cdef FrameError check_settle(const uint8_t *frame, uint64_t size) noexcept nogil
cdef FrameError check_credit(const uint8_t *frame, uint64_t size) noexcept nogil

# Check any frame, by its kind.
cdef FrameError check_frame(const uint8_t *frame, uint64_t size) noexcept nogil


cdef class FrameSplitter:
    cdef readonly uint32_t size_max
    cdef readonly str failure
    cdef bytearray kept
    cdef uint64_t awaited  # bytes until `kept` may have a complete frame
