"""Look-ahead: prefetch the memory that the next messages of a batch need.

Look-ahead affects only speed.
"""

from penstock.convert.kernel._frame cimport Frame
from penstock.convert.kernel._program cimport Program
from penstock.convert.kernel._source cimport SourceBatch


cdef enum:
    AHEAD = 16 # batch of prefetched messages, a power of two

# Prefetch for the next messages from `at` on.
cdef void look_ahead(Program program, const Frame *frame, SourceBatch batch, Py_ssize_t at) noexcept nogil
