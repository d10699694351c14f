"""What runs the operations on registers."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from penstock.convert.kernel._frame cimport Frame
from penstock.convert.kernel._program cimport Op

# FAULT_NONE, or why the message is malformed.
cdef int run_values(Frame *frame, const Op *op, const Op *end) noexcept nogil

# The same number with another count of decimals, both at most 18; FAULT_RANGE if it does not fit or would lose digits.
cdef int scale_exactly(int64_t a, uint32_t decimals, uint32_t wanted, int64_t *to) noexcept nogil

# Cut a line into the columns of the frame; returns how many there are, at most COLUMNS of them kept.
cdef uint32_t split_columns(Frame *frame, uint8_t separator) noexcept nogil
