"""What runs a message's steps."""

from libc.stdint cimport uint32_t

from penstock.convert.kernel._frame cimport Frame
from penstock.convert.kernel._program cimport Op

# Run the operations from `start` to before `end`: FAULT_NONE, or why it stopped there.
cdef int run_steps(Frame *frame, const Op *ops, uint32_t start, uint32_t end) noexcept nogil
