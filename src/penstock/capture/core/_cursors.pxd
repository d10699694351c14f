from libc.stdint cimport uint16_t, uint32_t, uint64_t

cpdef enum:
    """Verdict on a message in a capture of redundant streams."""
    KEPT = 0
    REPEATED = 1       # a duplicate, from another publisher or under another number
    FENCED = 2         # of an older lineage than a previous message
    UNSYNCHRONISED = 3 # numbers of an unsynchronised publisher, which must not be used
    ANNOUNCEMENT = 4   # a DISCONTINUITY: about the stream, not part of it
    UNNUMBERED = 5     # a message of a source stream without a number

cdef enum:
    HOLES_MAX = 256


# Position of a source stream. Holes are skipped numbers, in order, that can still arrive.
cdef struct CursorState:
    uint32_t stream_id
    uint32_t term
    uint64_t number
    uint64_t source_seq
    uint16_t part
    uint16_t session_tag
    bint has_position
    uint32_t session_name # CRC32C of the name in the last announcement; 0: unknown
    uint32_t session_date # CRC32C of the trading date; 0: unknown
    uint32_t begun        # the lineage with which the session began; 0: unknown
    uint32_t hole_count
    uint64_t hole_first[HOLES_MAX]
    uint64_t hole_last[HOLES_MAX]
