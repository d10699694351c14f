"""Extract columns from records: each function reads one field of many records and fills the buffers of one Arrow
column.

The field is a one-dimensional numpy view into the records (records["price"]): offset, stride and size come from its
buffer. `valid` is an Arrow bitmap, one bit per record, least significant first; None for a column without nulls.
Functions that fill a bitmap return the number of nulls.
"""

from cpython.buffer cimport PyBUF_STRIDES, PyBuffer_Release, PyObject_GetBuffer
from libc.math cimport isnan
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from penstock.base.errors import ModelError
from penstock.model._numbers cimport (
    F4, F8, I1, I2, I4, I8, TEXT, U1, U2, U4, U8, read_integer, storage_of, text_size,
)

cdef enum:
    NAMES = 256  # an enum is a byte
    NAME_SIZE_MAX = 64

cdef int64_t PRICE_LIMIT = 1000000000000000000  # 10**18: a price with more digits does not fit DECIMAL(18, d)


cdef class Strided:
    """The bytes of one field of many records, kept alive while they are read."""

    cdef Py_buffer buffer
    cdef bint held
    cdef const unsigned char* place
    cdef Py_ssize_t stride
    cdef Py_ssize_t count
    cdef Py_ssize_t size

    def __cinit__(self, column not None, Py_ssize_t size):
        PyObject_GetBuffer(column, &self.buffer, PyBUF_STRIDES)
        self.held = True
        if self.buffer.ndim != 1 or (size and self.buffer.itemsize != size):
            raise ModelError("the column is not a single field of an array of records")
        self.place = <const unsigned char*>self.buffer.buf
        self.stride = self.buffer.strides[0]
        self.count = self.buffer.shape[0]
        self.size = self.buffer.itemsize

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


cdef int[11] SIZES = [1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 0]
cdef int[11] WIDTHS = [1, 2, 4, 8, 2, 4, 8, 8, 4, 8, 0]


def width_of(str storage not None):
    """Return the width of a number in its column: unsigned types use the next wider signed type, but 8 bytes stay 8."""
    return WIDTHS[<int>storage_of(storage)]


def fill_integers(column not None, str storage not None, unsigned char[::1] values not None, missing, valid):
    """Copy integers in the column's width; unsigned 64-bit integers keep their bits. `missing`, if given, becomes
    null.
    """
    cdef int kind = storage_of(storage)
    if kind == TEXT or kind == F4 or kind == F8:
        raise ModelError(f"{storage} is not an integer")
    cdef Strided field = Strided(column, SIZES[kind])
    cdef unsigned char* out = room(values, field.count * WIDTHS[kind])
    cdef unsigned char* bits = bitmap(valid, field.count) if missing is not None else NULL
    # In the form of read_integer(): the bits of 64-bit integers, otherwise the number itself.
    cdef int64_t null = <int64_t><uint64_t>(missing & 0xFFFFFFFFFFFFFFFF) if missing is not None else 0
    cdef Py_ssize_t nulls
    with nogil:
        nulls = copy_integers_as(kind, field.place, field.stride, field.count, out, null, bits)
    return nulls


def fill_floats(column not None, str storage not None, unsigned char[::1] values not None, valid):
    """Copy floats unchanged; with a bitmap, NaN becomes null."""
    cdef int kind = storage_of(storage)
    if kind != F4 and kind != F8:
        raise ModelError(f"{storage} is not a float")
    cdef Strided field = Strided(column, SIZES[kind])
    cdef unsigned char* out = room(values, field.count * WIDTHS[kind])
    cdef unsigned char* bits = bitmap(valid, field.count) if valid is not None else NULL
    cdef Py_ssize_t nulls
    with nogil:
        nulls = copy_floats(kind, field.place, field.stride, field.count, out, bits)
    return nulls


def fill_prices(column not None, unsigned char[::1] values not None, valid not None):
    """Convert prices to 128-bit decimals. Prices with more than 18 digits become null, including the missing value."""
    cdef Strided field = Strided(column, 8)
    cdef unsigned char* out = room(values, field.count * 16)
    cdef unsigned char* bits = bitmap(valid, field.count)
    cdef Py_ssize_t nulls
    with nogil:
        nulls = copy_prices(field.place, field.stride, field.count, <int64_t*>out, bits)
    return nulls


def mark_beyond(column not None, missing, uint8_t[::1] marks not None):
    """Mark prices that have more than 18 digits and are not `missing`."""
    cdef Strided field = Strided(column, 8)
    if marks.shape[0] != field.count:
        raise ModelError(f"{marks.shape[0]} marks do not match {field.count} records")
    cdef bint has_missing = missing is not None
    cdef int64_t null = missing if has_missing else 0
    cdef Py_ssize_t index
    cdef int64_t value
    with nogil:
        for index in range(field.count):
            value = read_integer(I8, field.place + index * field.stride)
            if not is_decimal(value) and not (has_missing and value == null):
                marks[index] = 1


