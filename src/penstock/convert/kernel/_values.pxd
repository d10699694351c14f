"""Run the operations on registers."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from penstock.convert.kernel._frame cimport Frame
from penstock.convert.kernel._program cimport Op

# Return FAULT_NONE, or the reason why the message is malformed.
cdef int run_values(Frame *frame, const Op *op, const Op *end) noexcept nogil

# Convert a number to another number of decimals, both at most 18; FAULT_RANGE if it does not fit or would lose digits.
cdef int scale_exactly(int64_t a, uint32_t decimals, uint32_t wanted, int64_t *to) noexcept nogil

# Split a line into the columns of the frame; return their number, of which at most COLUMNS are kept.
cdef uint32_t split_columns(Frame *frame, uint8_t separator) noexcept nogil
