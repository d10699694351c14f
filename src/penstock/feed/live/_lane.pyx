"""The data thread's fast path: in-order datagrams are converted, packed and sent without Python and the GIL.

Everything else (a gap, another session, a repair request, a checkpoint to report, a call from another thread, a
deadline) needs Python: run() returns the reason.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

import numpy

from penstock.convert.kernel._converter cimport ConverterKernel
from penstock.convert.kernel._source cimport SourceBatch
from penstock.feed.core.lines._lines cimport LineCursor
from penstock.feed.live._tap cimport Tap, tap_close, tap_eventfd, tap_load, tap_store, tap_swap, tap_wake
from penstock.middleware.core._outgoing cimport OutgoingCursor
from penstock.net._udp cimport UDP_BATCH, Inlet, Outlet, udp_monotonic_ns, udp_pause, udp_wait

import os

from penstock.base.errors import LocalProtocolError
from penstock.base.histogram import BUCKET_COUNT, SUB_BITS, VALUE_BITS, HistogramState

cdef enum:
    SPINS_PER_LOOK = 64  # spins between two checks of the clock and of the socket for repair requests
    TAPS = 2

cdef int sub_bits = SUB_BITS
cdef int64_t value_max = (<int64_t>1 << VALUE_BITS) - 1


cdef class Histogram:
    """Counts in the buckets of base.histogram, in compiled code."""

    def __cinit__(self):
        self._array = numpy.zeros(BUCKET_COUNT, numpy.int64)
        cdef int64_t[::1] counts = self._array
        self._counts = &counts[0]

    def state(self) -> HistogramState:
        """Return the counts; may be called while another thread counts."""
        counts = self._array.copy()
        used = numpy.flatnonzero(counts)
        return HistogramState(used.tolist(), counts[used].tolist(), self.maximum)

    cdef void record(self, int64_t value, int64_t count) noexcept nogil:
        cdef int64_t bounded = min(max(value, 0), value_max)
        cdef int bits = 0
        cdef int shift
        while bounded >> bits:
            bits += 1
        shift = max(bits - (sub_bits + 1), 0)
        self._counts[(<int64_t>shift << sub_bits) + (bounded >> shift)] += count
        self.maximum = max(self.maximum, value)


cdef class Exit:
    """The output of a lane: packs messages, stores them, sends them if there is an `outlet`, and advances the taps."""

    def __init__(self, OutgoingCursor cursor not None, Outlet outlet, uint64_t destination, list taps not None):
        if len(taps) > TAPS:
            raise LocalProtocolError(f"{len(taps)} taps exceed the limit of {TAPS}")
        self._cursor = cursor
        self._outlet = outlet
        self._is_sending = outlet is not None
        self._destination = destination
        self._tap_count = len(taps)
        self._first_tap = taps[0] if taps else None
        self._second_tap = taps[1] if len(taps) > 1 else None

    cdef bint is_ready(self) noexcept nogil:
        """True if messages are sent at once, and none waits."""
        return self._cursor.is_prompt and self._cursor.packer._packet.count == 0

    cdef void send(self, ConverterKernel converter, int64_t now_ns) noexcept nogil:
        cdef uint64_t first
        cdef int unsent = 0
        if converter.frame.row_count == 0:
            return
        first = self._cursor.publish_rows(
            converter.directory.data_at, converter.frame.payloads, converter.frame.rows, converter.frame.row_count, now_ns
        )
        if self._is_sending:
            self.last_error = self._outlet.send_range(
                self._destination, self._cursor.kept, first, self._cursor.kept.next_sequence - 1, &unsent
            )
            self.unsent += unsent
        if self._tap_count > 0:
            self._first_tap.advance(self._cursor.kept.next_sequence)
        if self._tap_count > 1:
            self._second_tap.advance(self._cursor.kept.next_sequence)


cdef class StreamLane:
    """One source stream: the sockets of its lines, its arbiter's cursor, its converter. Lanes form a chain."""

    def __init__(
        self, int number, Inlet inlet not None, LineCursor cursor not None, ConverterKernel converter not None,
        Exit way_out not None, Histogram latencies not None, StreamLane following,
    ):
        self.number = number
        self._inlet = inlet
        self._cursor = cursor
        self._converter = converter
        self._exit = way_out
        self._latencies = latencies
        self._next = following
        self._has_next = following is not None
        self._source = SourceBatch()
        self._source.point_at_memory(
            inlet.batch.data, <uint64_t>inlet.batch.capacity * <uint64_t>inlet.batch.stride, inlet.batch
        )

    cdef int step(self, bint spin) except -1 nogil:
        """Handle available datagrams of this stream's sockets. Return the work left for Python, or WHY_NOTHING."""
        cdef int received = self._inlet.drain(self._inlet._count, spin)
        cdef int64_t received_ns, now_ns
        cdef Py_ssize_t index = 0
        self.rest = 0
        if received == 0:
            return WHY_NOTHING
        if received < 0:
            self.error = -received
            return WHY_ERROR
        received_ns = udp_monotonic_ns()
        if not (self.is_flowing and self._cursor.is_smooth and self._exit.is_ready()):
            return WHY_DATAGRAMS
        self._source.count = 0
        while index < received and self._cursor.take_one(self._source, self._inlet.batch, index, received_ns):
            index += 1
        if self._source.count:
            self._converter.convert_rows(self._source)
            self._exit.send(self._converter, received_ns)
            now_ns = udp_monotonic_ns()
            self.latency_ns = now_ns - received_ns
            self._latencies.record(self.latency_ns, self._source.count)
            self.has_worked = True
        if index < received:
            self.rest = index
            return WHY_DATAGRAMS
        if self._converter.marks_made != self._converter.marks_read:
            return WHY_CHECKPOINT
        return WHY_NOTHING

    cdef int step_all(self, bint spin, int *number) except -1 nogil:
        """Call step() for this lane and the following ones in the chain."""
        cdef int why = self.step(spin)
        if why != WHY_NOTHING:
            number[0] = self.number
            return why
        if self._has_next:
            return self._next.step_all(spin, number)
        return WHY_NOTHING


