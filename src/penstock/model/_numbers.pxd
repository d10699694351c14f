"""Reading numbers from the bytes of a record, for every compiled module that reads records."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint16_t, uint32_t
from libc.string cimport memcpy

# Named like numpy types, and like Field.storage; storage_of() and the widths in topics/_predicate.pyx rely on the
# order.
cdef enum Storage:
    I1, I2, I4, I8, U1, U2, U4, U8, F4, F8, TEXT


cdef inline Storage storage_of(str name) except *:
    """Return the storage of a field by its numpy name; any other name is a text."""
    names = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
    return <Storage><int>names.index(name) if name in names else TEXT


cdef inline int64_t read_integer(int storage, const unsigned char* place) noexcept nogil:
    """Return the integer at `place`, sign-extended; an unsigned 64-bit integer keeps its bits."""
    cdef int16_t i2
    cdef int32_t i4
    cdef int64_t i8
    cdef uint16_t u2
    cdef uint32_t u4
    if storage == I8 or storage == U8:
        memcpy(&i8, place, 8)
        return i8
    if storage == I4:
        memcpy(&i4, place, 4)
        return i4
    if storage == U4:
        memcpy(&u4, place, 4)
        return u4
    if storage == U1:
        return place[0]
    if storage == I2:
        memcpy(&i2, place, 2)
        return i2
    if storage == U2:
        memcpy(&u2, place, 2)
        return u2
    return <int8_t>place[0]


cdef inline double read_float(int storage, const unsigned char* place) noexcept nogil:
    cdef float f4
    cdef double f8
    if storage == F4:
        memcpy(&f4, place, 4)
        return f4
    memcpy(&f8, place, 8)
    return f8


cdef inline Py_ssize_t text_size(const unsigned char* place, Py_ssize_t size) noexcept nogil:
    """Return the size of a text without its padding."""
    while size > 0 and place[size - 1] == 0:
        size -= 1
    return size
