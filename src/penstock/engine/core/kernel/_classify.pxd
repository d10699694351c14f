"""What is left of the class rules for one item and consumer, when only a record can decide; classes.py compiles it."""

from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.topics._predicate cimport Node

cdef enum:
    VALUES_MAX = 4096       # different values of which a test remembers whether they match


cdef struct Known:          # a value that was looked at; its bytes are elsewhere
    uint64_t hash           # 0: free
    bint is_match


cdef struct ValueTable:     # what a field's values matched
    uint32_t offset
    uint32_t size
    bint is_enum
    uint8_t[256] by_number  # of an enum
    Known *known
    uint8_t *values
    uint32_t count
    PyObject *matches       # asks the expression, for a value that is new


cdef class ValueTest:
    cdef ValueTable table
    cdef object _matches    # keeps what the table points to


cdef struct Step:
    const Node *nodes           # NULL: no condition
    const unsigned char *pool
    int entry
    uint32_t first_test
    uint32_t test_count
    uint8_t cls


cdef struct Rules:
    Step *steps
    uint32_t step_count
    ValueTable **tests
    uint8_t otherwise


cdef class ClassProgram:
    cdef readonly uint8_t static_class  # that of every record; 0: it depends
    cdef Rules rules
    cdef tuple _held                    # what the rules point to

    cdef uint8_t classify(self, const uint8_t *record, uint32_t size) noexcept nogil
