"""The generator's state of a market, and the writing of ITCH 5.0 messages."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    static inline void put_u16(unsigned char *p, unsigned v) { p[0] = v >> 8; p[1] = v; }
    static inline void put_u32(unsigned char *p, unsigned v) { v = __builtin_bswap32(v); __builtin_memcpy(p, &v, 4); }
    static inline void put_u64(unsigned char *p, unsigned long long v)
    { v = __builtin_bswap64(v); __builtin_memcpy(p, &v, 8); }
    """
    void put_u16(uint8_t *at, uint32_t value) noexcept nogil
    void put_u32(uint8_t *at, uint32_t value) noexcept nogil
    void put_u64(uint8_t *at, uint64_t value) noexcept nogil

cdef enum:
    DEPTH = 64              # orders on one side of one book
    MATCHES = 1024  # recent trades that may still be broken
    HALTS = 8  # symbols halted at once
    STEP_SIZE_MAX = 2048  # maximum size of a step: at most 32 messages
    POPULARITY = 65536      # entries of the table from random bits to symbols
    TICK = 100              # a cent, in units of a price


cdef struct LiveOrder:
    uint64_t reference
    uint32_t price
    uint32_t shares


cdef struct Book:
    # the best last on either side; at one price the oldest last
    LiveOrder orders[2][DEPTH]
    uint16_t counts[2]
    uint8_t halt            # 0, or the kind of halt
    uint32_t base  # prices stay between half and twice this value
    uint32_t anchor  # center of new orders
    uint8_t symbol[8]


cdef struct Match:
    uint64_t number
    uint16_t locate


cdef struct Halt:
    uint16_t index
    int64_t resume_at  # resumed when this number of messages of the market phase is left


cdef struct Flow:
    uint64_t random
    uint64_t next_reference
    uint64_t next_match
    int64_t time_ns
    int64_t messages        # written so far
    uint8_t *out  # position of the next message
    # the day
    int phase
    int64_t cursor  # position in a phase over all symbols
    int64_t left  # remaining messages of a phase of order flow
    int64_t shares_of[3]  # messages before, in and after market hours
    int64_t phase_end_ns
    int64_t gap_ns  # mean time between two messages of the phase
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


# Random numbers (splitmix64)

