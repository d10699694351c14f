"""Conflation of waiting records by the model's contract. Compiled code calls merge(), or uses a SpanStore.

The newest update determines the record: its bytes, size and version. Fields with a contract (first, max, min, sum)
accumulate over all updates of the record. Missing values and NaN are ignored: the result is the first, largest,
smallest or sum of the values present, and missing only if all are. A sum saturates at the limits of the field. A field
that one of two records lacks, because of its version, is taken from the newest update.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cpdef enum:
    RULE_FIRST = 0
    RULE_MAX = 1
    RULE_MIN = 2
    RULE_SUM = 3

    NO_SPAN = 0  # spans are numbered from 1


cdef struct ContractField:
    uint32_t offset
    uint32_t size
    int64_t missing  # the integer for a missing value; used if `optional`
    int64_t low  # limits of values; unsigned 64-bit values keep their bits
    int64_t high
    uint16_t since
    uint8_t storage  # a Storage of model/_numbers.pxd
    uint8_t rule
    uint8_t optional


cdef struct Stretch:  # bytes between fields with a contract, copied from the newest update
    uint32_t offset
    uint32_t end


cdef struct Contract:
    ContractField *fields
    uint32_t field_count
    Stretch *stretches
    uint32_t stretch_count


# Merge the update into the record held, which then has the update's size and version. `held` must have room.
cdef void merge(
    const Contract *contract,
    uint8_t *held, uint32_t held_size, uint16_t held_version,
    const uint8_t *update, uint32_t size, uint16_t version,
) noexcept nogil


cdef class ConflationPlan:
    cdef Contract contract
    cdef readonly object model
    cdef readonly bint is_conflatable  # False: no update may be held back or merged
    cdef readonly bint needs_accumulator  # False: the newest record is the result of conflation


# A waiting record and the updates that it represents.
cdef struct Span:
    uint64_t first  # the item's version of its first update
    uint64_t last       # and of the newest
    int64_t started_ns  # of the newest
    uint8_t *record
    uint32_t size
    uint32_t capacity
    uint32_t merged  # number of its updates; 0: the span is free
    uint32_t next_free
    uint16_t version


# Waiting records, one for each pending pair of one model. Spans come from reused blocks and keep the memory of their
# records: once they have been in use, nothing is allocated.
cdef class SpanStore:
    cdef readonly ConflationPlan plan
    cdef readonly uint32_t in_use
    cdef readonly uint32_t spans_max
    cdef Span **blocks
    cdef uint32_t block_count
    cdef uint32_t made
    cdef uint32_t free

    # Merge the update into the span `*number`, or begin a span if it is NO_SPAN. False without room or memory; then
    # nothing has changed.
    cdef bint hold(
        self, uint32_t *number, const uint8_t *update, uint32_t size, uint16_t version,
        uint64_t item_version, int64_t started_ns,
    ) noexcept nogil
    cdef Span *at(self, uint32_t number) noexcept nogil
    cdef const uint8_t *record(self, uint32_t number) noexcept nogil
    cdef void release(self, uint32_t *number) noexcept nogil
