"""RecordStore: reads records of a region, stores the last read content, and compares."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from penstock.engine.client._fields cimport MASK_WORDS, FieldTable, compare_fields, convert_prices
from penstock.shm._memory cimport Mapping, load_acquire, store_release
from penstock.shm._region cimport (
    PARTS_MAX,
    RECORD_MERGED_AT,
    RECORD_MERGED_MAX,
    RECORD_WITHDRAWN,
    Head,
    RegionReader,
)
from penstock.wire._codec cimport load_u32

from penstock.base.errors import LocalProtocolError, SharedMemoryError
from penstock.engine.client.conversion import converted_model
from penstock.shm.memory import open_memory


@cython.final
@cython.freelist(256)
cdef class RecordState:
    """A consistent record and its metadata.

    `update_count` is the number of the record's updates, `since_count` that of the previous read: conflated fields
    of the model cover the updates in between. `merged` is the number of updates that the producer merged. The
    producer's times, in nanoseconds since 1970, are the begin and end of processing (0 if unknown), and the time of
    the write. A record that `is_withdrawn` has no values: the session of its last ones has ended.
    """

    def __init__(self):
        raise LocalProtocolError("RecordState objects are created by reads")

    @staticmethod
    def restore(FieldTable table not None, model, tuple content not None) -> RecordState:
        """Recreate the state from `content`, which was extracted in another process."""
        cdef RecordState self = RecordState.__new__(RecordState)
        cdef int word
        self._table, self.model = table, model
        (
            self.payload, self.update_count, self.since_count, self.merged, self.started_ns, self.finished_ns,
            self.issued_ns, self.is_withdrawn, words,
        ) = content
        for word in range(MASK_WORDS):
            self._mask[word] = words[word]
        return self

    @property
    def content(self) -> tuple:
        return (
            self.payload, self.update_count, self.since_count, self.merged, self.started_ns, self.finished_ns,
            self.issued_ns, self.is_withdrawn, [self._mask[word] for word in range(MASK_WORDS)],
        )

    @property
    def changed(self) -> tuple:
        """The names of the fields that differ from the previous read; all of them at the first read."""
        return self._table.names_of(self._mask)

    @property
    def message(self):
        """The record as a message whose `source` is this state."""
        message = self.model.view(self.payload)
        message.seq, message.source = self.update_count, self
        return message

    def __repr__(self) -> str:
        return f"<RecordState update {self.update_count} of a {self.model.name}>"


cdef class RecordStore:
    """Reads the records of a `model` in the region of a `segment`; other threads may do so too.

    `marks` is the memory, if any, in which the producer learns what was read. With `is_converting`, prices are read
    as floats. The caller closes the segments.
    """

    def __init__(self, segment not None, model not None, marks = None, *, is_converting = False):
        cdef uint64_t count
        cdef RegionReader region = RegionReader(segment, model)
        count = region._geometry.record_count
        if marks is not None:
            if marks.kind != "marks" or len(marks.fds) != 1:
                raise SharedMemoryError(f"the segment is a {marks.kind} of {len(marks.fds)} files, not marks")
            self._marks = open_memory(marks.fds[0], is_writable=True)
            if self._marks.size < count * sizeof(uint64_t):
                raise SharedMemoryError(f"{self._marks.size} bytes are too few for the marks of {count} records")
        self.table = FieldTable(model)
        self._is_converting = is_converting
        self._read_model = converted_model(model) if is_converting else model
        self._blank = bytes(model.new())
        if len(self._blank) != region._geometry.payload_size:
            raise SharedMemoryError(f"a record of {model.name!r} has {len(self._blank)} bytes, records of the region have another size")
        self._last = <uint8_t *>calloc(count, region._geometry.payload_size)
        self._generations = <uint64_t *>calloc(count, sizeof(uint64_t))
        if self._last is NULL or self._generations is NULL:
            raise MemoryError
        self._region = region
        self._memory = region._mapping
        self.geometry = &region._geometry

    def __dealloc__(self):
        free(self._last)
        free(self._generations)

    @property
    def record_count(self) -> int:
        return self._region.record_count

    def read(self, slot, timeout_ns = 0) -> RecordState | None:
        """Return the newest record, or None if it was never written. Raises the errors of RegionReader.read()."""
        cdef Head head
        cdef uint64_t[PARTS_MAX] part_generations
        cdef uint64_t place = self.place(slot)
        cdef bytes payload = PyBytes_FromStringAndSize(NULL, self.geometry.payload_size)
        if not self._region.take(
            place, timeout_ns, <uint8_t *>PyBytes_AS_STRING(payload), &head, part_generations
        ):
            return None
        return self.absorb(place, payload, &head)

    def is_withdrawn(self, slot) -> bool:
        """True if the record was withdrawn and not written since."""
        cdef const uint8_t *record = self.geometry.records + self.place(slot) * self.geometry.stride
        return load_acquire(record) != 0 and load_u32(record + RECORD_MERGED_AT) & <uint32_t>RECORD_WITHDRAWN != 0

    def is_updated(self, slot) -> bool:
        """True if the record was written since the last read, or is being written."""
        cdef uint64_t place = self.place(slot)
        return load_acquire(self.geometry.records + place * self.geometry.stride) > self._generations[place]

    def delta(self, slot, timeout_ns = 0) -> tuple:
        """Return the names of the fields that differ from the last read, without changing it."""
        cdef Head head
        cdef uint64_t[PARTS_MAX] part_generations
        cdef uint64_t[MASK_WORDS] mask
        cdef uint64_t place = self.place(slot)
        if load_acquire(self.geometry.records + place * self.geometry.stride) == self._generations[place]:
            return ()
        cdef bytes payload = PyBytes_FromStringAndSize(NULL, self.geometry.payload_size)
        cdef const uint8_t *now = <const uint8_t *>PyBytes_AS_STRING(payload)
        if not self._region.take(place, timeout_ns, <uint8_t *>now, &head, part_generations):
            return ()
        if self._generations[place] == 0:
            return self.table.names
        self.empty(<uint8_t *>now, &head)
        compare_fields(self.table.places, self.table.count, self.last(place), now, mask)
        return self.table.names_of(mask)

    def forget(self, slot) -> None:
        """Forget the last read: the slot belongs to another record now."""
        self._generations[self.place(slot)] = 0

    def close(self) -> None:
        """Release the region. A second call has no effect."""
        self._region.close()
        self._marks = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    cdef uint64_t place(self, slot) except? 0:
        self._region.mapping()
        return self._region.place(slot)

    cdef const uint8_t *last(self, uint64_t slot) noexcept:
        return self._last + slot * self.geometry.payload_size

    cdef void empty(self, uint8_t *payload, const Head *head) noexcept:
        if head.merged & <uint32_t>RECORD_WITHDRAWN:
            memcpy(payload, PyBytes_AS_STRING(self._blank), self.geometry.payload_size)

    cdef RecordState absorb(self, uint64_t slot, bytes payload, const Head *head):
        cdef RecordState state = RecordState.__new__(RecordState)
        cdef uint8_t *now = <uint8_t *>PyBytes_AS_STRING(payload)
        self.empty(now, head)
        if self._generations[slot]:
            compare_fields(self.table.places, self.table.count, self.last(slot), now, state._mask)
        else:
            memset(state._mask, 0xFF, sizeof(state._mask))
        state.payload = payload
        state.update_count = head.generation >> 1
        state.since_count = self._generations[slot] >> 1
        state.merged = head.merged & <uint32_t>RECORD_MERGED_MAX
        state.is_withdrawn = head.merged & <uint32_t>RECORD_WITHDRAWN != 0
        state.started_ns, state.finished_ns, state.issued_ns = head.started_ns, head.finished_ns, head.issued_ns
        state._table = self.table
        state.model = self._read_model
        memcpy(self._last + slot * self.geometry.payload_size, now, self.geometry.payload_size)
        self._generations[slot] = head.generation
        self.read_count += 1
        if self._marks is not None:
            store_release(self._marks.start + slot * sizeof(uint64_t), head.generation)
        if self._is_converting:
            convert_prices(self.table.places, self.table.count, now, self.geometry.payload_size)
        return state
