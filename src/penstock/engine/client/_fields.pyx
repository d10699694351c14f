"""Comparison of record fields, size of changes, and conversion of prices to floats."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.math cimport NAN, fabs, isnan
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from penstock.model._numbers cimport F4, F8, TEXT, U8, read_float, read_integer, storage_of

from penstock.base.errors import LocalProtocolError, ModelError
from penstock.base.limits import FIELD_COUNT_MAX

assert FIELD_COUNT_MAX == 64 * MASK_WORDS


cdef void compare_fields(
    const FieldPlace *places, uint32_t count, const uint8_t *before, const uint8_t *after, uint64_t *mask
) noexcept nogil:
    cdef uint32_t field, offset
    memset(mask, 0, MASK_WORDS * sizeof(uint64_t))
    for field in range(count):
        offset = places[field].offset
        if memcmp(before + offset, after + offset, places[field].size) != 0:
            mask[field >> 6] |= <uint64_t>1 << (field & 63)


cdef inline bint is_float(const FieldPlace *place) noexcept nogil:
    return place.storage == F4 or place.storage == F8


cdef bint has_moved(
    const FieldPlace *places, const Move *move, const uint8_t *before, const uint8_t *after
) noexcept nogil:
    cdef const FieldPlace *place = places + move.field
    cdef double old_float, new_float, distance, size
    cdef int64_t old, new
    before += place.offset
    after += place.offset
    if is_float(place):
        old_float, new_float = read_float(place.storage, before), read_float(place.storage, after)
        if isnan(old_float) or isnan(new_float):
            return isnan(old_float) != isnan(new_float)
        distance, size = fabs(new_float - old_float), fabs(old_float)
    else:
        old, new = read_integer(place.storage, before), read_integer(place.storage, after)
        if place.is_optional and (old == place.missing or new == place.missing):
            return old != new
        if place.storage == U8:
            distance = <double>(<uint64_t>new - <uint64_t>old if <uint64_t>new > <uint64_t>old
                                else <uint64_t>old - <uint64_t>new)
            size = <double><uint64_t>old
        else:
            distance = <double>(<uint64_t>new - <uint64_t>old if new > old else <uint64_t>old - <uint64_t>new)
            size = fabs(<double>old)
    return distance * 100 > size * move.limit if move.is_share else distance > move.limit


cdef void convert_prices(const FieldPlace *places, uint32_t count, uint8_t *record, uint32_t size) noexcept nogil:
    cdef uint32_t field
    cdef int64_t scaled
    cdef double price
    for field in range(count):
        if not places[field].is_price or places[field].offset + places[field].size > size:
            continue
        memcpy(&scaled, record + places[field].offset, sizeof(scaled))
        if places[field].is_optional and scaled == places[field].missing:
            price = NAN
        else:
            price = <double>scaled / places[field].power
        memcpy(record + places[field].offset, &price, sizeof(price))


cdef class FieldTable:
    """The fields of a model. `names` are in the order of the bits of a mask."""

    def __cinit__(self, model not None):
        cdef uint32_t number = 0
        self.model = model
        self.names = tuple([field.name for field in model.fields])
        self._numbers = {name: at for at, name in enumerate(self.names)}
        self.record_size = model.record_size
        if len(self.names) > FIELD_COUNT_MAX:
            raise ModelError(f"model {model.name!r} has {len(self.names)} fields, the limit is {FIELD_COUNT_MAX}")
        self.count = <uint32_t>len(self.names)
        self.places = <FieldPlace *>PyMem_Calloc(max(self.count, 1), sizeof(FieldPlace))
        if self.places is NULL:
            raise MemoryError
        for field in model.fields:
            if field.end > model.record_size:
                raise ModelError(f"field {field.name!r} does not fit the record")
            self.places[number].offset = field.offset
            self.places[number].size = field.size
            self.places[number].storage = storage_of(field.storage)
            self.places[number].is_optional = field.optional
            self.places[number].is_price = field.is_decimal
            self.places[number].missing = <int64_t>(<uint64_t>((field.missing or 0) & 0xFFFFFFFFFFFFFFFF))
            self.places[number].power = 10.0 ** field.decimals
            number += 1

    def __dealloc__(self):
        PyMem_Free(self.places)

    def number(self, name) -> int:
        """Return the field's bit. Raise LocalProtocolError for an unknown field."""
        try:
            return self._numbers[name]
        except KeyError:
            raise LocalProtocolError(f"model {self.model.name!r} has no field {name!r}") from None

    def changed(self, before not None, after not None) -> tuple:
        """Return the names of the fields that differ between two records."""
        cdef Py_buffer left, right
        cdef uint64_t[MASK_WORDS] mask
        self.get(before, &left)
        try:
            self.get(after, &right)
            try:
                compare_fields(
                    self.places, self.count, <const uint8_t *>left.buf, <const uint8_t *>right.buf, mask
                )
            finally:
                PyBuffer_Release(&right)
        finally:
            PyBuffer_Release(&left)
        return self.names_of(mask)

    def has_moved(self, name, double limit, bint is_share, before not None, after not None) -> bool:
        """True if the field changed by more than `limit` between two records: in its integers, or in per cent."""
        cdef Py_buffer left, right
        cdef Move move = Move(field=self.number(name), is_share=is_share, limit=limit)
        self.get(before, &left)
        try:
            self.get(after, &right)
            try:
                return has_moved(self.places, &move, <const uint8_t *>left.buf, <const uint8_t *>right.buf)
            finally:
                PyBuffer_Release(&right)
        finally:
            PyBuffer_Release(&left)

    def converted(self, record not None) -> bytes:
        """Return a copy of the record with its prices as floats."""
        cdef Py_buffer content
        cdef bytes out
        PyObject_GetBuffer(record, &content, PyBUF_SIMPLE)
        try:
            out = PyBytes_FromStringAndSize(<const char *>content.buf, content.len)
            convert_prices(self.places, self.count, <uint8_t *>PyBytes_AS_STRING(out), <uint32_t>content.len)
        finally:
            PyBuffer_Release(&content)
        return out

    cdef tuple names_of(self, const uint64_t *mask):
        cdef uint32_t field
        return tuple([self.names[field] for field in range(self.count) if mask[field >> 6] >> (field & 63) & 1])

    cdef int get(self, record, Py_buffer *buffer) except -1:
        """Get a buffer that contains every field."""
        PyObject_GetBuffer(record, buffer, PyBUF_SIMPLE)
        if buffer.len < self.record_size:
            size = buffer.len
            PyBuffer_Release(buffer)
            raise LocalProtocolError(f"the record has {size} bytes, model {self.model.name!r} {self.record_size}")
        return 0
