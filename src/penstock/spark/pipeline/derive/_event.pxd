"""An event of an order book, as the compiled code of this package has it."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef struct Event:
    int64_t seq
    int64_t event_time
    int64_t source_seq
    uint64_t order_id
    uint64_t new_order_id
    int64_t price
    int64_t quantity
    uint32_t instrument
    uint16_t session
    uint8_t action
    uint8_t side_flags # 1 buy, 2 sell, 0 not told; the flags from bit 2 on
