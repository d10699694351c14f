from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t

from penstock.wire._codec cimport MessageView, PacketView
from penstock.wire._packer cimport Packer
from penstock.wire._packets cimport PacketStore


cdef class OutgoingCursor:
    cdef public Packer packer
    cdef public PacketStore kept
    cdef public dict topics  # recently checked topics and their bytes
    cdef public uint64_t packets_sent
    cdef public uint64_t messages_published
    cdef public int64_t silence_first_ns
    cdef public int64_t keep_alive_deadline_ns
    cdef public int64_t silence_ns  # time from the last packet to the next keep-alive
    cdef public bint is_prompt
    cdef readonly uint64_t unsent  # newest packets of the store that wait to be sent

    cpdef uint64_t publish_one(self, str topic, payload, model_id, model_version, int64_t now_ns) except? 0

    # Add the message to the open packet. A packet that is complete is stored, and counts as unsent. False if the fast
    # path cannot do this and has done nothing.
    cdef bint append_one(self, str topic, payload, model_id, model_version) except -1

    # Store the open packet, if it has messages, as unsent.
    cdef void close_packet(self) noexcept nogil

    # True if the unsent packets must be sent before the next append_one(): a further packet might replace them.
    cdef bint has_no_room(self) noexcept nogil

    cdef bytes describe(
        self, str topic, payload, model_id, model_version, MessageView *message, Py_buffer *content
    )
    cdef uint16_t next_flags(self) noexcept nogil

    # The two halves of publish_one(): the packet can be sent before the clock is read.
    cdef uint64_t pack_one(self, str topic, payload, model_id, model_version) except? 0
    cdef void break_silence(self, int64_t now_ns) noexcept nogil
    cdef void write(self, const PacketView *packet, const MessageView *message, const uint8_t *topic,
                    const uint8_t *payload) noexcept

    # Pack messages that need no checks into packets, and store them. Return the first packet's number (the last one is
    # kept.next_sequence - 1), or 0 if the fast path cannot do this and has done nothing.
    cdef uint64_t publish_rows(
        self, const uint8_t *topics, const uint8_t *payloads, const MessageView *rows, Py_ssize_t count, int64_t now_ns
    ) noexcept nogil
