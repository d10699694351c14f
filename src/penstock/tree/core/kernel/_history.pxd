"""The newest packets of all streams in one ring of bytes, with an index for each stream.

A place is a number that only grows; the packet at place p is at p modulo the ring's size, in one piece, until the ring
has wrapped around. Packets with consecutive places are contiguous, so a run of them can be sent in one piece. Streams
have numbers; the index of a stream is in the order of its sequences, which need not be dense.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef struct Kept:
    uint64_t sequence
    uint64_t place


cdef struct Stream:
    uint32_t number
    uint32_t term
    bint is_open
    uint64_t last  # the last accepted one
    uint64_t given  # at a root: the last one that its intake has assigned, if above `last`
    uint64_t done  # of these, the last one that was stored and queued: behind only within one block
    uint64_t kept_after  # everything accepted after it is stored
    uint64_t accepted
    uint64_t duplicates
    uint64_t mark  # of the last search for first_waiting of some link
    uint64_t first_waiting  # sequence of its first packet in the link's queue
    Kept *kept  # a ring
    uint64_t kept_capacity  # a power of two, or 0
    uint64_t kept_begin
    uint64_t kept_end


cdef class History:
    cdef uint8_t *data
    cdef uint64_t size
    cdef uint64_t end  # the place after the newest packet
    cdef Stream *streams
    cdef uint32_t streams_max
    cdef uint32_t stream_count
    cdef uint32_t *_index  # of the stream with a number, plus 1; open addressing
    cdef uint32_t _index_mask

    cdef Stream *find(self, uint32_t number) noexcept nogil
    cdef int add(self, uint32_t number) except -1
    cdef int remove(self, uint32_t number) except -1
    cdef void enter(self, uint32_t position) noexcept nogil
    cdef void enter_all(self) noexcept nogil

    # Put the stream's next packet into the ring. Return its place.
    cdef uint64_t keep(self, Stream *stream, uint64_t sequence, const uint8_t *packet, uint32_t size) noexcept nogil

    # Forget overwritten packets, of one stream or of all.
    cdef void trim(self, Stream *stream) noexcept nogil
    cdef void trim_all(self) noexcept nogil

    # Forget packets after this sequence.
    cdef void cut(self, Stream *stream, uint64_t last) noexcept nogil

    # The index in `kept` of the first packet after the sequence; kept_end if there is none.
    cdef uint64_t first_after(self, const Stream *stream, uint64_t sequence) noexcept nogil


cdef inline const uint8_t *packet_at(History history, uint64_t place) noexcept nogil:
    return history.data + place % history.size


cdef inline bint is_kept(History history, uint64_t place) noexcept nogil:
    return place + history.size >= history.end


# The place of the next packet with this size. No packet ends at the end of the ring: its place and that of the next packet
# would be consecutive, but a run of both would not be contiguous in memory.
cdef inline uint64_t next_place(History history, uint32_t size) noexcept nogil:
    cdef uint64_t offset = history.end % history.size
    return history.end if offset + size < history.size else history.end + history.size - offset
