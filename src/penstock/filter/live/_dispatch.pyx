"""Sends a filter's packets to its consumers: datagrams in batches, and events into rings of shared memory."""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from penstock.base._crc32c cimport crc32c_initialise
from penstock.net._udp cimport UDP_BATCH, Outlet, udp_send_each
from penstock.shm._memory cimport doorbell_ring
from penstock.shm._ring cimport Cursor, RingWriter, push
from penstock.wire._authentication cimport parse_key, write_trailer
from penstock.wire._codec cimport TRAILER_SIZE
from penstock.wire._outbox cimport Outbox, OutboxRow

from penstock.base.errors import LocalProtocolError

crc32c_initialise()


cdef class Dispatcher:
    """Has the place of each consumer; packets for a consumer without a place are dropped. Use it in one thread at a
    time."""

    def __cinit__(self, Outlet outlet not None, uint32_t consumers_max):
        self._outlet = outlet
        self._consumers_max = consumers_max
        self._rings = {}
        self._places = <Place *>PyMem_Calloc(max(1, consumers_max), sizeof(Place))
        if self._places is NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self._places)

    def open(self, uint32_t consumer, uint64_t destination, key = None) -> None:
        """Send to an address (net.udp.address_key), with a trailer if there is an AuthenticationKey."""
        self.shut(consumer)
        self._places[consumer].destination = destination
        if key is not None:
            parse_key(&self._places[consumer].key, key)
            self._places[consumer].has_key = True

    def open_ring(self, uint32_t consumer, RingWriter ring not None) -> None:
        """Write into a ring, which the caller may close only after shut()."""
        ring.check_open()
        self.shut(consumer)
        self._rings[consumer] = ring
        self._places[consumer].ring = &ring._cursor
        self._places[consumer].bell = <uint32_t *>ring._doorbell.start

    def shut(self, uint32_t consumer) -> None:
        """Stop sending to the consumer."""
        if consumer >= self._consumers_max:
            raise LocalProtocolError(f"consumer {consumer} is not below {self._consumers_max}")
        memset(&self._places[consumer], 0, sizeof(Place))
        self._rings.pop(consumer, None)

    def sent(self, uint32_t consumer) -> tuple:
        """Numbers of packets and bytes sent to a consumer since it was opened."""
        if consumer >= self._consumers_max:
            return 0, 0
        return self._places[consumer].packets, self._places[consumer].bytes

    cpdef int send(self, Outbox outbox) except -1:
        """Send the outbox's content in order. Return the number of datagrams that could not be sent."""
        cdef int unsent
        with nogil:
            unsent = self.send_rows(outbox)
        return unsent

    cdef int send_rows(self, Outbox outbox) noexcept nogil:
        cdef uint64_t destinations[UDP_BATCH]
        cdef uint64_t index
        cdef uint32_t size
        cdef int count = 0, unsent = 0
        cdef const OutboxRow *row
        cdef Place *place
        cdef bint has_rung = False
        for index in range(outbox.count):
            row = &outbox.rows[index]
            if row.consumer >= self._consumers_max:
                continue
            place = &self._places[row.consumer]
            if place.ring is not NULL:
                if row.size <= place.ring.event_size_max:
                    push(place.ring, outbox.data + row.offset, row.size)
                    place.is_rung = has_rung = True
            elif place.destination:
                destinations[count] = place.destination
                self._outlet._calls.pieces[count].iov_base = outbox.data + row.offset
                size = row.size
                if place.has_key:  # the outbox has room for a trailer after each packet
                    write_trailer(outbox.data + row.offset, size, &place.key)
                    size += TRAILER_SIZE
                self._outlet._calls.pieces[count].iov_len = size
                count += 1
                if count == UDP_BATCH:
                    unsent += udp_send_each(self._outlet._fd, self._outlet._calls, destinations, count, &self.last_error)
                    count = 0
            else:
                continue
            place.packets += 1
            place.bytes += row.size
        if count:
            unsent += udp_send_each(self._outlet._fd, self._outlet._calls, destinations, count, &self.last_error)
        if has_rung:
            self.ring_bells(outbox)
        self.unsent += unsent
        return unsent

    cdef void ring_bells(self, Outbox outbox) noexcept nogil:
        """Wake each reader once."""
        cdef uint64_t index
        cdef Place *place
        for index in range(outbox.count):
            if outbox.rows[index].consumer < self._consumers_max:
                place = &self._places[outbox.rows[index].consumer]
                if place.is_rung:
                    place.is_rung = False
                    doorbell_ring(place.bell)
