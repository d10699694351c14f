"""The record region: RegionWriter and RegionReader."""

cimport cython
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.unistd cimport usleep

from penstock.base._crc32c cimport crc32c_extend, crc32c_initialise
from penstock.shm._memory cimport (
    Mapping,
    fence_acquire,
    fence_release,
    load_acquire,
    load_relaxed,
    monotonic_ns,
    spin_pause,
    store_relaxed,
    store_release,
    wall_ns,
)
from penstock.wire._codec cimport load_u16, load_u32, load_u64, store_u16, store_u32, store_u64

from penstock.base.errors import LocalProtocolError, ProducerGoneError, RecordUnavailableError, SharedMemoryError
from penstock.base.limits import RECORD_SIZE_MAX
from penstock.base.segment import Segment
from penstock.shm.memory import SEGMENT_SIZE_MAX, create_memory, open_memory

crc32c_initialise()

cdef enum:
    ATTEMPTS = 1_000       # reads of a record that is being written, about 50 µs
    NAP_US = 50            # pause between series of attempts, if the caller allows more time
    NAPS_PER_SLICE = 100   # pauses between checks for signals and for the producer's life

assert sizeof(Head) == RECORD_HEADER_SIZE
assert sizeof(Trailer) == PART_TRAILER_SIZE


cdef inline uint32_t part_checksum(const uint8_t *payload, uint32_t size, uint64_t generation) noexcept nogil:
    return crc32c_extend(crc32c_extend(0, payload, size), &generation, sizeof(generation))


cdef inline void put_part(uint8_t *at, const uint8_t *payload, uint32_t size, uint64_t generation) noexcept nogil:
    """Write a payload and its trailer; without a payload, zeros."""
    cdef Trailer trailer
    if payload is NULL:
        memset(at, 0, size)
    else:
        memcpy(at, payload, size)
    trailer.generation = generation
    trailer.checksum = part_checksum(at, size, generation)
    trailer.reserved = 0
    memcpy(at + size, &trailer, sizeof(trailer))


cdef void put_parts(
    const Geometry *geometry, uint64_t index, uint32_t first_part, uint32_t end_part, const uint8_t *payload, Head *head
) noexcept nogil:
    cdef uint8_t *record = geometry.records + index * geometry.stride
    cdef uint8_t *at = record + RECORD_HEADER_SIZE
    cdef uint64_t writing = (load_relaxed(record) + 1) | 1 # odd, also after a writer that died during its write
    cdef uint32_t part, size
    head.generation = writing + 1
    head.checksum = crc32c_extend(0, head, RECORD_CHECKSUM_AT)
    store_relaxed(record, writing)
    fence_release()
    memcpy(record + RECORD_STARTED_AT, &head.started_ns, RECORD_HEADER_SIZE - RECORD_STARTED_AT)
    for part in range(geometry.part_count):
        size = geometry.part_sizes[part]
        if first_part <= part < end_part:
            put_part(at, payload, size, head.generation)
            payload += size
        elif load_u64(at + size + PART_GENERATION_AT) == 0: # never written
            put_part(at, NULL, size, head.generation)
        at += size + PART_TRAILER_SIZE
    store_release(record, head.generation)


cdef State take_record(
    const Geometry *geometry, uint64_t index, uint8_t *payload, Head *head, uint64_t *part_generations
) noexcept nogil:
    cdef const uint8_t *record = geometry.records + index * geometry.stride
    cdef const uint8_t *at = record + RECORD_HEADER_SIZE
    cdef uint64_t generation = load_acquire(record)
    cdef Trailer[PARTS_MAX] trailers
    cdef uint32_t part, size
    if generation & 1:
        return STATE_WRITING
    if generation == 0:
        return STATE_NEVER_WRITTEN
    memcpy(head, record, sizeof(Head))
    for part in range(geometry.part_count):
        size = geometry.part_sizes[part]
        memcpy(payload, at, size)
        memcpy(&trailers[part], at + size, sizeof(Trailer))
        payload += size
        at += size + PART_TRAILER_SIZE
    fence_acquire()
    if load_relaxed(record) != generation:
        return STATE_WRITING
    if head.generation != generation or head.checksum != crc32c_extend(0, head, RECORD_CHECKSUM_AT):
        return STATE_CHECKSUM
    payload -= geometry.payload_size
    for part in range(geometry.part_count):
        size = geometry.part_sizes[part]
        if trailers[part].checksum != part_checksum(payload, size, trailers[part].generation):
            return STATE_CHECKSUM
        if trailers[part].generation > generation: # a part cannot be newer than its record
            return STATE_WRITING
        part_generations[part] = trailers[part].generation
        payload += size
    return STATE_COHERENT


