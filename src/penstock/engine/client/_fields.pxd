"""A model's fields in the form in which compiled code compares and converts them."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cpdef enum:
    MASK_WORDS = 8  # of 64 bits each: one bit for each of FIELD_COUNT_MAX fields


cdef struct FieldPlace:
    uint32_t offset
    uint32_t size
    int storage             # model._numbers.Storage
    bint is_optional
    bint is_price
    int64_t missing
    double power  # power of ten that scales a price


# The minimum change of a field that counts: more than `limit` in the field's own integers or as a float, or more than
# `limit` per cent of the former value.
cdef struct Move:
    uint32_t field
    bint is_share
    double limit


# Set the bits of fields that differ; `mask` has MASK_WORDS words.
cdef void compare_fields(
    const FieldPlace *places, uint32_t count, const uint8_t *before, const uint8_t *after, uint64_t *mask
) noexcept nogil

cdef bint has_moved(const FieldPlace *places, const Move *move, const uint8_t *before, const uint8_t *after) noexcept nogil

# Convert prices within the first `size` bytes to floats in place.
cdef void convert_prices(const FieldPlace *places, uint32_t count, uint8_t *record, uint32_t size) noexcept nogil


cdef class FieldTable:
    cdef FieldPlace *places
    cdef readonly uint32_t count
    cdef readonly uint32_t record_size
    cdef readonly object model
    cdef readonly tuple names
    cdef dict _numbers

    cdef tuple names_of(self, const uint64_t *mask)
    cdef int get(self, record, Py_buffer *buffer) except -1
