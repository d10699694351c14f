from libc.stdint cimport uint8_t, uint64_t

from penstock.wire._codec cimport MessageView, PacketView
from penstock.wire._datagrams cimport DatagramBatch
from penstock.wire._packet cimport PacketMessage


cdef class MessageBatch:
    cdef DatagramBatch _datagrams
    cdef uint64_t _generation
    cdef object _packet_rows
    cdef object _message_rows
    cdef const PacketView *packet
    cdef const MessageView *message
    cdef Py_ssize_t _packet_start, packet_count_
    cdef Py_ssize_t _message_start, message_count_

    cdef int check_current(self) except -1
    cdef PacketMessage read_message(self, Py_ssize_t index)

    # Return the marked messages from `first` to before `end`; `count` is their number.
    cdef MessageBatch choose(self, const uint8_t *is_chosen, Py_ssize_t first, Py_ssize_t end, Py_ssize_t count)


# Return the messages of some packets of a batch; both kinds of rows are numpy arrays, `packet` and `message` their
# data.
cdef MessageBatch message_batch(
    DatagramBatch datagrams,
    object packet_rows,
    object message_rows,
    const PacketView *packets,
    const MessageView *messages,
    Py_ssize_t packet_start,
    Py_ssize_t packet_count,
    Py_ssize_t message_start,
    Py_ssize_t message_count,
)
