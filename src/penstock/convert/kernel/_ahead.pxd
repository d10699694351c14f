"""Looking ahead: what the next messages of a batch will need is fetched into the cache before they are converted.

Nothing follows from it but speed.
"""

from penstock.convert.kernel._frame cimport Frame
from penstock.convert.kernel._program cimport Program
from penstock.convert.kernel._source cimport SourceBatch


cdef enum:
    AHEAD = 16 # messages at once, a power of two

# Look at the next messages from `at` on.
cdef void look_ahead(Program program, const Frame *frame, SourceBatch batch, Py_ssize_t at) noexcept nogil