cdef class Lane:
    """All source streams of an adapter. The data thread calls run(); any other thread may call ring()."""

    def __cinit__(self):
        self._bell = tap_eventfd()
        if self._bell < 0:
            raise OSError("cannot create a descriptor")

    def __init__(self, StreamLane first, fds, repair_fd: int):
        self._first = first
        self._has_streams = first is not None
        waiting = [self._bell, *fds, repair_fd] if repair_fd >= 0 else [self._bell, *fds]
        if len(waiting) > UDP_BATCH:
            raise LocalProtocolError(f"{len(waiting)} sockets exceed the limit of {UDP_BATCH}")
        for index, fd in enumerate(waiting):
            self._fds[index] = fd
        self._fd_count = len(waiting)
        self._repair_fd = repair_fd

    def __dealloc__(self):
        if self._bell >= 0:
            tap_close(self._bell)

    def close(self) -> None:
        """Close after the last run(); later calls of ring() have no effect."""
        if self._bell >= 0:
            tap_close(self._bell)
            self._bell = -1

    def ring(self) -> None:
        """Make run() return soon, in the data thread."""
        tap_store(&self._is_rung, 1)
        if tap_load(&self._is_asleep):
            tap_wake(self._bell)

    def run(self, int64_t wake_ns, bint spin) -> tuple:
        """Run until Python is needed or the given time. Return (why, number of the stream)."""
        cdef int why
        cdef int number = -1
        with nogil:
            why = self.loop(wake_ns, spin, &number)
        if tap_swap(&self._is_rung, 0):
            self.quieten()
        return why, number

    def quieten(self) -> None:
        try:
            os.read(self._bell, 8)
        except BlockingIOError:
            return

    cdef int loop(self, int64_t wake_ns, bint spin, int *number) except -1 nogil:
        cdef int why
        cdef int64_t now_ns
        cdef uint32_t spins = 0
        while True:
            if tap_load(&self._is_rung):
                return WHY_RUNG
            if self._has_streams:
                why = self._first.step_all(spin, number)
                if why != WHY_NOTHING:
                    return why
            if spin:
                spins += 1
                if spins % SPINS_PER_LOOK == 0:
                    now_ns = udp_monotonic_ns()
                    if now_ns >= wake_ns:
                        return WHY_DEADLINE
                    if self.has_requests(now_ns):
                        return WHY_REPAIR
                udp_pause()
                continue
            now_ns = udp_monotonic_ns()
            if now_ns >= wake_ns:
                return WHY_DEADLINE
            if self.has_requests(now_ns):
                return WHY_REPAIR
            tap_store(&self._is_asleep, 1)
            if not tap_load(&self._is_rung):
                if self._repair_fd >= 0 and now_ns < self.repairs_from_ns:
                    udp_wait(self._fds, self._fd_count - 1, min(wake_ns, self.repairs_from_ns) - now_ns)
                else:
                    udp_wait(self._fds, self._fd_count, wake_ns - now_ns)
            tap_store(&self._is_asleep, 0)

    cdef bint has_requests(self, int64_t now_ns) noexcept nogil:
        return self._repair_fd >= 0 and now_ns >= self.repairs_from_ns and udp_wait(&self._repair_fd, 1, 0) > 0