cdef inline uint64_t bits(Flow *flow) noexcept nogil:
    flow.random += <uint64_t>0x9E3779B97F4A7C15
    cdef uint64_t mixed = flow.random
    mixed = (mixed ^ (mixed >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    mixed = (mixed ^ (mixed >> 27)) * <uint64_t>0x94D049BB133111EB
    return mixed ^ (mixed >> 31)


cdef inline uint32_t below(Flow *flow, uint32_t bound) noexcept nogil:
    return <uint32_t>(((bits(flow) >> 32) * bound) >> 32)


# Messages: `begin` writes the frame's length and the header, `end` counts the message

cdef inline uint8_t *begin(Flow *flow, char kind, uint32_t size, uint32_t locate) noexcept nogil:
    cdef uint8_t *message = flow.out + 2
    put_u16(flow.out, size)
    message[0] = <uint8_t>kind
    put_u16(message + 1, locate)
    put_u16(message + 3, <uint32_t>(flow.messages & 0xFFFF) if locate else 0)
    put_u16(message + 5, <uint32_t>(flow.time_ns >> 32))
    put_u32(message + 7, <uint32_t>flow.time_ns)
    flow.out += 2 + size
    flow.messages += 1
    return message


cdef inline void system_event(Flow *flow, char event, int64_t at_ns) noexcept nogil:
    flow.time_ns = max(at_ns, flow.time_ns)
    begin(flow, c'S', 12, 0)[11] = <uint8_t>event


cdef inline uint8_t *about(Flow *flow, char kind, uint32_t size, uint32_t index) noexcept nogil:
    """Begin a message with the stock at offset 11, the rest zero."""
    cdef uint8_t *message = begin(flow, kind, size, index + 1)
    memset(message + 19, 0, size - 19)
    memcpy(message + 11, flow.books[index].symbol, 8)
    return message


cdef inline void trading_action(Flow *flow, uint32_t index, char state, const char *reason) noexcept nogil:
    cdef uint8_t *message = about(flow, c'H', 25, index)
    message[19] = <uint8_t>state
    message[20] = 32
    memcpy(message + 21, reason, 4)


cdef inline void short_sale(Flow *flow, uint32_t index, char action) noexcept nogil:
    about(flow, c'Y', 20, index)[19] = <uint8_t>action


cdef inline void participant(uint8_t *at, uint32_t which) noexcept nogil:
    memcpy(at, b"MMK", 3)
    at[3] = <uint8_t>(65 + which % 26)


cdef inline void position(Flow *flow, uint32_t index, uint32_t which, char state) noexcept nogil:
    cdef uint8_t *message = begin(flow, c'L', 26, index + 1)
    participant(message + 11, which)
    memcpy(message + 15, flow.books[index].symbol, 8)
    memcpy(message + 23, b"YN", 2)
    message[25] = <uint8_t>state


cdef inline void ipo_quoting(Flow *flow, uint32_t index) noexcept nogil:
    cdef uint8_t *message = about(flow, c'K', 28, index)
    put_u32(message + 19, 36_000)
    message[23] = c'A'
    put_u32(message + 24, flow.books[index].base)


cdef inline void direct_listing(Flow *flow, uint32_t index) noexcept nogil:
    cdef uint8_t *message = about(flow, c'O', 48, index)
    cdef uint32_t base = flow.books[index].base
    message[19] = c'Y'
    put_u32(message + 20, base // 2)
    put_u32(message + 24, base * 2)
    put_u32(message + 28, base)
    put_u64(message + 32, <uint64_t>34_200_000_000_000)
    put_u32(message + 40, base - base // 10)
    put_u32(message + 44, base + base // 10)


cdef inline void levels(Flow *flow) noexcept nogil:
    cdef uint8_t *message = begin(flow, c'V', 35, 0)
    put_u64(message + 11, <uint64_t>465_000_000_000)
    put_u64(message + 19, <uint64_t>435_000_000_000)
    put_u64(message + 27, <uint64_t>400_000_000_000)


cdef inline void imbalance(Flow *flow, uint32_t index, char cross) noexcept nogil:
    cdef uint8_t *message = begin(flow, c'I', 50, index + 1)
    cdef uint32_t anchor = flow.books[index].anchor
    cdef uint32_t unpaired = below(flow, 50) * 100
    put_u64(message + 11, below(flow, 100_000))
    put_u64(message + 19, unpaired)
    message[27] = c'N' if unpaired == 0 else (c'B' if anchor & 128 else c'S')
    memcpy(message + 28, flow.books[index].symbol, 8)
    put_u32(message + 36, anchor + TICK * below(flow, 5))
    put_u32(message + 40, anchor + TICK * below(flow, 3))
    put_u32(message + 44, anchor)
    message[48] = <uint8_t>cross
    message[49] = c'L'


cdef inline void directory(Flow *flow, uint32_t index) noexcept nogil:
    cdef uint8_t *message = about(flow, c'R', 39, index)
    cdef uint32_t which
    memcpy(message + 19, b"QN", 2)
    put_u32(message + 21, 100 if flow.books[index].base < 2_500_000 else 10)
    memcpy(message + 25, b"NCZ PN 1N", 9)
    message[38] = c'N'
    trading_action(flow, index, c'T', b"    ")
    short_sale(flow, index, c'0')
    for which in range(1 + index % 2):
        position(flow, index, which, c'A')
    if index == flow.symbols // 2:
        ipo_quoting(flow, index)
    if index == flow.symbols - 1:
        direct_listing(flow, index)
