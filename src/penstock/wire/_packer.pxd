from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from penstock.wire._codec cimport MessageView, PacketView

# Return the value, or raise LocalProtocolError when it does not fit.
cdef uint64_t unsigned(value, uint64_t value_max, str name) except? 0

# Clear the packet and set its stream.
cdef int set_stream(PacketView *packet, publisher_id, group, epoch) except -1


cdef class Packer:
    cdef PacketView _packet # of the open packet; size is the size written so far
    cdef uint32_t _size_max
    cdef uint64_t _keep_alive_packets
    cdef uint16_t _flags    # flags of every packet
    cdef uint8_t *_out

    cdef int check(self, MessageView *message, bytes topic, bytes extensions) except -1
    cdef list pack(self, MessageView *message, bytes topic, bytes extensions, const uint8_t *payload)
    cdef void put(self, const MessageView *message, const uint8_t *topic, const uint8_t *extensions,
                  const uint8_t *payload) noexcept
    cdef bytes close(self, uint16_t flags)
