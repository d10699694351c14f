"""Find a message's extension without Python."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from penstock.wire._codec cimport EXTENSION_HEADER_SIZE, EXTENSION_SIZE_AT, EXTENSION_TYPE_AT, load_u16, padded


cdef inline const uint8_t *find_extension(
    const uint8_t *extensions, uint32_t size, uint16_t kind, uint16_t *body_size
) noexcept nogil:
    """Return the body of the last extension of this kind, or NULL; the extensions must be validated."""
    cdef const uint8_t *found = NULL
    cdef uint32_t at = 0
    cdef uint16_t each_size
    while at < size:
        each_size = load_u16(extensions + at + EXTENSION_SIZE_AT)
        if load_u16(extensions + at + EXTENSION_TYPE_AT) == kind:
            found = extensions + at + EXTENSION_HEADER_SIZE
            body_size[0] = each_size
        at += <uint32_t>padded(<uint64_t>EXTENSION_HEADER_SIZE + each_size)
    return found
