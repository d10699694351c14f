"""Where outputs begin, and what goes into their records."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from penstock.convert.kernel._frame cimport Frame, Text
from penstock.convert.kernel._program cimport Op

# Begin a record of the output with its ORIGIN and its row, and count it: what follows stores into frame.record.
# FAULT_NONE, or FAULT_LIMIT if there is no memory for the topics of a new instrument.
cdef int begin_output(Frame *frame, uint32_t number) noexcept nogil

# Number and count an output that is not wanted; what follows may store into what it returns.
cdef uint8_t *pass_over_output(Frame *frame, uint32_t number) noexcept nogil

# Pass on a record that the message brought whole.
cdef int forward(Frame *frame, const Op *op) noexcept nogil


cdef inline void store(uint8_t *at, int64_t value, uint32_t size) noexcept nogil:
    if size == 8:
        memcpy(at, &value, 8)
    elif size == 4:
        memcpy(at, &value, 4)
    elif size == 1:
        at[0] = <uint8_t>value
    else:
        memcpy(at, &value, size)


cdef inline void store_text(uint8_t *at, const Text *text, uint32_t size) noexcept nogil:
    """Its size was checked before."""
    memset(at, 0, size)
    if text.size:
        memcpy(at, text.at, min(text.size, <uint64_t>size))