cdef State take_soon(
    const Geometry *geometry, uint64_t index, uint8_t *payload, Head *head, uint64_t *part_generations
) noexcept nogil:
    """take_record(), repeated up to a limit while the record is being written."""
    cdef State state = STATE_WRITING
    cdef int attempt
    for attempt in range(ATTEMPTS):
        state = take_record(geometry, index, payload, head, part_generations)
        if state == STATE_COHERENT or state == STATE_NEVER_WRITTEN:
            break
        spin_pause()
    return state


cdef State take_before(
    const Geometry *geometry, uint64_t index, uint8_t *payload, Head *head, uint64_t *part_generations,
    int64_t deadline_ns
) noexcept nogil:
    """take_soon(), repeated until the deadline or for a slice of that time."""
    cdef State state = STATE_WRITING
    cdef int nap
    for nap in range(NAPS_PER_SLICE):
        state = take_soon(geometry, index, payload, head, part_generations)
        if state == STATE_COHERENT or state == STATE_NEVER_WRITTEN or monotonic_ns() >= deadline_ns:
            break
        usleep(NAP_US)
    return state


cdef int set_geometry(Geometry *geometry, uint64_t record_count, part_sizes) except -1:
    """Check the geometry of an existing or new region; the caller sets the location of the records."""
    cdef uint64_t size, payload_size = 0
    if not 1 <= len(part_sizes) <= PARTS_MAX:
        raise SharedMemoryError(f"a record of {len(part_sizes)} parts is outside the limits of 1 to {PARTS_MAX}")
    geometry.part_count = len(part_sizes)
    for part, part_size in enumerate(part_sizes):
        if not PART_ALIGNMENT <= part_size <= RECORD_SIZE_MAX or part_size % PART_ALIGNMENT:
            raise SharedMemoryError(
                f"invalid part size {part_size}",
                hint=f"use a multiple of {PART_ALIGNMENT} up to {RECORD_SIZE_MAX}",
            )
        size = part_size
        geometry.part_sizes[<uint32_t>part] = <uint32_t>size
        payload_size += size
    if payload_size > RECORD_SIZE_MAX:
        raise SharedMemoryError(f"the parts have {payload_size} bytes in total, above the limit of {RECORD_SIZE_MAX}")
    size = RECORD_HEADER_SIZE + payload_size + geometry.part_count * PART_TRAILER_SIZE
    geometry.payload_size = <uint32_t>payload_size
    geometry.stride = (size + RECORD_ALIGNMENT - 1) & ~<uint64_t>(RECORD_ALIGNMENT - 1)
    if not 1 <= record_count <= (SEGMENT_SIZE_MAX - REGION_HEADER_SIZE) // geometry.stride:
        raise SharedMemoryError(f"{record_count} records of {geometry.stride} bytes exceed the size of a segment")
    geometry.record_count = record_count
    return 0


cdef class Region:
    """Common part of the writer and the reader of a region."""

    @property
    def record_count(self) -> int:
        return self._geometry.record_count

    @property
    def payload_size(self) -> int:
        """Size of a record's payload in bytes: the sum of its parts."""
        return self._geometry.payload_size

    @property
    def part_sizes(self) -> tuple:
        return tuple([self._geometry.part_sizes[part] for part in range(self._geometry.part_count)])

    cdef Mapping mapping(self):
        """Return the mapping, which the caller references while it uses the memory."""
        if self._mapping is None:
            raise LocalProtocolError("the region is closed")
        return self._mapping

    cdef uint64_t place(self, index) except? 0:
        if not 0 <= index < self._geometry.record_count:
            raise LocalProtocolError(
                f"the region has no record {index}", hint=f"valid: 0 to {self._geometry.record_count - 1}"
            )
        return index

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


