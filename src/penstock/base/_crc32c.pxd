from libc.stdint cimport uint32_t


cdef extern from "penstock/base/crc32c.h" nogil:
    void crc32c_initialise()                                                    # once, on import of the module
    uint32_t crc32c_extend "crc32c"(uint32_t crc, const void *data, size_t size)
    uint32_t crc32c_software(uint32_t crc, const unsigned char *data, size_t size)
    bint crc32c_joins(size_t size)                                              # true if sizes can be joined
    uint32_t crc32c_join(uint32_t first, uint32_t second, size_t second_size)   # of two adjacent pieces
