"""Conditions on a message's payload: a predicate for each version of a model, or a byte pattern."""

cimport cython
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free

from penstock.topics._predicate cimport Program, evaluate
from penstock.wire._codec cimport MESSAGE_SEALED, MessageView

from penstock.base.errors import LocalProtocolError

cdef extern from * nogil:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <string.h>
    """
    void *memmem(const void *data, size_t size, const void *pattern, size_t pattern_size)


@cython.no_gc_clear
cdef class Condition:
    """A condition on the payload: {(model id, version): Predicate}, or bytes. A predicate applies from its version up
    to the next one; versions newer than the known ones use the newest predicate.

    Messages of other models do not match. Sealed messages match, and are checked by the receiver that opens them.
    """

    def __cinit__(self, wanted not None):
        cdef Program program
        cdef Clause *clause
        if isinstance(wanted, bytes):
            if not wanted:
                raise LocalProtocolError("the pattern is empty", hint="omit the condition")
            self._held = wanted
            self.terms.pattern = wanted
            self.terms.pattern_size = <uint32_t>len(wanted)
            return
        self.terms.clauses = <Clause *>calloc(max(len(wanted), 1), sizeof(Clause))
        if self.terms.clauses is NULL:
            raise MemoryError
        self._held = [predicate.program for predicate in wanted.values()]
        for (model_id, version), program in zip(wanted, self._held, strict=True):
            clause = self.terms.clauses + self.terms.clause_count
            clause.model_id = model_id
            clause.model_version = version
            clause.entry = program.entry
            clause.nodes = program.nodes
            clause.pool = program.pool
            self.terms.clause_count += 1

    def __dealloc__(self):
        free(self.terms.clauses)


cdef bint is_met(const Terms *terms, const MessageView *message, const uint8_t *payload) noexcept nogil:
    cdef const Clause *clause
    cdef const Clause *newest = NULL
    cdef uint32_t index
    if message.flags & MESSAGE_SEALED:
        return True
    if terms.pattern_size:
        return memmem(payload, message.payload_size, terms.pattern, terms.pattern_size) is not NULL
    for index in range(terms.clause_count):
        clause = terms.clauses + index
        if clause.model_id == message.model_id and clause.model_version <= message.model_version:
            if newest is NULL or newest.model_version < clause.model_version:
                newest = clause
    return newest is not NULL and evaluate(newest.nodes, newest.entry, newest.pool, payload, message.payload_size)
