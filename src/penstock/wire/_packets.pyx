"""The newest packets of a stream in one piece of memory, where they are encoded, sent and retransmitted."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport UINT16_MAX, UINT64_MAX, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import numpy

from penstock.wire._authentication cimport parse_key, write_trailer, write_two_trailers
from penstock.wire._batch cimport check_messages, measure_packet, write_packet
from penstock.wire._codec cimport (
    ALIGNMENT,
    KIND_DATA,
    MessageView,
    PACKET_HEADER_SIZE,
    PACKET_KEEP_ALIVE,
    PacketView,
    TRAILER_SIZE,
)
from penstock.wire._packer cimport set_stream, unsigned

from penstock.base.errors import LimitError, LocalProtocolError
from penstock.base.limits import PACKET_SIZE_DEFAULT, PACKET_SIZE_MAX
from penstock.wire._packer import PACKET_SIZE_MIN


cdef class PacketStore:
    """Packets with consecutive sequence numbers, bounded in number and bytes: new packets replace the oldest.

    With `has_trailers`, every packet is followed by an authentication trailer, which is sent with the packet but is not
    part of it. Until authenticate() is called, the trailers have no tag.
    """

    def __cinit__(self, packets_max, bytes_max, *, first_sequence = 1, bint has_trailers = False):
        self.trailer_size = TRAILER_SIZE if has_trailers else 0
        self.bytes_max = unsigned(bytes_max, UINT64_MAX >> 1, "bytes_max")
        # a packet has at least a header, so more slots would never be used
        self.packets_max = min(
            unsigned(packets_max, UINT64_MAX, "packets_max"), self.bytes_max // <uint64_t>PACKET_HEADER_SIZE + 1
        )
        if self.packets_max == 0:
            raise LocalProtocolError("a store keeps at least one packet")
        self.next_sequence = unsigned(first_sequence, UINT64_MAX, "first sequence")
        # room for the packet being written, and for an unused end when a packet does not fit there; the operating
        # system provides the memory only as it is used
        self.data_size = self.bytes_max + 2 * (<uint64_t>PACKET_SIZE_MAX + TRAILER_SIZE)
        self._data = numpy.empty(self.data_size, numpy.uint8)
        self._places = numpy.empty(self.packets_max * sizeof(Place), numpy.uint8)
        cdef uint8_t[::1] memory = self._data
        self.data = &memory[0]
        memory = self._places
        self.places = <Place *>&memory[0]

    def __len__(self) -> int:
        return self.count

    @property
    def oldest(self) -> int:
        """Number of the oldest stored packet, or of the next one if none is stored."""
        return self.next_sequence - self.count

    def authenticate(self, key) -> None:
        """Authenticate further packets with this key; None: trailers without a tag."""
        if not self.trailer_size:
            raise LocalProtocolError("the store has no room for trailers", hint="create it with has_trailers=True")
        memset(&self.key, 0, sizeof(self.key))
        if key is not None:
            parse_key(&self.key, key)

    def keep(self, bytes packet not None) -> None:
        """Store the stream's next packet."""
        if not PACKET_HEADER_SIZE <= len(packet) <= PACKET_SIZE_MAX:
            raise LocalProtocolError(f"a packet cannot have {len(packet)} bytes")
        memcpy(self.reserve(<uint32_t>len(packet)), <const uint8_t *>packet, len(packet))
        self.commit(<uint32_t>len(packet))

    def keep_at(self, uint64_t sequence, bytes packet not None) -> None:
        """Store a packet with this number, leaving a gap after the newest one if necessary. An older packet is
        ignored.
        """
        if not PACKET_HEADER_SIZE <= len(packet) <= PACKET_SIZE_MAX:
            raise LocalProtocolError(f"a packet cannot have {len(packet)} bytes")
        self.keep_packet(sequence, <const uint8_t *>packet, <uint32_t>len(packet))

    def get(self, uint64_t sequence) -> bytes:
        """Return a stored packet; empty for a number in a gap."""
        cdef const Place *place
        if not self.next_sequence - self.count <= sequence < self.next_sequence:
            raise LocalProtocolError(f"packet {sequence} is not kept", hint="split() returns the stored ones")
        place = self.place(sequence)
        return PyBytes_FromStringAndSize(<const char *>self.data + place.offset, place.size)

    def trailer(self, uint64_t sequence) -> bytes:
        """Return the trailer of a stored packet; empty in a store without trailers."""
        cdef const Place *place
        if not self.next_sequence - self.count <= sequence < self.next_sequence:
            raise LocalProtocolError(f"packet {sequence} is not kept", hint="split() returns the stored ones")
        place = self.place(sequence)
        return PyBytes_FromStringAndSize(<const char *>self.data + place.offset + place.size, self.trailer_size)

    def split(self, first, last) -> tuple:
        """Split the packets `first` to `last` into the range no longer stored and the range still stored.

        Packets that have not been sent yet are in neither.
        """
        first, last = max(first, 1), min(last, self.next_sequence - 1)
        gone_last = min(last, self.oldest - 1)
        gone = (first, gone_last) if first <= gone_last else None
        return gone, range(max(first, self.oldest), last + 1)

    def pack(
        self,
        const uint8_t[::1] topics not None,
        const uint8_t[::1] payloads not None,
        const MessageView[::1] messages not None,
        *,
        publisher_id,
        group,
        epoch,
        packet_size_max = PACKET_SIZE_DEFAULT,
        keep_alive_packets = UINT64_MAX,
        flags = 0,
    ) -> int:
        """Pack the messages like encode_batch(), store the packets and return their number.

        All packets must fit into the store at the same time; otherwise nothing is packed (LimitError).
        """
        cdef PacketView packet
        cdef uint32_t size_max
        cdef uint64_t keep_alive_every = max(1, unsigned(keep_alive_packets, UINT64_MAX, "keep_alive_packets"))
        cdef Py_ssize_t packed = 0
        cdef uint64_t packet_count = 0
        cdef uint64_t byte_count = 0
        if not PACKET_SIZE_MIN <= packet_size_max <= PACKET_SIZE_MAX:
            raise LocalProtocolError(
                f"packet_size_max {packet_size_max} is outside {PACKET_SIZE_MIN} to {PACKET_SIZE_MAX}"
            )
        set_stream(&packet, publisher_id, group, epoch)
        packet.kind = KIND_DATA
        packet.flags = <uint16_t>unsigned(flags, UINT16_MAX, "packet flags")
        size_max = packet_size_max // ALIGNMENT * ALIGNMENT
        with nogil:
            check_messages(topics, payloads, messages, size_max - PACKET_HEADER_SIZE)
            while packed < messages.shape[0]:
                measure_packet(&messages[packed], messages.shape[0] - packed, size_max, UINT16_MAX, &packet)
                packed += packet.count
                packet_count += 1
                byte_count += packet.size + self.trailer_size
        if packet_count > self.packets_max or byte_count > self.bytes_max:
            raise LimitError(
                f"{messages.shape[0]} messages need {packet_count} packets of {byte_count} bytes and exceed "
                f"the retransmission buffer ({self.packets_max} packets of {self.bytes_max} bytes)",
                hint="publish them in smaller batches",
            )
        if messages.shape[0]:
            with nogil:
                self.pack_rows(
                    &topics[0], &payloads[0] if payloads.shape[0] else NULL, &messages[0], messages.shape[0], &packet,
                    size_max, keep_alive_every,
                )
        return packet_count

    cdef uint64_t pack_rows(
        self, const uint8_t *topics, const uint8_t *payloads, const MessageView *rows, Py_ssize_t count,
        PacketView *packet, uint32_t size_max, uint64_t keep_alive_every,
    ) noexcept nogil:
        cdef Py_ssize_t packed = 0
        cdef uint64_t packet_count = 0
        cdef uint16_t flags = packet.flags
        cdef uint8_t *out
        cdef uint8_t *waiting = NULL # a packet whose trailer is written with the next packet's, which is faster
        cdef uint32_t waiting_size = 0
        while packed < count:
            packet.sequence = self.next_sequence
            packet.flags = flags | PACKET_KEEP_ALIVE if packet.sequence % keep_alive_every == 0 else flags
            measure_packet(&rows[packed], count - packed, size_max, UINT16_MAX, packet)
            out = self.reserve(packet.size)
            write_packet(out, packet, &rows[packed], topics, payloads)
            if self.trailer_size == 0 or self.space(packet.size) > self.bytes_max: # too large: the next one overwrites it
                self.commit(packet.size)
            else:
                if waiting is NULL:
                    waiting, waiting_size = out, packet.size
                else:
                    write_two_trailers(waiting, waiting_size, out, packet.size, &self.key)
                    waiting = NULL
                self.place_next(packet.size)
            packed += packet.count
            packet_count += 1
        if waiting is not NULL:
            write_trailer(waiting, waiting_size, &self.key)
        return packet_count

    cdef void keep_packet(self, uint64_t sequence, const uint8_t *packet, uint32_t size) noexcept nogil:
        """keep_at() for a packet of valid size."""
        if sequence < self.next_sequence:
            return
        if sequence - self.next_sequence >= self.packets_max: # no stored packet would remain
            self.count = 0
            self.bytes_kept = 0
            self.next_sequence = sequence
        while self.next_sequence < sequence:
            self.commit(0)
        memcpy(self.reserve(size), packet, size)
        self.commit(size)

    cdef const Place *place(self, uint64_t sequence) noexcept nogil:
        return &self.places[sequence % self.packets_max]

    cdef uint64_t space(self, uint32_t size) noexcept nogil:
        """Return the size of a packet with its trailer; 0 for a number in a gap."""
        return size + self.trailer_size if size else 0

    cdef uint8_t *reserve(self, uint32_t size) noexcept nogil:
        """Return contiguous memory for the next packet.

        No stored packet overlaps it: stored packets take at most bytes_max, and an unused end is smaller than one
        packet.
        """
        if self.data_size - self.write_at < size + self.trailer_size:
            self.write_at = 0
        return self.data + self.write_at

    cdef void commit(self, uint32_t size) noexcept nogil:
        """Write the trailer of the packet in the reserved memory, and store both."""
        if self.trailer_size and size:
            write_trailer(self.data + self.write_at, size, &self.key)
        self.place_next(size)

    cdef void place_next(self, uint32_t size) noexcept nogil:
        """Store the packet in the reserved memory, removing the oldest packets if necessary."""
        cdef Place *place
        cdef uint64_t space = self.space(size)
        while self.count and (self.count == self.packets_max or self.bytes_kept + space > self.bytes_max):
            self.bytes_kept -= self.space(self.place(self.next_sequence - self.count).size)
            self.count -= 1
        if space <= self.bytes_max:
            place = &self.places[self.next_sequence % self.packets_max]
            place.offset = self.write_at
            place.size = size
            self.bytes_kept += space
            self.count += 1
            self.write_at += space
        self.next_sequence += 1
