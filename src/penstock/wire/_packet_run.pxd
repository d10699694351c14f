from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.wire._codec cimport MessageView


cdef class PacketRun:
    cdef readonly uint32_t end   # offset after the last packet
    cdef readonly uint64_t last  # sequence of the last packet
    cdef bytes _data
    cdef const uint8_t *start    # of the data
    cdef MessageView *rows       # offsets refer to `start`; packet_index is the offset of the message's packet
    cdef Py_ssize_t count
    cdef Py_ssize_t _capacity

    cdef int take(self, uint32_t at, uint32_t size, uint32_t group, uint32_t epoch, uint64_t last) except -1
    cdef int make_room(self, Py_ssize_t rows) except -1
    cdef object read_message(self, Py_ssize_t index)
