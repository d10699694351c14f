"""The receiver's fast path: packets that come in order are checked, accounted for and delivered without Python.

Whatever is not the next packet of a stream that lacks nothing is left to the receiver, one datagram at a time.
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
"""The highest number a packet may have; whatever is computed from it fits 64 bits."""


cdef class StreamCursor(StreamEntry):
    """How far a stream has come. While `is_smooth`, nothing is missing or half assembled, and its next packet may be
    delivered as it is."""


cdef class InOrder(StreamIndex):
    """The cursors of all streams, found by publisher and group, and the rows that take() fills.

    Packets with fragments are left to the receiver, which puts them together, unless it `takes_fragments`. With an
    `authenticator`, only authentic datagrams are looked at.
    """

    def __cinit__(self, uint64_t seed, *, bint takes_fragments = False, Authenticator authenticator = None):
        self._takes_fragments = takes_fragments
        self.authenticator = authenticator
        self._is_authenticating = authenticator is not None

    def add(self, StreamCursor cursor not None) -> None:
        StreamIndex.add(self, cursor)

    cpdef MessageBatch begin(self, DatagramBatch batch, int64_t now_ns):
        """take() from the batch's beginning; the rows of earlier batches are used again."""
        self.admit(batch)
        batch.generation += 1 # what was made of these rows before is no longer good
        self.make_room(batch.capacity)
        self.clear()
        return self.take(batch, 0, now_ns)

    cpdef MessageBatch take(self, DatagramBatch batch, Py_ssize_t start, int64_t now_ns):
        """Deliver datagrams from `start` on, for as long as each is the next packet of a smooth stream.

        None when already the first is not.
        """
        cdef Py_ssize_t packet_start = self._packet_count
        cdef Py_ssize_t message_start = self._message_count
        if batch.count - start == 1: # sooner done than the interpreter's lock is given away and had again
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
        """How many datagrams from `start` on are packets from the past, or else live ones, before another comes."""
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
        """How many datagrams from `start` on are copies of packets that have come, before another comes: a publisher on
        this host may send them by a ring and by the network. With an authenticator, copies may come from any address.
        Copies do not show that the publisher is alive: anybody can record a packet and send it again."""
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
        """Remove from the batch what is not authentic, and from the rest the trailers."""
        if self._is_authenticating:
            self.authenticator.admit(batch)
        else:
            strip_trailers(batch)
        return 0

    cdef void admit_rows(self, DatagramBatch batch) noexcept nogil:
        """The same where no other thread changes what is authentic."""
        if self._is_authenticating:
            self.authenticator.admit_rows(batch)
        else:
            strip_trailers(batch)

    cdef void clear(self) noexcept nogil:
        """Use the rows again."""
        self._packet_count = 0
        self._message_count = 0

    cdef Py_ssize_t take_rows(self, DatagramBatch batch, Py_ssize_t start, int64_t now_ns) noexcept nogil:
        """What take() does, as rows behind those that are there already: how many packets. There must be room."""
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
        """For batches of so many datagrams."""
        return self.make_rows(room) if self._room < room else 0

    cdef int make_rows(self, Py_ssize_t room) except -1:
        """Enough for a batch full of packets full of messages; memory is taken only as it is used."""
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
