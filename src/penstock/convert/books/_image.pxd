"""Images of a state: what the units were when an image began, however the state goes on.

Before a unit changes, units_touch() copies it for every image that still needs it: once, one unit.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.convert.books._units cimport Image, State, Unit


cpdef enum:
    IMAGE_MAGIC = 0x4D495350 # the bytes "PSIM"
    IMAGE_VERSION = 2
    IMAGE_FIRST = 1 # flags
    IMAGE_LAST = 2
    CHUNK_MAGIC_AT = 0
    CHUNK_VERSION_AT = 4
    CHUNK_FLAGS_AT = 5
    CHUNK_RESERVED_AT = 6
    CHUNK_BODY_SIZE_AT = 8
    CHUNK_CHECKSUM_AT = 12
    CHUNK_NUMBER_AT = 16
    CHUNK_INSTRUMENTS_AT = 20
    CHUNK_DIGEST_AT = 24
    CHUNK_HEADER_SIZE = 32
    UNIT_NUMBER_AT = 0
    UNIT_RESERVED_AT = 4
    UNIT_SIZE_AT = 8
    UNIT_DIGEST_AT = 16
    UNIT_HEADER_SIZE = 24


cdef inline void unit_touch(State *state, Unit *unit, uint32_t number) noexcept nogil:
    """Call before a unit changes."""
    if unit.touched != state.images_begun:
        image_preserve(state, unit, number)


cdef void image_preserve(State *state, Unit *unit, uint32_t number) noexcept nogil
cdef void images_end(State *state) noexcept nogil
cdef Image *image_open(State *state, const uint64_t *known, uint32_t known_count) except NULL
cdef void image_close(State *state, Image *image) noexcept nogil
cdef uint64_t image_fill(State *state, Image *image, uint8_t *chunk, uint64_t size_max) noexcept nogil
# A unit as it is now, as bytes.
cdef uint64_t unit_bytes_size(const State *state, uint32_t number) noexcept nogil
cdef void unit_bytes_write(const State *state, uint32_t number, uint8_t *out) noexcept nogil