cdef class RegionWriter(Region):
    """The producer's end, which overwrites records in place and never waits.

    Created by create(). `segment` is passed to consumers; this writer keeps its ownership.
    """

    def __init__(self):
        raise LocalProtocolError("use RegionWriter.create()")

    @staticmethod
    def create(record_count: int, part_sizes) -> RegionWriter:
        """Create a region of `record_count` records with parts of these sizes."""
        cdef RegionWriter self = RegionWriter.__new__(RegionWriter)
        sizes = tuple(part_sizes)
        if record_count < 1:
            raise SharedMemoryError(f"cannot create a region of {record_count} records")
        set_geometry(&self._geometry, record_count, sizes)
        fd, mapping = create_memory("penstock-region", REGION_HEADER_SIZE + record_count * self._geometry.stride)
        self._mapping = mapping
        self.segment = Segment("region", (fd,))
        cdef uint8_t *start = self._mapping.start
        self._geometry.records = start + REGION_HEADER_SIZE
        store_u32(start + REGION_MAGIC_AT, REGION_MAGIC)
        store_u16(start + REGION_VERSION_AT, REGION_VERSION)
        store_u16(start + REGION_PART_COUNT_AT, <uint16_t>self._geometry.part_count)
        store_u64(start + REGION_RECORD_COUNT_AT, record_count)
        memcpy(start + REGION_PART_SIZES_AT, self._geometry.part_sizes, sizeof(self._geometry.part_sizes))
        store_u32(start + REGION_CHECKSUM_AT, crc32c_extend(0, start, REGION_CHECKSUM_AT))
        return self

    def write(
        self, index, payload not None, *, first_part = 0, int64_t started_ns = 0, int64_t finished_ns = 0,
        uint32_t merged = 0,
    ) -> int:
        """Overwrite consecutive parts of a record in one update, and return the record's update count.

        `payload` begins with part `first_part` and ends with any part; other parts are unchanged. The times are when
        the producer started and finished processing the update, in nanoseconds since 1970; the time of the write is
        added. `merged` is the number of updates that the record represents.
        """
        cdef Py_buffer content
        cdef Head head
        head.started_ns, head.finished_ns = started_ns, finished_ns
        head.merged = min(merged, <uint32_t>RECORD_MERGED_MAX)
        cdef uint64_t place = self.place(index)
        PyObject_GetBuffer(payload, &content, PyBUF_SIMPLE)
        try:
            end_part = self.end_of(first_part, content.len)
            self.mapping()
            head.issued_ns = wall_ns()
            put_parts(&self._geometry, place, first_part, end_part, <const uint8_t *>content.buf, &head)
        finally:
            PyBuffer_Release(&content)
        return head.generation >> 1

    def close(self) -> None:
        """Unmap the memory; readers keep theirs. A second call has no effect."""
        self._mapping = None
        self.segment.close()

    cdef uint32_t end_of(self, first_part, Py_ssize_t size) except? 0:
        """Return the part after the last one that a payload of `size` bytes covers."""
        cdef uint32_t part
        cdef Py_ssize_t left = size
        if not 0 <= first_part < self._geometry.part_count:
            raise LocalProtocolError(f"a record has no part {first_part}")
        for part in range(first_part, self._geometry.part_count):
            left -= self._geometry.part_sizes[part]
            if left == 0:
                return part + 1
        raise LocalProtocolError(
            f"{size} bytes do not match whole parts from part {first_part} on",
            hint=f"the part sizes are {self.part_sizes}",
        )


cdef class RegionMarks:
    """The generation of each record that a reader of a region has read; written by the reader, read by the producer.

    Created by create(), for as many records as the region has. `segment` is passed to the reader, which writes it; this
    object keeps its ownership. Wrong marks only affect their reader.
    """

    def __init__(self):
        raise LocalProtocolError("use RegionMarks.create()")

    @staticmethod
    def create(record_count: int) -> RegionMarks:
        cdef RegionMarks self = RegionMarks.__new__(RegionMarks)
        fd, self._mapping = create_memory("penstock-marks", record_count * MARK_SIZE, is_shared_writable=True)
        self.record_count = record_count
        self.segment = Segment("marks", (fd,))
        return self

    def __getitem__(self, index) -> int:
        """Return the generation that was read last, 0 if none."""
        cdef Mapping mapping = self._mapping
        if mapping is None:
            raise LocalProtocolError("the marks are closed")
        if not 0 <= index < self.record_count:
            raise LocalProtocolError(f"mark {index} is out of range")
        return load_acquire(mapping.start + <uint64_t>index * MARK_SIZE)

    def close(self) -> None:
        """Unmap the memory; a second call has no effect."""
        self._mapping = None
        self.segment.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@cython.final
