from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.convert.kernel._frame cimport Frame, TopicPlace


cdef class Directory:
    cdef Frame *_frame      # its owner's, which outlives it
    cdef object _plan
    cdef TopicPlace *_places
    cdef uint64_t _places_room
    cdef object _data       # numpy: the topics, one after another
    cdef const uint8_t *data_at # where they lie
    cdef uint64_t used
    cdef uint64_t _installs

    cdef int attach(self, Frame *frame) except -1
    cdef int refresh(self) except -1
    cdef int begin_forwarding(self, uint64_t size) except -1
    cdef int put_topics(self, uint64_t first, list topics) except -1
    cdef int use_memory(self, data) except -1
