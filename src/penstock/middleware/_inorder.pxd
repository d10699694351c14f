from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from penstock.wire._codec cimport MessageView, PacketView
from penstock.wire._datagrams cimport DatagramBatch
from penstock.wire._messages cimport MessageBatch


cdef class StreamCursor:
    cdef public uint64_t publisher_id
    cdef public uint64_t source_key # of a DatagramBatch; 0 while it is not known
    cdef public uint64_t next_sequence
    cdef public uint64_t newest_sequence
    cdef public int64_t heard_ns
    cdef public uint32_t group
    cdef public uint32_t epoch
    cdef public bint is_smooth
    cdef public bint is_replay


cdef class InOrder:
    cdef PyObject **_slots # open addressing; NULL is free
    cdef uint64_t _mask
    cdef uint64_t _seed    # unknown to others, so that nobody can choose publisher ids that fall into one place
    cdef set _cursors      # owns what the slots point to
    cdef object _packet_rows
    cdef object _message_rows
    cdef PacketView *_packets
    cdef MessageView *_messages
    cdef Py_ssize_t _room
    cdef Py_ssize_t _packet_count
    cdef Py_ssize_t _message_count
    cdef readonly uint64_t packets_taken
    cdef readonly uint64_t messages_taken

    cpdef MessageBatch begin(self, DatagramBatch batch, int64_t now_ns)
    cpdef MessageBatch take(self, DatagramBatch batch, Py_ssize_t start, int64_t now_ns)
    cdef bint take_one(
        self, DatagramBatch batch, Py_ssize_t index, int64_t now_ns, Py_ssize_t message_start
    ) noexcept nogil
    cdef PyObject *find(self, uint64_t publisher_id, uint32_t group) noexcept nogil
    cdef uint64_t slot_of(self, uint64_t publisher_id, uint32_t group) noexcept nogil
    cdef int allot(self, uint64_t slots) except -1
    cdef void insert(self, StreamCursor cursor) noexcept
    cdef int make_rows(self, Py_ssize_t room) except -1
