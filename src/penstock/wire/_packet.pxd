from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef class PacketMessage:
    cdef readonly str topic
    cdef readonly object payload
    cdef readonly uint64_t publisher_id
    cdef readonly uint64_t sequence # of the message's packet
    cdef readonly uint32_t epoch    # of the message's packet
    cdef readonly int flags
    cdef readonly int model_id
    cdef readonly int model_version
    cdef dict _extensions


cdef dict read_extensions(const uint8_t *start, uint32_t size)
