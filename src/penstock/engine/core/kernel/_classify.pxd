"""The part of the class rules for an item and consumer that depends on the record; compiled by classes.py."""

from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.topics._predicate cimport Node

cdef enum:
    VALUES_MAX = 4096  # maximum number of values whose result a test caches


cdef struct Known:  # a checked value; its bytes are elsewhere
    uint64_t hash  # 0: free
    bint is_match


cdef struct ValueTable:  # results for a field's values
    uint32_t offset
    uint32_t size
    bint is_enum
    uint8_t[256] by_number  # for an enum
    Known *known
    uint8_t *values
    uint32_t count
    PyObject *matches  # calls the expression, for a new value


cdef class ValueTest:
    cdef ValueTable table
    cdef object _matches  # keeps the objects that the table points to


cdef struct Step:
    const Node *nodes  # NULL: no condition
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
    cdef readonly uint8_t static_class  # the class of every record; 0: it depends on the record
    cdef Rules rules
    cdef tuple _held  # keeps the objects that the rules point to

    cdef uint8_t classify(self, const uint8_t *record, uint32_t size) noexcept nogil
