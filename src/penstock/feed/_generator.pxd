from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    DEPTH = 64              # orders on one side of one book
    MATCHES = 1024          # trades that may still be broken
    HALTS = 8               # symbols that stand still at once
    STEP_SIZE_MAX = 2048    # bytes that one step may write: at most 32 messages
    POPULARITY = 65536      # entries of the table from random bits to symbols


cdef struct LiveOrder:
    uint64_t reference
    uint32_t price
    uint32_t shares


cdef struct Book:
    # best last on either side; of one price the oldest last
    LiveOrder orders[2][DEPTH]
    uint16_t counts[2]
    uint8_t halt            # 0, or the kind of halt
    uint32_t base           # prices stay between half and twice this
    uint32_t anchor         # where new orders gather
    uint8_t symbol[8]


cdef struct Match:
    uint64_t number
    uint16_t locate


cdef struct Halt:
    uint16_t index
    int64_t resume_at       # when so many messages of the market's phase are left


cdef struct Flow:
    uint64_t random
    uint64_t next_reference
    uint64_t next_match
    int64_t time_ns
    int64_t messages        # written so far
    uint8_t *out            # where the next message goes
    # the day
    int phase
    int64_t cursor          # of a phase that goes through all symbols
    int64_t left            # messages of a phase of order flow
    int64_t shares_of[3]    # messages before, in and after the market's hours
    int64_t phase_end_ns
    int64_t gap_ns          # mean time between two messages of the phase
    int64_t burst_left
    uint16_t burst_index
    int64_t rare_interval
    int rare_next
    bint is_breached
    # the market
    Book *books
    int64_t symbols
    uint16_t *popular       # POPULARITY entries
    Match matches[MATCHES]
    int64_t match_count
    Halt halts[HALTS]
    int halt_count


cdef class OrderFlow:
    cdef Flow flow
    cdef readonly object symbols