@cython.freelist(64)
cdef class RegionRecord:
    """A coherent copy of a record.

    `update_count` counts the record's updates: the difference of two reads is the number of updates between them. The
    producer's times are nanoseconds since 1970: start and end of processing the update (0 if unknown), and the time of
    the write. `merged` is the number of updates that the record represents, 0 if unknown. A record that `is_withdrawn`
    has no values, and its payload is undefined.
    """

    cdef readonly bytes payload
    cdef readonly uint64_t update_count
    cdef readonly int64_t started_ns
    cdef readonly int64_t finished_ns
    cdef readonly int64_t issued_ns
    cdef readonly uint32_t merged
    cdef readonly bint is_withdrawn
    cdef uint64_t[PARTS_MAX] _part_generations
    cdef uint32_t _part_count
    cdef object _model

    def __init__(self):
        raise LocalProtocolError("use RegionReader.read()")

    @property
    def part_update_counts(self) -> tuple:
        """For each part, the update count of its last write."""
        return tuple([self._part_generations[part] >> 1 for part in range(self._part_count)])

    @property
    def message(self):
        """The payload as a message of the reader's model."""
        if self._model is None:
            raise LocalProtocolError("the reader has no model", hint="pass the model: RegionReader(segment, model)")
        return self._model.view(self.payload)


