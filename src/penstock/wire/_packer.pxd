from libc.stdint cimport uint64_t

from penstock.wire._codec cimport PacketView

# The value, or LocalProtocolError when it does not fit.
cdef uint64_t unsigned(value, uint64_t value_max, str name) except? 0

# Clear the packet and fill in whose it is.
cdef int set_stream(PacketView *packet, publisher_id, group, epoch) except -1
