"""The receiver's fast path: packets in order are checked, accounted for and delivered without Python.

Any other packet than the next one of a stream without gaps is left to the receiver, one datagram at a time.
"""

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

import numpy

from penstock.middleware.core._streams cimport StreamEntry, StreamIndex
from penstock.wire._authentication cimport Authenticator, strip_trailers
from penstock.wire._codec cimport (
    ERROR_NONE,
    KIND_DATA,
    MESSAGE_CONTINUATION,
    MESSAGE_MORE,
    MessageView,
    PACKET_GOODBYE,
    PACKET_REPAIR,
    PACKET_REPLAY,
    PacketView,
    parse_contents,
    parse_header,
)
from penstock.wire._datagrams cimport DatagramBatch
from penstock.wire._messages cimport MessageBatch, message_batch

from penstock.wire import MESSAGE_DTYPE, MESSAGES_MAX, PACKET_DTYPE

cdef uint64_t SEQUENCE_LAST = <uint64_t>1 << 63

SEQUENCE_MAX = SEQUENCE_LAST
"""The maximum sequence number; results of arithmetic on it fit into 64 bits."""


cdef class StreamCursor(StreamEntry):
    """The position of a stream. While `is_smooth`, nothing is missing or partly reassembled, and the next packet can
    be delivered unchanged."""


