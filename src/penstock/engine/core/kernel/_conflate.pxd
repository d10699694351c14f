"""How records that wait are made one, by the model's contract; other compiled code calls merge(), or has a SpanStore.

The newest update gives the record: its bytes, its size, its version. Fields with a contract (first, max, min, sum) are
kept over all updates that the record stands for. A missing value, or a NaN, counts for nothing: the first value that is
there, the greatest of those there, the sum of those there; missing only if none is. A sum stops at the field's least or
greatest value. A field that one of two records does not have, by its version, is as the newest update has it.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cpdef enum:
    RULE_FIRST = 0
    RULE_MAX = 1
    RULE_MIN = 2
    RULE_SUM = 3

    NO_SPAN = 0             # spans are numbered from 1


cdef struct ContractField:
    uint32_t offset
    uint32_t size
    int64_t missing     # the integer that says so; looked at if `optional`
    int64_t low         # of values; those of 64 bits without sign keep their bits
    int64_t high
    uint16_t since
    uint8_t storage     # a Storage of model/_numbers.pxd
    uint8_t rule
    uint8_t optional


cdef struct Stretch:    # bytes between the fields with a contract, as the newest update has them
    uint32_t offset
    uint32_t end


cdef struct Contract:
    ContractField *fields
    uint32_t field_count
    Stretch *stretches
    uint32_t stretch_count


# Make the update part of the record held, which then is of the update's size and version. `held` has room for it.
cdef void merge(
    const Contract *contract,
    uint8_t *held, uint32_t held_size, uint16_t held_version,
    const uint8_t *update, uint32_t size, uint16_t version,
) noexcept nogil


cdef class ConflationPlan:
    cdef Contract contract
    cdef readonly object model
    cdef readonly bint is_conflatable       # False: no update may ever be held back and merged
    cdef readonly bint needs_accumulator    # False: the newest record is what all of them conflate to


# A record that waits, and what it stands for.
cdef struct Span:
    uint64_t first      # the item's version of the first update in it
    uint64_t last       # and of the newest
    int64_t started_ns  # of the newest
    uint8_t *record
    uint32_t size
    uint32_t capacity
    uint32_t merged     # updates in it; 0: it is free
    uint32_t next_free
    uint16_t version


# Records that wait, one for each pending pair of one model. Spans come from blocks that are kept, and keep the memory of
# their records: once they have been in use, nothing is allocated.
cdef class SpanStore:
    cdef readonly ConflationPlan plan
    cdef readonly uint32_t in_use
    cdef readonly uint32_t spans_max
    cdef Span **blocks
    cdef uint32_t block_count
    cdef uint32_t made
    cdef uint32_t free

    # Make the update part of the span `*number`, or begin one there if it is NO_SPAN. False: there is no room or no memory,
    # and nothing has changed.
    cdef bint hold(
        self, uint32_t *number, const uint8_t *update, uint32_t size, uint16_t version,
        uint64_t item_version, int64_t started_ns,
    ) noexcept nogil
    cdef Span *at(self, uint32_t number) noexcept nogil
    cdef const uint8_t *record(self, uint32_t number) noexcept nogil
    cdef void release(self, uint32_t *number) noexcept nogil
