from libc.stdint cimport int64_t, uint8_t, uint64_t

from penstock.wire._codec cimport MessageView, PacketView
from penstock.wire._packer cimport Packer
from penstock.wire._packets cimport PacketStore


cdef class OutgoingCursor:
    cdef public Packer packer
    cdef public PacketStore kept
    cdef public dict topics # those that were found well formed lately, and their bytes
    cdef public uint64_t packets_sent
    cdef public uint64_t messages_published
    cdef public int64_t silence_first_ns
    cdef public int64_t keep_alive_deadline_ns
    cdef public int64_t silence_ns # from the last packet to the next keep-alive
    cdef public bint is_prompt

    cpdef uint64_t publish_one(self, str topic, payload, model_id, model_version, int64_t now_ns) except? 0

    # Its two halves: the packet can be on its way before the clock is looked at.
    cdef uint64_t pack_one(self, str topic, payload, model_id, model_version) except? 0
    cdef void break_silence(self, int64_t now_ns) noexcept nogil
    cdef void write(self, const PacketView *packet, const MessageView *message, const uint8_t *topic,
                    const uint8_t *payload) noexcept

    # Pack messages that are known to be packable into packets of their own and keep them. Returns the first packet's
    # number (the last one's is kept.next_sequence - 1), or 0 when that cannot be done here and nothing was done.
    cdef uint64_t publish_rows(
        self, const uint8_t *topics, const uint8_t *payloads, const MessageView *rows, Py_ssize_t count, int64_t now_ns
    ) noexcept nogil