cdef class InOrder(StreamIndex):
    """The cursors of all streams, by publisher and group, and the rows that take() fills.

    Packets with fragments are left to the receiver, which reassembles them, unless `takes_fragments` is set. With an
    `authenticator`, only authentic datagrams are examined.
    """

    def __cinit__(self, uint64_t seed, *, bint takes_fragments = False, Authenticator authenticator = None):
        self._takes_fragments = takes_fragments
        self.authenticator = authenticator
        self._is_authenticating = authenticator is not None

    def add(self, StreamCursor cursor not None) -> None:
        StreamIndex.add(self, cursor)

    cpdef MessageBatch begin(self, DatagramBatch batch, int64_t now_ns):
        """Call take() from the batch's beginning; the rows of earlier batches are reused."""
        self.admit(batch)
        batch.generation += 1  # rows of earlier batches become invalid
        self.make_room(batch.capacity)
        self.clear()
        return self.take(batch, 0, now_ns)

    cpdef MessageBatch take(self, DatagramBatch batch, Py_ssize_t start, int64_t now_ns):
        """Deliver datagrams from `start` on, while each is the next packet of a smooth stream.

        Return None if the first one is not.
        """
        cdef Py_ssize_t packet_start = self._packet_count
        cdef Py_ssize_t message_start = self._message_count
        if batch.count - start == 1:  # faster than releasing and acquiring the GIL
            self.take_rows(batch, start, now_ns)
        else:
            with nogil:
                self.take_rows(batch, start, now_ns)
        if self._packet_count == packet_start:
            return None
        return message_batch(
            batch, self._packet_rows, self._message_rows, self._packets, self._messages,
            packet_start, self._packet_count - packet_start, message_start, self._message_count - message_start,
        )

    def pass_over(self, DatagramBatch batch not None, Py_ssize_t start, bint is_replay) -> int:
        """Return the number of consecutive datagrams from `start` on that are replays, or live packets if not
        `is_replay`."""
        cdef Py_ssize_t index = start
        cdef PacketView packet
        with nogil:
            while index < batch.count:
                if parse_header(batch.data, <uint32_t>(index * batch.stride), batch.sizes[index], &packet) != ERROR_NONE:
                    break
                if packet.kind != KIND_DATA or (packet.flags & PACKET_REPLAY != 0) != is_replay:
                    break
                index += 1
        return index - start

    def pass_known(self, DatagramBatch batch not None, Py_ssize_t start) -> int:
        """Return the number of consecutive datagrams from `start` on that are duplicates: a publisher on this host
        may send packets through a ring and the network. With an authenticator, duplicates may come from any address.
        Duplicates do not show that the publisher is alive, because anybody can record a packet and send it again."""
        cdef Py_ssize_t count
        self.make_room(batch.capacity)
        with nogil:
            count = self.count_known(batch, start)
        return count

    cdef Py_ssize_t count_known(self, DatagramBatch batch, Py_ssize_t start) noexcept nogil:
        cdef Py_ssize_t index = start
        cdef PacketView packet
        cdef PyObject *slot
        while index < batch.count:
            if parse_header(batch.data, <uint32_t>(index * batch.stride), batch.sizes[index], &packet) != ERROR_NONE:
                break
            if packet.kind != KIND_DATA or packet.flags & (PACKET_REPAIR | PACKET_GOODBYE):
                break
            slot = self.find(packet.publisher_id, packet.group)
            if slot is NULL or not is_known(<StreamCursor>slot, &packet):
                break
            if (<StreamCursor>slot).source_key != batch.sources[index] and not self._is_authenticating:
                break
            if parse_contents(batch.data, &packet, &self._messages[self._message_count]) != ERROR_NONE:
                break
            index += 1
        return index - start

    cdef int admit(self, DatagramBatch batch) except -1:
        """Remove datagrams that are not authentic from the batch, and trailers from the others."""
        if self._is_authenticating:
            self.authenticator.admit(batch)
        else:
            strip_trailers(batch)
        return 0

    cdef void admit_rows(self, DatagramBatch batch) noexcept nogil:
        """Remove datagrams that are not authentic, under the condition that no other thread changes the keys."""
        if self._is_authenticating:
            self.authenticator.admit_rows(batch)
        else:
            strip_trailers(batch)

    cdef void clear(self) noexcept nogil:
        """Reuse the rows."""
        self._packet_count = 0
        self._message_count = 0

    cdef Py_ssize_t take_rows(self, DatagramBatch batch, Py_ssize_t start, int64_t now_ns) noexcept nogil:
        """Implementation of take(): append rows and return the number of packets. There must be room."""
        cdef Py_ssize_t message_start = self._message_count
        cdef Py_ssize_t index = start
        while index < batch.count and self.take_one(batch, index, now_ns, message_start):
            index += 1
        self.packets_taken += index - start
        self.messages_taken += self._message_count - message_start
        return index - start

    cdef bint take_one(
        self, DatagramBatch batch, Py_ssize_t index, int64_t now_ns, Py_ssize_t message_start
    ) noexcept nogil:
        cdef PacketView *packet = &self._packets[self._packet_count]
        cdef MessageView *messages = &self._messages[self._message_count]
        cdef uint32_t offset = <uint32_t>(index * batch.stride)
        cdef uint32_t each
        cdef PyObject *slot
        if parse_header(batch.data, offset, batch.sizes[index], packet) != ERROR_NONE or packet.kind != KIND_DATA:
            return False
        if packet.flags & (PACKET_REPAIR | PACKET_GOODBYE) or packet.gap >= packet.sequence:
            return False
        if packet.sequence > SEQUENCE_LAST:
            return False
        slot = self.find(packet.publisher_id, packet.group)
        if slot is NULL or not is_next(<StreamCursor>slot, packet, batch.sources[index]):
            return False
        if parse_contents(batch.data, packet, messages) != ERROR_NONE:
            return False
        if not self._takes_fragments and packet.count and (messages[0].flags | messages[packet.count - 1].flags) & (
            MESSAGE_CONTINUATION | MESSAGE_MORE
        ):
            return False
        for each in range(packet.count):
            messages[each].packet_index = <uint32_t>index
        packet.message_start = <uint32_t>(self._message_count - message_start)
        packet.gap = <uint32_t>(packet.sequence - (<StreamCursor>slot).next_sequence)
        (<StreamCursor>slot).next_sequence = packet.sequence + 1
        (<StreamCursor>slot).newest_sequence = packet.sequence
        (<StreamCursor>slot).heard_ns = now_ns
        self._packet_count += 1
        self._message_count += packet.count
        return True

    cdef int make_room(self, Py_ssize_t room) except -1:
        """Make room for batches of this number of datagrams."""
        return self.make_rows(room) if self._room < room else 0

    cdef int make_rows(self, Py_ssize_t room) except -1:
        """Make room for a batch of full packets; the memory is allocated only as it is used."""
        self._packet_rows = numpy.empty(room, PACKET_DTYPE)
        self._message_rows = numpy.empty(room * MESSAGES_MAX, MESSAGE_DTYPE)
        cdef PacketView[::1] packets = self._packet_rows
        cdef MessageView[::1] messages = self._message_rows
        self._packets = &packets[0]
        self._messages = &messages[0]
        self._room = room
        return 0


cdef inline bint is_next(StreamCursor cursor, const PacketView *packet, uint64_t source_key) noexcept nogil:
    return (
        cursor.is_smooth
        and cursor.epoch == packet.epoch
        and cursor.is_replay == (packet.flags & PACKET_REPLAY != 0)
        and cursor.source_key == source_key
        and packet.sequence >= cursor.next_sequence
        and packet.sequence - packet.gap <= cursor.next_sequence
    )


cdef inline bint is_known(StreamCursor cursor, const PacketView *packet) noexcept nogil:
    return (
        cursor.is_smooth
        and cursor.epoch == packet.epoch
        and cursor.is_replay == (packet.flags & PACKET_REPLAY != 0)
        and packet.gap < packet.sequence
        and cursor.known_from <= packet.sequence < cursor.next_sequence
    )
