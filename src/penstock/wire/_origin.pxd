"""Find the ORIGIN extension of a message without Python."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.wire._codec cimport (
    EXTENSION_HEADER_SIZE,
    EXTENSION_ORIGIN,
    EXTENSION_SIZE_AT,
    EXTENSION_TYPE_AT,
    ORIGIN_SIZE,
    load_u16,
    padded,
)


cdef inline bint find_origin(const uint8_t *extensions, uint32_t size, const uint8_t **origin) noexcept nogil:
    """Find the last ORIGIN; False if there is none or it is invalid. The extensions must be validated."""
    cdef uint32_t at = 0
    cdef uint32_t body_size
    while at < size:
        body_size = load_u16(extensions + at + EXTENSION_SIZE_AT)
        if load_u16(extensions + at + EXTENSION_TYPE_AT) == EXTENSION_ORIGIN:
            if body_size != ORIGIN_SIZE - EXTENSION_HEADER_SIZE:
                return False
            origin[0] = extensions + at
        at += <uint32_t>padded(<uint64_t>EXTENSION_HEADER_SIZE + body_size)
    return True