def fill_texts(column not None, unsigned char[::1] offsets not None, unsigned char[::1] data not None, valid):
    """Copy texts without padding; with a bitmap, an empty text becomes null. Return (bytes, nulls, whether all are
    ASCII).
    """
    cdef Strided field = Strided(column, 0)
    cdef int32_t* ends = <int32_t*>room(offsets, (field.count + 1) * 4)
    cdef unsigned char* out = room(data, field.count * field.size)
    cdef unsigned char* bits = bitmap(valid, field.count) if valid is not None else NULL
    cdef bint is_ascii = True
    cdef Py_ssize_t nulls
    if field.count * field.size > INT32_MAX:
        raise ModelError(f"{field.count} texts of {field.size} bytes exceed the size of a column")
    with nogil:
        # A constant size compiles to one or two moves.
        if field.size == 16:
            nulls = copy_texts(field.place, field.stride, field.count, 16, ends, out, bits, &is_ascii)
        elif field.size == 8:
            nulls = copy_texts(field.place, field.stride, field.count, 8, ends, out, bits, &is_ascii)
        elif field.size == 4:
            nulls = copy_texts(field.place, field.stride, field.count, 4, ends, out, bits, &is_ascii)
        else:
            nulls = copy_texts(field.place, field.stride, field.count, field.size, ends, out, bits, &is_ascii)
    return ends[field.count], nulls, is_ascii


def fill_names(column not None, tuple names not None, unsigned char[::1] offsets not None, valid):
    """Write the names of an enum's numbers. Return (the texts, nulls); with a bitmap, the number 0 becomes null.

    `names` has 256 ASCII texts of at most 64 bytes, one for each number.
    """
    cdef Strided field = Strided(column, 1)
    cdef int32_t* ends = <int32_t*>room(offsets, (field.count + 1) * 4)
    cdef unsigned char* bits = bitmap(valid, field.count) if valid is not None else NULL
    cdef unsigned char[NAMES * NAME_SIZE_MAX] texts
    cdef int32_t[NAMES] sizes
    cdef Py_ssize_t nulls, index
    cdef bytes name
    if len(names) != NAMES:
        raise ModelError(f"an enum needs {NAMES} names, not {len(names)}")
    for index in range(NAMES):
        name = names[index]
        if len(name) > NAME_SIZE_MAX:
            raise ModelError(f"the name {name!r} exceeds the limit of {NAME_SIZE_MAX} bytes")
        sizes[index] = <int32_t>len(name)
        memcpy(texts + index * NAME_SIZE_MAX, <const unsigned char*>name, sizes[index])
    if field.count > INT32_MAX // NAME_SIZE_MAX:
        raise ModelError(f"{field.count} names exceed the size of a column")
    with nogil:
        nulls = place_names(field.place, field.stride, field.count, sizes, ends, bits)
    data = bytearray(ends[field.count])
    cdef unsigned char[::1] view = data
    if ends[field.count]:
        with nogil:
            copy_names(field.place, field.stride, field.count, texts, ends, &view[0])
    return data, nulls


# Room and bits ------------------------------------------------------------------------------------------------------


cdef unsigned char* room(unsigned char[::1] values, Py_ssize_t size) except? NULL:
    if values.shape[0] < size:
        raise ModelError(f"a buffer of {values.shape[0]} bytes cannot hold {size}")
    return &values[0] if values.shape[0] else NULL


