"""A predicate's program: a decision graph of tests over a record's bytes. Other compiled code calls evaluate().

Each Node is one test and names the next node if the test holds, if it does not hold, and if the record is too short.
Jumps only lead forward, so a program ends after at most `count` tests, at ACCEPT or REJECT.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cpdef enum:
    KIND_RANGE = 0          # low <= key <= high; the key is an integer with the same order as the value
    KIND_BITS = 1           # any bit of low is set
    KIND_TEXT = 2           # a text against a constant
    KIND_LIKE = 3           # a text against a pattern
    KIND_FIELDS_NUMBER = 4  # low * a against high * b, for integers a and b
    KIND_FIELDS_FLOAT = 5   # two numbers as doubles
    KIND_FIELDS_TEXT = 6    # two texts

cpdef enum:
    SIGN_LESS = 1
    SIGN_EQUAL = 2
    SIGN_GREATER = 4

cpdef enum:
    ACCEPT = -1
    REJECT = -2

cpdef enum:
    ANY_CHARACTER = 256
    ANY_CHARACTERS = 257

cdef struct Node:
    int32_t on_true
    int32_t on_false
    int32_t on_missing
    uint8_t kind
    uint8_t storage         # a Storage of model/_numbers.pxd
    uint8_t storage_right
    uint8_t signs           # the outcomes of a comparison that satisfy the test
    uint32_t offset
    uint32_t size
    uint32_t offset_right
    uint32_t size_right
    uint32_t end            # minimum size of the record in bytes
    uint32_t constant       # offset of the constant in the pool
    uint32_t constant_size  # bytes of a text, or tokens of a pattern
    int64_t low
    int64_t high

cdef class Program:
    cdef Node* nodes
    cdef Py_ssize_t count
    cdef int32_t entry
    cdef bytes pool_held
    cdef const unsigned char* pool

    cdef bint accepts(self, const unsigned char* record, Py_ssize_t size) noexcept nogil

cdef bint evaluate(
    const Node* nodes, int32_t entry, const unsigned char* pool, const unsigned char* record, Py_ssize_t size
) noexcept nogil
