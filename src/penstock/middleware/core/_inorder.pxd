from libc.stdint cimport int64_t, uint32_t, uint64_t

from penstock.middleware.core._streams cimport StreamEntry, StreamIndex
from penstock.wire._authentication cimport Authenticator
from penstock.wire._codec cimport MessageView, PacketView
from penstock.wire._datagrams cimport DatagramBatch
from penstock.wire._messages cimport MessageBatch


cdef class StreamCursor(StreamEntry):
    cdef public uint64_t source_key  # of a DatagramBatch; 0: unknown
    cdef public uint64_t next_sequence
    cdef public uint64_t newest_sequence
    cdef public uint64_t known_from  # no packet is missing from here up to the next packet
    cdef public int64_t heard_ns
    cdef public uint32_t epoch
    cdef public bint is_smooth
    cdef public bint is_replay


cdef class InOrder(StreamIndex):
    cdef readonly Authenticator authenticator
    cdef bint _is_authenticating
    cdef bint _takes_fragments
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
    cdef int admit(self, DatagramBatch batch) except -1
    cdef void admit_rows(self, DatagramBatch batch) noexcept nogil
    cdef void clear(self) noexcept nogil
    cdef Py_ssize_t take_rows(self, DatagramBatch batch, Py_ssize_t start, int64_t now_ns) noexcept nogil
    cdef Py_ssize_t count_known(self, DatagramBatch batch, Py_ssize_t start) noexcept nogil
    cdef bint take_one(
        self, DatagramBatch batch, Py_ssize_t index, int64_t now_ns, Py_ssize_t message_start
    ) noexcept nogil
    cdef int make_room(self, Py_ssize_t room) except -1
    cdef int make_rows(self, Py_ssize_t room) except -1
