"""The journal's kernels: encode records for a segment, and scan a segment's bytes for valid records."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

import numpy

from penstock.base._crc32c cimport crc32c_extend, crc32c_initialise
from penstock.base._prefetch cimport prefetch_span
from penstock.wire._codec cimport load_u32, load_u64, store_u32, store_u64

from penstock.base import limits
from penstock.base.errors import LimitError, LocalProtocolError

crc32c_initialise()

# row type shared with numpy; a typed memoryview refuses an array whose fields differ
RECORD_DTYPE = numpy.dtype(
    [("sequence", "u8"), ("timestamp_ns", "i8"), ("durable", "u8"), ("offset", "u4"), ("size", "u4")]
)

cdef uint64_t payload_size_max = limits.JOURNAL_PAYLOAD_SIZE_MAX
cdef size_t CAPACITY_MIN = 4096


cdef uint32_t record_checksum(const uint8_t *record, uint64_t space, uint32_t nonce) noexcept nogil:
    cdef uint32_t crc = crc32c_extend(nonce, record, RECORD_CHECKSUM_AT)
    return crc32c_extend(crc, record + RECORD_SEQUENCE_AT, space - RECORD_SEQUENCE_AT)


cdef int parse_record(
    const uint8_t *data, uint64_t data_size, uint64_t at, uint32_t nonce, RecordRow *row
) noexcept nogil:
    cdef const uint8_t *record = data + at
    cdef uint64_t size, space
    if data_size - at < RECORD_HEADER_SIZE:
        return STOP_SHORT
    size = load_u32(record + RECORD_SIZE_AT)
    if size < RECORD_HEADER_SIZE or size - RECORD_HEADER_SIZE > payload_size_max:
        return STOP_INVALID
    space = record_space(size - RECORD_HEADER_SIZE)
    if data_size - at < space:
        return STOP_SHORT
    prefetch_span(record + space, min(space, data_size - at - space)) # the next record probably has a similar size
    if record_checksum(record, space, nonce) != load_u32(record + RECORD_CHECKSUM_AT):
        return STOP_INVALID
    row.sequence = load_u64(record + RECORD_SEQUENCE_AT)
    row.timestamp_ns = <int64_t>load_u64(record + RECORD_TIMESTAMP_AT)
    row.durable = load_u64(record + RECORD_DURABLE_AT)
    row.offset = <uint32_t>(at + RECORD_HEADER_SIZE)
    row.size = <uint32_t>(size - RECORD_HEADER_SIZE)
    return STOP_ROWS


def scan(const uint8_t[::1] data not None, nonce, next_sequence, RecordRow[::1] rows not None, start = 0) -> tuple:
    """Check consecutive records in `data` from `start`; the first has number `next_sequence`.

    Return the number of filled rows, the end of the last valid record, and why the scan stopped there (STOP_...).
    """
    cdef uint64_t size = data.shape[0]
    cdef uint64_t at
    cdef uint64_t sequence = next_sequence
    cdef uint32_t seed = nonce
    cdef Py_ssize_t count = 0
    cdef int stop = STOP_ROWS
    check_range(size, start)
    at = start
    with nogil:
        while count < rows.shape[0]:
            if at == size:
                stop = STOP_SHORT
                break
            stop = parse_record(&data[0], size, at, seed, &rows[count])
            if stop == STOP_ROWS and rows[count].sequence != sequence:
                stop = STOP_INVALID
            if stop != STOP_ROWS:
                break
            at += record_space(rows[count].size)
            sequence += 1
            count += 1
    return count, at, stop


def find_record(const uint8_t[::1] data not None, nonce, sequence_min, start = 0) -> tuple | None:
    """Find the first complete, valid record at or after `start` with a number of at least `sequence_min`, at any
    offset.

    `data` begins after the record before `sequence_min`, which bounds the possible numbers at each offset by the number
    of records that fit before it. Return offset, sequence number and durable number, or None. `start` is a multiple of
    8, like all record offsets.
    """
    cdef uint64_t size = data.shape[0]
    cdef uint64_t at
    cdef uint64_t oldest = sequence_min
    cdef uint64_t sequence
    cdef uint32_t seed = nonce
    cdef bint is_found = False
    cdef RecordRow row
    check_range(size, start)
    at = start
    with nogil:
        while size - at >= RECORD_HEADER_SIZE:
            # check the numbers first: the check is cheap, and almost nothing passes
            sequence = load_u64(&data[at] + RECORD_SEQUENCE_AT)
            if (
                oldest <= sequence <= oldest + at // RECORD_HEADER_SIZE
                and load_u64(&data[at] + RECORD_DURABLE_AT) < sequence
            ):
                if parse_record(&data[0], size, at, seed, &row) == STOP_ROWS:
                    is_found = True
                    break
            at += RECORD_ALIGNMENT
    return (at, row.sequence, row.durable) if is_found else None


cdef int check_range(uint64_t size, start) except -1:
    if size > UINT32_MAX:
        raise LocalProtocolError(f"{size} bytes exceed the size of one scan")
    if not 0 <= start <= size:
        raise LocalProtocolError(f"start {start} is outside the {size} bytes")
    return 0


cdef class RecordBuffer:
    """Records in memory, in the layout of a segment, numbered from `first_sequence`.

    seal() finishes them for a segment; then the buffer protocol gives the bytes to write. Sealing may be repeated for
    another segment.
    """

    def __cinit__(self, first_sequence):
        self.first_sequence = first_sequence
        self.next_sequence = first_sequence

    def __dealloc__(self):
        free(self._data)

    def __len__(self):
        return self.next_sequence - self.first_sequence

    cpdef clear(self, uint64_t first_sequence):
        """Discard the records; the next one has number `first_sequence`."""
        self._check_unshared()
        self.size = 0
        self.first_sequence = first_sequence
        self.next_sequence = first_sequence

    def append(self, payload, int64_t timestamp_ns):
        """Append one record and return its sequence number."""
        cdef Py_buffer view
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            self._reserve(view.len)
            self._put(<const uint8_t *>view.buf, view.len, timestamp_ns)
        finally:
            PyBuffer_Release(&view)
        return self.next_sequence - 1

    def append_rows(
        self,
        const uint8_t[::1] data not None,
        const uint32_t[::1] offsets not None,
        const uint32_t[::1] sizes not None,
        const int64_t[::1] timestamps_ns not None,
    ):
        """Append one record per row, with its payload at that offset of `data`; all of them or none."""
        cdef Py_ssize_t count = offsets.shape[0]
        cdef Py_ssize_t row
        cdef const uint8_t *start = &data[0] if data.shape[0] else NULL
        cdef uint64_t space = 0
        if sizes.shape[0] != count or timestamps_ns.shape[0] != count:
            raise LocalProtocolError("offsets, sizes and timestamps_ns differ in length")
        for row in range(count):
            if <uint64_t>offsets[row] + sizes[row] > <uint64_t>data.shape[0]:
                raise LocalProtocolError(f"row {row} is outside the data")
            check_payload(sizes[row])
            space += record_space(sizes[row])
        self._grow(space)
        with nogil:
            for row in range(count):
                self._put(start + offsets[row], sizes[row], timestamps_ns[row])

    cpdef seal(self, uint32_t nonce, uint64_t durable):
        """Finish the records for the segment with this nonce; `durable` is the highest number known to be on disk."""
        cdef uint64_t at = 0
        cdef uint64_t space
        cdef uint8_t *record
        self._check_unshared()
        with nogil:
            while at < self.size:
                record = self._data + at
                space = record_space(load_u32(record + RECORD_SIZE_AT) - RECORD_HEADER_SIZE)
                store_u64(record + RECORD_DURABLE_AT, durable)
                store_u32(record + RECORD_CHECKSUM_AT, record_checksum(record, space, nonce))
                at += space

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self._data, self.size, 1, flags)
        self._exports += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self._exports -= 1

    cdef int _check_unshared(self) except -1:
        if self._exports:
            raise LocalProtocolError("the records are being written", hint="wait for WriteDone or DiskFailed")
        return 0

    cdef int _reserve(self, Py_ssize_t payload_size) except -1:
        check_payload(payload_size)
        return self._grow(record_space(payload_size))

    cdef int _grow(self, uint64_t space) except -1:
        """Make room for `space` more bytes."""
        cdef size_t capacity
        cdef uint8_t *data
        self._check_unshared()
        if self._capacity - self.size >= space:
            return 0
        capacity = max(2 * self._capacity, self.size + space, CAPACITY_MIN)
        data = <uint8_t *>realloc(self._data, capacity)
        if data == NULL:
            raise MemoryError
        self._data = data
        self._capacity = capacity
        return 0

    cdef void _put(self, const uint8_t *payload, uint64_t payload_size, int64_t timestamp_ns) noexcept nogil:
        """Append a record; the caller has made room. seal() adds durable number and checksum."""
        cdef uint8_t *record = self._data + self.size
        cdef uint64_t space = record_space(payload_size)
        cdef uint64_t used = RECORD_HEADER_SIZE + payload_size
        store_u32(record + RECORD_SIZE_AT, <uint32_t>used)
        store_u32(record + RECORD_CHECKSUM_AT, 0)
        store_u64(record + RECORD_SEQUENCE_AT, self.next_sequence)
        store_u64(record + RECORD_TIMESTAMP_AT, <uint64_t>timestamp_ns)
        store_u64(record + RECORD_DURABLE_AT, 0)
        if payload_size:
            memcpy(record + RECORD_HEADER_SIZE, payload, payload_size)
        memset(record + used, 0, space - used)
        self.size += space
        self.next_sequence += 1
        self.last_timestamp_ns = timestamp_ns


cdef inline int check_payload(uint64_t size) except -1:
    if size > payload_size_max:
        raise LimitError(f"a record of {size} bytes exceeds the limit of {payload_size_max}")
    return 0
