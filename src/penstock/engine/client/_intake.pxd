"""Blocks of events as they arrive at one consumer."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from penstock.engine.core.kernel._event cimport Head


cdef struct Item:
    uint64_t version  # of the last event taken; 0: none
    uint16_t model_id
    bint is_defined


cdef class Intake:
    cdef Item *_items
    cdef uint64_t _item_count  # number of items with memory
    cdef uint64_t _items_max
    cdef uint8_t *_block
    cdef uint64_t _size
    cdef uint64_t _capacity
    cdef object _learn
    cdef dict _plans
    cdef readonly uint64_t last_number
    cdef readonly uint64_t events
    cdef readonly uint64_t duplicates
    cdef readonly uint64_t undefined
    cdef readonly uint64_t filtered

    cdef int reserve(self, uint64_t size) except -1
    cdef bytes sifted(self)
    cdef bint keeps(self, const Head *head, uint8_t *event) except -1
    cdef int define(self, const Head *head) except -1
    cdef bint shapes(self, const Head *head, uint8_t *body) except -1
