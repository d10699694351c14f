"""The newest packets of a stream in one piece of memory: made there, sent from there, sent again from there."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport UINT16_MAX, UINT64_MAX, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import numpy

from penstock.wire._authentication cimport parse_key, write_trailer
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
    """Packets with consecutive sequence numbers, bounded in number and bytes: the oldest make room for new ones.

    With `has_trailers` every packet has an authentication trailer behind it, which is sent with it and is no part of
    it. Until authenticate() was called, the trailers have no tag.
    """

    def __cinit__(self, packets_max, bytes_max, *, first_sequence = 1, bint has_trailers = False):
        self.trailer_size = TRAILER_SIZE if has_trailers else 0
        self.bytes_max = unsigned(bytes_max, UINT64_MAX >> 1, "bytes_max")
        # a packet has at least its header, so more places than that are never used
        self.packets_max = min(
            unsigned(packets_max, UINT64_MAX, "packets_max"), self.bytes_max // <uint64_t>PACKET_HEADER_SIZE + 1
        )
        if self.packets_max == 0:
            raise LocalProtocolError("a store keeps at least one packet")
        self.next_sequence = unsigned(first_sequence, UINT64_MAX, "first sequence")
        # room for the packet being made, and for the end that is left over when a packet does not fit there; the
        # operating system gives the memory only as it is used
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
        """The number of the oldest packet kept, or of the next one if none is."""
        return self.next_sequence - self.count

    def authenticate(self, key) -> None:
        """Make the trailers of packets from now on with this key; None: without a tag."""
        if not self.trailer_size:
            raise LocalProtocolError("the store has no room for trailers", hint="make it with has_trailers=True")
        memset(&self.key, 0, sizeof(self.key))
        if key is not None:
            parse_key(&self.key, key)

    def keep(self, bytes packet not None) -> None:
        """Keep the stream's next packet."""
        if not PACKET_HEADER_SIZE <= len(packet) <= PACKET_SIZE_MAX:
            raise LocalProtocolError(f"{len(packet)} bytes are no packet")
        memcpy(self.reserve(<uint32_t>len(packet)), <const uint8_t *>packet, len(packet))
        self.commit(<uint32_t>len(packet))

    def keep_at(self, uint64_t sequence, bytes packet not None) -> None:
        """Keep a packet with this number; those between the newest one and it are not there. An older one is not kept."""
        if not PACKET_HEADER_SIZE <= len(packet) <= PACKET_SIZE_MAX:
            raise LocalProtocolError(f"{len(packet)} bytes are no packet")
        self.keep_packet(sequence, <const uint8_t *>packet, <uint32_t>len(packet))

    def get(self, uint64_t sequence) -> bytes:
        """A packet that is still here; of one that was passed over, nothing."""
        cdef const Place *place
        if not self.next_sequence - self.count <= sequence < self.next_sequence:
            raise LocalProtocolError(f"packet {sequence} is not kept", hint="split() says which are")
        place = self.place(sequence)
        return PyBytes_FromStringAndSize(<const char *>self.data + place.offset, place.size)

    def trailer(self, uint64_t sequence) -> bytes:
        """The trailer of a packet that is still here; empty in a store without trailers."""
        cdef const Place *place
        if not self.next_sequence - self.count <= sequence < self.next_sequence:
            raise LocalProtocolError(f"packet {sequence} is not kept", hint="split() says which are")
        place = self.place(sequence)
        return PyBytes_FromStringAndSize(<const char *>self.data + place.offset + place.size, self.trailer_size)

    def split(self, first, last) -> tuple:
        """Which of the packets `first` to `last` are gone (first and last), and which are still here.

        Those that have not been sent yet are neither.
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
        """Make packets of the messages, as encode_batch() does, and keep them; returns how many.

        All of them must fit the store at the same time, or nothing is packed (LimitError).
        """
        cdef PacketView packet
        cdef uint32_t size_max
        cdef uint64_t keep_alive_every = max(1, unsigned(keep_alive_packets, UINT64_MAX, "keep_alive_packets"))
        cdef Py_ssize_t packed = 0
        cdef uint64_t packet_count = 0
        cdef uint64_t byte_count = 0
        if not PACKET_SIZE_MIN <= packet_size_max <= PACKET_SIZE_MAX:
            raise LocalProtocolError(
                f"packet_size_max {packet_size_max} is not within {PACKET_SIZE_MIN} to {PACKET_SIZE_MAX}"
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
                f"{messages.shape[0]} messages in one go are {packet_count} packets of {byte_count} bytes, which do not "
                f"fit what is kept for repairs ({self.packets_max} packets of {self.bytes_max} bytes)",
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
        while packed < count:
            packet.sequence = self.next_sequence
            packet.flags = flags | PACKET_KEEP_ALIVE if packet.sequence % keep_alive_every == 0 else flags
            measure_packet(&rows[packed], count - packed, size_max, UINT16_MAX, packet)
            out = self.reserve(packet.size)
            write_packet(out, packet, &rows[packed], topics, payloads)
            self.commit(packet.size)
            packed += packet.count
            packet_count += 1
        return packet_count

    cdef void keep_packet(self, uint64_t sequence, const uint8_t *packet, uint32_t size) noexcept nogil:
        """What keep_at() does, with a packet of allowed size."""
        if sequence < self.next_sequence:
            return
        if sequence - self.next_sequence >= self.packets_max: # nothing that is here would stay
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
        """The bytes that a packet takes with its trailer; a number that was passed over takes none."""
        return size + self.trailer_size if size else 0

    cdef uint8_t *reserve(self, uint32_t size) noexcept nogil:
        """Memory for the next packet, in one piece.

        No kept packet lies there: they take at most bytes_max, an end that is left over less than one packet.
        """
        if self.data_size - self.write_at < size + self.trailer_size:
            self.write_at = 0
        return self.data + self.write_at

    cdef void commit(self, uint32_t size) noexcept nogil:
        """The packet in the reserved memory is complete; the oldest make room for it."""
        cdef Place *place
        cdef uint64_t space = self.space(size)
        if self.trailer_size and size:
            write_trailer(self.data + self.write_at, size, &self.key)
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