cdef unsigned char* bitmap(valid, Py_ssize_t count) except? NULL:
    if valid is None:
        raise ModelError("a column with missing values needs a bitmap")
    cdef unsigned char[::1] bits = valid
    return room(bits, (count + 7) // 8)


cdef inline void put_bit(unsigned char* bits, Py_ssize_t index, bint is_set) noexcept nogil:
    """Set bits in order: the first bit of a byte clears the others."""
    if index & 7 == 0:
        bits[index >> 3] = is_set
    else:
        bits[index >> 3] |= is_set << (index & 7)


cdef inline bint is_decimal(int64_t value) noexcept nogil:
    return -PRICE_LIMIT < value < PRICE_LIMIT


# Loops --------------------------------------------------------------------------------------------------------------


cdef Py_ssize_t copy_integers_as(
    int kind, const unsigned char* place, Py_ssize_t stride, Py_ssize_t count, unsigned char* out, int64_t null,
    unsigned char* bits,
) noexcept nogil:
    # Written out, so that each case compiles to a loop without branches.
    if kind == I8 or kind == U8:
        return copy_integers(I8, 8, place, stride, count, out, null, bits)
    if kind == U4:
        return copy_integers(U4, 8, place, stride, count, out, null, bits)
    if kind == I4:
        return copy_integers(I4, 4, place, stride, count, out, null, bits)
    if kind == U2:
        return copy_integers(U2, 4, place, stride, count, out, null, bits)
    if kind == I2:
        return copy_integers(I2, 2, place, stride, count, out, null, bits)
    if kind == U1:
        return copy_integers(U1, 2, place, stride, count, out, null, bits)
    return copy_integers(I1, 1, place, stride, count, out, null, bits)


cdef inline Py_ssize_t copy_integers(
    int kind, int width, const unsigned char* place, Py_ssize_t stride, Py_ssize_t count, unsigned char* out,
    int64_t null, unsigned char* bits,
) noexcept nogil:
    cdef Py_ssize_t index, nulls = 0
    cdef int64_t value
    cdef int32_t narrow
    cdef int16_t short
    for index in range(count):
        value = read_integer(kind, place)
        place += stride
        if bits != NULL:
            put_bit(bits, index, value != null)
            nulls += value == null
        if width == 8:
            memcpy(out, &value, 8)
        elif width == 4:
            narrow = <int32_t>value
            memcpy(out, &narrow, 4)
        elif width == 2:
            short = <int16_t>value
            memcpy(out, &short, 2)
        else:
            out[0] = <unsigned char>value
        out += width
    return nulls


cdef Py_ssize_t copy_floats(
    int kind, const unsigned char* place, Py_ssize_t stride, Py_ssize_t count, unsigned char* out, unsigned char* bits
) noexcept nogil:
    cdef Py_ssize_t index, nulls = 0, size = SIZES[kind]
    cdef float single = 0
    cdef double value
    for index in range(count):
        memcpy(out, place, size)
        if bits != NULL:
            if kind == F4:
                memcpy(&single, place, 4)
                value = single
            else:
                memcpy(&value, place, 8)
            put_bit(bits, index, not isnan(value))
            nulls += isnan(value) != 0
        place += stride
        out += size
    return nulls


cdef Py_ssize_t copy_prices(
    const unsigned char* place, Py_ssize_t stride, Py_ssize_t count, int64_t* out, unsigned char* bits
) noexcept nogil:
    cdef Py_ssize_t index, nulls = 0
    cdef int64_t value
    cdef bint fits
    for index in range(count):
        value = read_integer(I8, place)
        place += stride
        fits = is_decimal(value)
        if not fits:
            value = 0
            nulls += 1
        put_bit(bits, index, fits)
        out[2 * index] = value
        out[2 * index + 1] = value >> 63
    return nulls


cdef inline Py_ssize_t copy_texts(
    const unsigned char* place, Py_ssize_t stride, Py_ssize_t count, Py_ssize_t size, int32_t* ends, unsigned char* out,
    unsigned char* bits, bint* is_ascii,
) noexcept nogil:
    cdef Py_ssize_t index, nulls = 0, end = 0, length, at
    cdef unsigned char seen = 0
    cdef unsigned char* text
    ends[0] = 0
    for index in range(count):
        # The next text overwrites the excess bytes: there is room for all texts in full size.
        text = out + end
        memcpy(text, place, size)
        length = text_size(text, size)
        for at in range(size):
            seen |= text[at]
        end += length
        ends[index + 1] = <int32_t>end
        place += stride
        if bits != NULL:
            put_bit(bits, index, length > 0)
            nulls += length == 0
    is_ascii[0] = seen < 0x80
    return nulls


cdef Py_ssize_t place_names(
    const unsigned char* place, Py_ssize_t stride, Py_ssize_t count, const int32_t* sizes, int32_t* ends,
    unsigned char* bits,
) noexcept nogil:
    cdef Py_ssize_t index, nulls = 0
    cdef int32_t end = 0
    cdef unsigned char number
    ends[0] = 0
    for index in range(count):
        number = place[0]
        place += stride
        if bits != NULL:
            put_bit(bits, index, number != 0)
            nulls += number == 0
            if number != 0:
                end += sizes[number]
        else:
            end += sizes[number]
        ends[index + 1] = end
    return nulls


cdef void copy_names(
    const unsigned char* place, Py_ssize_t stride, Py_ssize_t count, const unsigned char* texts, const int32_t* ends,
    unsigned char* out,
) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(count):
        memcpy(out + ends[index], texts + NAME_SIZE_MAX * <Py_ssize_t>place[0], ends[index + 1] - ends[index])
        place += stride
