from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t

from penstock.topics._predicate cimport Node
from penstock.wire._codec cimport MessageView


cdef struct Clause:  # conditions on records of a model, from a version on
    uint16_t model_id
    uint16_t model_version
    int32_t entry
    const Node *nodes
    const unsigned char *pool


cdef struct Terms:
    Clause *clauses
    uint32_t clause_count
    uint32_t pattern_size  # 0: the clauses apply; otherwise the number of pattern bytes
    const uint8_t *pattern


cdef class Condition:
    cdef Terms terms
    cdef object _held


# True if a message with this payload matches. Sealed payloads cannot be checked here.
cdef bint is_met(const Terms *terms, const MessageView *message, const uint8_t *payload) noexcept nogil
