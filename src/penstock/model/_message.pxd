from cpython.buffer cimport Py_buffer
from libc.stdint cimport uint8_t


cdef class RecordLayout:
    cdef readonly Py_ssize_t record_size
    cdef readonly int version
    cdef readonly tuple sizes_by_since
    cdef readonly tuple accessors
    cdef dict accessors_by_name

    cdef int version_of(self, Py_ssize_t size, version) except -1


cdef class Record:
    cdef Py_buffer buffer
    cdef unsigned char* data
    cdef bint held
    cdef RecordLayout layout
    cdef int version_read
    cdef readonly int version
    cdef public str topic
    cdef public object seq
    cdef object _source               # or, if _undecoded is set, the function that decodes it
    cdef const uint8_t *_undecoded    # in the memory of the buffer's owner
    cdef Py_ssize_t _undecoded_size


cdef class RecordMaker:
    cdef object _type
    cdef tuple _arguments
    cdef RecordLayout _layout
    cdef int _version
    cdef int _version_read
    cdef readonly Py_ssize_t size_min

    cdef Record make(self, bytes owner, Py_ssize_t at)
    cdef void set_source(self, Record record, const uint8_t *encoded, Py_ssize_t size, decode)