cdef class RegionReader(Region):
    """A consumer's end. Any number of threads and readers may share a region.

    With a `model`, records have a `message`. The caller closes the segment, after the reader.
    """

    def __init__(self, segment not None, model = None):
        if segment.kind != "region" or len(segment.fds) != 1:
            raise SharedMemoryError(f"the segment is a {segment.kind} of {len(segment.fds)} files, not a region")
        cdef Mapping mapping = open_memory(segment.fds[0])
        check_header(&self._geometry, mapping)
        if model is not None and self.part_sizes != tuple([part.size for part in model.parts]):
            raise SharedMemoryError(
                f"the region's part sizes {self.part_sizes} differ from those of model {model.name!r}",
                hint="use the same version of the model on both sides",
            )
        mapping.populate()
        self._mapping = mapping
        self._model = model
        self._lifeline = segment.lifeline

    def read(self, index, timeout_ns = 0) -> RegionRecord | None:
        """Return a coherent copy of a record; None if it was never written.

        While the record is being written, the read is repeated for about 50 µs or `timeout_ns`, whichever is longer,
        and then raises RecordUnavailableError, or ProducerGoneError if the producer has ended. The timeout None waits
        without a limit. Records of an ended producer remain readable.
        """
        cdef Mapping mapping = self.mapping()
        cdef RegionRecord record = RegionRecord.__new__(RegionRecord)
        cdef Head head
        record.payload = PyBytes_FromStringAndSize(NULL, self._geometry.payload_size)
        if not self.take(
            index, timeout_ns, <uint8_t *>PyBytes_AS_STRING(record.payload), &head, record._part_generations
        ):
            return None
        record.update_count = head.generation >> 1
        record.started_ns = head.started_ns
        record.finished_ns = head.finished_ns
        record.issued_ns = head.issued_ns
        record.merged = head.merged & <uint32_t>RECORD_MERGED_MAX
        record.is_withdrawn = head.merged & <uint32_t>RECORD_WITHDRAWN != 0
        record._part_count = self._geometry.part_count
        record._model = self._model
        return record

    def read_into(self, index, out not None, timeout_ns = 0) -> int:
        """Read a record into a writable buffer of exactly `payload_size` bytes; return the update count, 0 if the
        record was never written or is withdrawn.

        After an error or a result of 0, the buffer's content is undefined.
        """
        cdef Mapping mapping = self.mapping()
        cdef Head head
        cdef uint64_t[PARTS_MAX] part_generations
        cdef Py_buffer buffer
        PyObject_GetBuffer(out, &buffer, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)
        try:
            if buffer.len != self._geometry.payload_size:
                raise LocalProtocolError(f"{buffer.len} bytes for a record of {self._geometry.payload_size}")
            if not self.take(index, timeout_ns, <uint8_t *>buffer.buf, &head, part_generations):
                return 0
        finally:
            PyBuffer_Release(&buffer)
        return 0 if head.merged & <uint32_t>RECORD_WITHDRAWN else head.generation >> 1

    def read_batch(self, const uint32_t[::1] indices not None, rows not None, uint64_t[::1] update_counts not None):
        """Read many records into the rows of a C-contiguous array, and return how many were coherent.

        `update_counts` is 0 for a record that was never written, is withdrawn or not available; its row is undefined.
        Releases the GIL.
        """
        cdef Mapping mapping = self.mapping()
        cdef uint64_t count = indices.shape[0], taken = 0, position
        cdef Py_buffer buffer
        PyObject_GetBuffer(rows, &buffer, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)
        try:
            if <uint64_t>buffer.len != count * self._geometry.payload_size or <uint64_t>update_counts.shape[0] != count:
                raise LocalProtocolError(
                    f"{count} records need rows of {self._geometry.payload_size} bytes and as many update counts"
                )
            for position in range(count):
                self.place(indices[position])
            if count:
                with nogil:
                    taken = take_rows(
                        &self._geometry, &indices[0], <uint8_t *>buffer.buf, &update_counts[0], count
                    )
        finally:
            PyBuffer_Release(&buffer)
        return taken

    def close(self) -> None:
        """Unmap the memory; a second call has no effect."""
        self._mapping = None

    cdef bint take(
        self, index, timeout_ns, uint8_t *payload, Head *head, uint64_t *part_generations
    ) except -1:
        """Return whether the record was ever written; the caller references the mapping."""
        cdef uint64_t place = self.place(index)
        cdef State state = take_record(&self._geometry, place, payload, head, part_generations)
        cdef int64_t deadline_ns
        if state != STATE_COHERENT and state != STATE_NEVER_WRITTEN:
            deadline_ns = INT64_MAX if timeout_ns is None else monotonic_ns() + min(timeout_ns, INT64_MAX // 2)
            while True:
                with nogil:
                    state = take_before(&self._geometry, place, payload, head, part_generations, deadline_ns)
                if state == STATE_COHERENT or state == STATE_NEVER_WRITTEN:
                    break
                PyErr_CheckSignals()
                if self._lifeline is not None and not self._lifeline.peer_is_alive():
                    state = take_record(&self._geometry, place, payload, head, part_generations)
                    if state == STATE_COHERENT: # the producer completed the write before it ended
                        break
                    raise ProducerGoneError(
                        f"the producer ended while writing record {place}",
                        hint="connect again: the next producer creates a new region",
                    )
                if monotonic_ns() >= deadline_ns:
                    raise unavailable(place, state)
        return state == STATE_COHERENT


cdef object unavailable(uint64_t index, State state):
    what = "is being written" if state == STATE_WRITING else "has a part with a wrong checksum"
    return RecordUnavailableError(
        f"record {index} {what}", hint="read again; if the error persists, the writer died during a write"
    )


cdef uint64_t take_rows(
    const Geometry *geometry, const uint32_t *indices, uint8_t *row, uint64_t *update_counts, uint64_t count
) noexcept nogil:
    cdef Head head
    cdef uint64_t[PARTS_MAX] part_generations
    cdef uint64_t position, taken = 0
    for position in range(count):
        update_counts[position] = 0
        if take_soon(geometry, indices[position], row, &head, part_generations) == STATE_COHERENT and (
            not head.merged & <uint32_t>RECORD_WITHDRAWN
        ):
            update_counts[position] = head.generation >> 1
            taken += 1
        row += geometry.payload_size
    return taken


cdef int check_header(Geometry *geometry, Mapping mapping) except -1:
    cdef uint8_t *start = mapping.start
    if mapping.size < REGION_HEADER_SIZE or load_u32(start + REGION_MAGIC_AT) != REGION_MAGIC:
        raise SharedMemoryError("the segment is not a Penstock region")
    if load_u16(start + REGION_VERSION_AT) != REGION_VERSION:
        raise SharedMemoryError(f"region version {load_u16(start + REGION_VERSION_AT)}, expected {REGION_VERSION}")
    if load_u32(start + REGION_CHECKSUM_AT) != crc32c_extend(0, start, REGION_CHECKSUM_AT):
        raise SharedMemoryError("the region's header is damaged: wrong checksum")
    cdef uint32_t part_count = min(<uint32_t>load_u16(start + REGION_PART_COUNT_AT), <uint32_t>PARTS_MAX + 1)
    sizes = [load_u32(start + REGION_PART_SIZES_AT + 4 * part) for part in range(part_count)]
    geometry.records = start + REGION_HEADER_SIZE
    set_geometry(geometry, load_u64(start + REGION_RECORD_COUNT_AT), sizes)
    if mapping.size != REGION_HEADER_SIZE + geometry.record_count * geometry.stride:
        raise SharedMemoryError(f"the region's header does not match the segment's {mapping.size} bytes")
    return 0
