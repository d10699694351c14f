"""A link of an agent in the data path."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.tree.core.kernel._intake cimport Publisher
from penstock.tree.core.kernel._queue cimport Queue


cdef struct Link:
    uint64_t number  # 0: the slot is free
    uint8_t brings
    uint8_t cls
    bint is_ready  # in the list of links with data to send
    bint is_over  # nothing is accepted from it, and no packets are queued
    bint is_paused  # received bytes are buffered until resume()
    bint is_held  # received bytes are buffered until Python has read earlier notes: release_held()
    bint is_waiting  # received bytes are buffered until the intake is opened, or closed for good
    bint is_blocked  # of the lane: its socket is full
    int fd  # of the lane; -1: none
    uint32_t armed  # of the lane: the events that the kernel reports
    uint32_t legs  # the first of its legs, plus 1
    Publisher publisher  # its state in an intake
    Queue queue
    uint8_t *left  # of the lane: bytes of frames that the socket has not accepted yet
    uint64_t left_begin
    uint64_t left_end
    uint64_t left_capacity
    uint8_t *partial  # an incomplete frame, or bytes received while paused
    uint64_t partial_size
    uint64_t partial_capacity
    uint32_t noted  # control frames and other notes since it was last held
    uint64_t noted_size
    uint64_t held_at  # the total of notes at that time
    uint64_t packets_in
    uint64_t bytes_in
    uint64_t packets_out
    uint64_t bytes_out
    uint64_t conflated
    uint64_t duplicates
    uint64_t dropped


cdef inline bint is_stopped(const Link *link) noexcept nogil:
    """True if nothing is accepted from the link now."""
    return link.is_paused or link.is_held or link.is_waiting or link.is_over


cdef void free_link(Link *link) noexcept nogil

# Remove a slot from these slots of links. Return the remaining number.
cdef uint32_t without(uint32_t *slots, uint32_t count, uint32_t slot) noexcept nogil

# The missing bytes of the partial frame's length, then of the frame; 0: the frame is complete, or invalid.
cdef uint64_t missing_size(const Link *link) noexcept nogil

# Append to the partial frame; False without memory. Memory grows with the received bytes, not with the length in the
# frame.
cdef bint keep_partial(Link *link, const uint8_t *data, uint64_t size) noexcept nogil
