"""The converter's kernel: one source message after another through the plan, numbered and checkpointed."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from penstock.convert.kernel._ahead cimport AHEAD, look_ahead
from penstock.convert.kernel._converted cimport Converted
from penstock.convert.kernel._directory cimport Directory
from penstock.convert.kernel._frame cimport Frame
from penstock.convert.kernel._program cimport *
from penstock.convert.kernel._source cimport SourceBatch, SourceRow
from penstock.convert.books._state cimport StateKernel
from penstock.convert.kernel._steps cimport run_steps
from penstock.convert.books._units cimport HOURS_ENDED, LIMIT_INSTRUMENTS, LOCATE_NONE
from penstock.convert.kernel._values cimport run_values, split_columns
from penstock.wire._codec cimport (
    EXTENSION_HEADER_SIZE,
    EXTENSION_ORIGIN,
    EXTENSION_SIZE_AT,
    EXTENSION_TYPE_AT,
    ORIGIN_FLAGS_AT,
    ORIGIN_IMAGE,
    ORIGIN_MESSAGE_SEQUENCE_AT,
    ORIGIN_SIZE,
    ORIGIN_STREAM_ID_AT,
    ORIGIN_TERM_AT,
    load_u16,
    load_u32,
    store_u16,
    store_u32,
    store_u64,
)

from penstock.base.errors import LocalProtocolError
from penstock.convert.kernel._program import FAULT_CAUSES
from penstock.convert.checkpoint import Checkpoint

cdef enum:
    CHECKPOINTS = 4096
    FORWARDED_TOPIC_SIZE = 256

cdef class ConverterKernel:
    """See penstock.convert.converter.Converter."""

    def __cinit__(self, plan, uint32_t stream_id, StateKernel state not None, uint64_t checkpoint_interval, on_fault):
        if checkpoint_interval == 0:
            raise LocalProtocolError("a checkpoint interval of 0 source messages")
        self.program = plan.program
        self.kernel_state = state
        self._on_fault = on_fault
        self.interval = checkpoint_interval
        self.kept = []
        self.marks = <Mark *>PyMem_Calloc(CHECKPOINTS, sizeof(Mark))
        if self.marks is NULL:
            raise MemoryError
        memset(&self.frame, 0, sizeof(Frame))
        self.frame.maps = self.program.maps
        self.frame.outputs = self.program.outputs
        self.frame.functions = <void *>self.program.functions
        self.frame.kept = <void *>self.kept
        self.frame.state = state.state
        self.frame.message_sequence = 1
        store_u16(self.frame.origin + EXTENSION_TYPE_AT, EXTENSION_ORIGIN)
        store_u16(self.frame.origin + EXTENSION_SIZE_AT, ORIGIN_SIZE - EXTENSION_HEADER_SIZE)
        store_u32(self.frame.origin + ORIGIN_STREAM_ID_AT, stream_id)
        self.directory = Directory(plan)
        self.directory.attach(&self.frame)
        self.frame.directory = <void *>self.directory
        self.converted = Converted(self.directory)

    def __dealloc__(self):
        PyMem_Free(self.marks)

    # Numbering

    @property
    def stream_id(self) -> int:
        return load_u32(self.frame.origin + ORIGIN_STREAM_ID_AT)

    @property
    def next_source_sequence(self) -> int:
        """The source message that comes next; 0 before the first."""
        return self.next_source

    @property
    def next_message_sequence(self) -> int:
        """The number of the next application message."""
        return self.frame.message_sequence

    @next_message_sequence.setter
    def next_message_sequence(self, uint64_t number):
        self.frame.message_sequence = number

    @property
    def term(self) -> int:
        return load_u32(self.frame.origin + ORIGIN_TERM_AT)

    @term.setter
    def term(self, uint32_t term):
        store_u32(self.frame.origin + ORIGIN_TERM_AT, term)

    @property
    def flags(self) -> int:
        """OriginFlag of every message from now on."""
        return load_u16(self.frame.origin + ORIGIN_FLAGS_AT)

    @flags.setter
    def flags(self, int flags):
        store_u16(self.frame.origin + ORIGIN_FLAGS_AT, <uint16_t>flags)

    @property
    def is_over(self) -> bool:
        """Whether the feed has said that nothing more comes in this session."""
        return self.kernel_state.state.session.hours == HOURS_ENDED

    @property
    def checkpoint_interval(self) -> int:
        return self.interval

    def make_only(self, model_ids) -> None:
        """From now on make only messages of these models (None: all); the others are numbered and counted all the same."""
        wanted = None if model_ids is None else frozenset(model_ids)
        cdef int number
        for number in range(self.program.output_count):
            model_id = self.program.outputs[number].model_id
            self.frame.is_unwanted[number] = wanted is not None and model_id not in wanted

    def skip_to(self, uint64_t sequence) -> None:
        """Go on with this source message, whatever came before it; 0 goes on with any."""
        self.next_source = sequence

    # Conversion

    def convert(self, SourceBatch batch not None) -> Converted:
        """The application messages of these source messages; good until the next call."""
        with nogil:
            self.convert_rows(batch)
        return self.converted

    cdef int convert_rows(self, SourceBatch batch) except -1 nogil:
        cdef Py_ssize_t at = 0
        cdef Stop stop
        if self.is_own and not self.program.forwards and self.directory._installs == self.frame.state.installs:
            self.frame.payloads_used = 0
            self.frame.row_count = 0
        else:
            with gil:
                self.begin(self.converted, batch.count)
        while True:
            stop = run_batch(self, batch, &at)
            if stop != STOP_ROOM:
                break
            with gil:
                self.converted.grow(&self.frame, self.program.emitted_size_max, self.program.emitted_max)
        self.converted.take_back(&self.frame)
        if stop == STOP_JUMP:
            with gil:
                raise LocalProtocolError(
                    f"source message {batch.row[at].sequence} came where {self.next_source} was expected",
                    hint="skip_to() says that the messages between are lost",
                )
        return 0

    cdef int begin(self, Converted into, Py_ssize_t count) except -1:
        self.directory.refresh()
        if self.program.forwards:
            self.directory.begin_forwarding(<uint64_t>count * FORWARDED_TOPIC_SIZE)
        into.lend(&self.frame)
        self.is_own = into is self.converted
        return 0

    cdef int report(self, const SourceRow *row, int route, int fault) noexcept with gil:
        """Malformed messages are told at their first, second, fourth, eighth … time; all to who asked for each."""
        cdef uint64_t count = self.frame.faults[fault]
        reason = self.kept[len(self.kept) - 1] if fault == FAULT_FUNCTION and self.kept else None
        self.kept.clear()
        is_told = count & (count - 1) == 0
        if not is_told and self.on_each_fault is None:
            return 0
        excerpt = PyBytes_FromStringAndSize(<const char *>self.frame.data, min(row.size, 48)) if row.size else b""
        if is_told:
            self._on_fault(FAULT_CAUSES[fault], count, route, row.sequence, row.offset, row.size, excerpt, reason)
        if self.on_each_fault is not None:
            self.on_each_fault(FAULT_CAUSES[fault], route, row.sequence, row.offset, row.size, excerpt, reason)
        return 0

    # Checkpoints

    def take_checkpoints(self) -> list:
        """Those made since the last call, oldest first; of very many, the newest."""
        cdef uint64_t index
        first = max(self.marks_read, self.marks_made - min(self.marks_made, <uint64_t>CHECKPOINTS))
        self.marks_read = self.marks_made
        return [checkpoint_of(&self.marks[index % CHECKPOINTS]) for index in range(first, self.marks_made)]

    def checkpoint_now(self) -> Checkpoint:
        cdef Mark mark
        mark.next_source_sequence = self.next_source
        mark.next_message_sequence = self.frame.message_sequence
        mark.digest = self.frame.state.digest
        return checkpoint_of(&mark)

    # Images

    def image_of(self, wanted) -> Converted:
        """See Converter.image()."""
        cdef Converted into = Converted(self.directory)
        cdef uint64_t number = self.frame.message_sequence
        cdef uint64_t instrument, row
        cdef int flags = self.flags
        self.begin(into, 0)
        self.flags = flags | ORIGIN_IMAGE
        self.frame.source_sequence = self.next_source - (self.next_source != 0)
        self.frame.registers[REGISTER_SEQUENCE] = <int64_t>self.frame.source_sequence
        self.frame.registers[REGISTER_RECEIVE] = MISSING()
        self.frame.registers[REGISTER_CHANGED] = 1
        self.frame.registers[REGISTER_ALTERED] = 1
        try:
            for instrument in range(self.frame.state.counts[LIMIT_INSTRUMENTS]):
                if self.frame.state.instruments[instrument].reference.locate == LOCATE_NONE():
                    continue # the session has not named it: there is nothing to say of it yet
                if self.frame.payloads_used + self.program.emitted_size_max > into.payloads_room or (
                    self.frame.row_count + self.program.emitted_max > into.rows_room
                ):
                    into.grow(&self.frame, self.program.emitted_size_max, self.program.emitted_max)
                self.image_of_instrument(<uint32_t>instrument, wanted)
        finally:
            self.flags = flags
            self.frame.message_sequence = number
        for row in range(self.frame.row_count):
            store_u64(self.frame.payloads + self.frame.rows[row].extensions_offset + ORIGIN_MESSAGE_SEQUENCE_AT, number - 1)
        into.take_back(&self.frame)
        return into

    cdef int image_of_instrument(self, uint32_t instrument, wanted) except -1:
        cdef uint64_t first = self.frame.row_count
        cdef uint64_t row, kept
        self.frame.instrument = <int32_t>instrument
        self.frame.index = 0
        run_steps(&self.frame, self.program.ops, self.program.image_start, self.program.image_end)
        if wanted is None:
            return 0
        kept = first
        for row in range(first, self.frame.row_count):
            at = self.frame.rows[row].topic_offset
            topic = bytes(self.directory._data[at : at + self.frame.rows[row].topic_size]).decode()
            if wanted(topic):
                self.frame.rows[kept] = self.frame.rows[row]
                kept += 1
        self.frame.row_count = kept
        return 0

    # Counters

    def taken_of(self, int message) -> int:
        """Source messages of one type of the plan."""
        return self.taken[message]

    def emitted_of(self, int output) -> int:
        return self.frame.emitted[output]

    def faults_of(self, int fault) -> int:
        return self.frame.faults[fault]

    def repeated_count(self) -> int:
        return self.repeated


cdef object checkpoint_of(const Mark *mark):
    return Checkpoint(mark.next_source_sequence, mark.next_message_sequence, mark.digest)


cdef Stop run_batch(ConverterKernel self, SourceBatch batch, Py_ssize_t *at) noexcept nogil:
    cdef const SourceRow *row
    cdef Frame *frame = &self.frame
    cdef uint64_t payloads_end = self.converted.payloads_room - self.program.emitted_size_max
    cdef uint64_t rows_end = self.converted.rows_room - self.program.emitted_max
    cdef uint64_t mark_at = 0 # no message before this one needs a look whether it is to be marked
    cdef bint looks_ahead = self.program.looks_ahead and batch.count > 1
    if self.converted.payloads_room < self.program.emitted_size_max or self.converted.rows_room < self.program.emitted_max:
        return STOP_ROOM
    while at[0] < batch.count:
        row = &batch.row[at[0]]
        if frame.payloads_used > payloads_end or frame.row_count > rows_end:
            return STOP_ROOM
        if row.sequence != self.next_source and self.next_source != 0:
            if row.sequence > self.next_source:
                return STOP_JUMP
            self.repeated += 1
            at[0] += 1
            continue
        if looks_ahead and at[0] & (AHEAD - 1) == 0:
            look_ahead(self.program, frame, batch, at[0])
        convert_message(self, batch.data, row)
        at[0] += 1
        self.next_source = row.sequence + 1
        if self.next_source >= mark_at:
            mark_at = mark(self)
    return STOP_NONE


cdef uint64_t mark(ConverterKernel self) noexcept nogil:
    """Make a checkpoint, if one is due; returns where the next one is."""
    cdef uint64_t passed = self.next_source % self.interval
    cdef Mark *made
    if passed == 0:
        made = &self.marks[self.marks_made % CHECKPOINTS]
        made.next_source_sequence = self.next_source
        made.next_message_sequence = self.frame.message_sequence
        made.digest = self.frame.state.digest
        self.marks_made += 1
    return self.next_source - passed + self.interval


cdef inline void convert_message(ConverterKernel self, const uint8_t *data, const SourceRow *row) noexcept nogil:
    cdef Frame *frame = &self.frame
    cdef int route, fault
    frame.data = data + row.offset
    frame.size = row.size
    frame.instrument = -1
    frame.index = 0
    frame.source_sequence = row.sequence
    frame.registers[REGISTER_SEQUENCE] = <int64_t>row.sequence
    frame.registers[REGISTER_RECEIVE] = row.receive_ns if row.receive_ns else MISSING()
    frame.registers[REGISTER_CHANGED] = 0
    frame.registers[REGISTER_ALTERED] = 0
    route = route_message(self, frame)
    if route < 0:
        fault = FAULT_TYPE
    else:
        self.taken[route] += 1
        fault = run_message(self, frame, &self.program.routes[route])
    if fault:
        frame.faults[fault] += 1
        if fault <= FAULT_LIMIT:
            self.report(row, route, fault)


cdef inline int route_message(ConverterKernel self, Frame *frame) noexcept nogil:
    if self.program.looks_ahead:
        return self.program.route_by_byte[frame.data[self.program.type_at]] if frame.size > <uint32_t>self.program.type_at else -1
    if not self.program.is_csv:
        return self.program.route_of(frame.data, frame.size)
    split_columns(frame, self.program.separator)
    if self.program.type_at < 0:
        return 0
    if <uint32_t>self.program.type_at >= frame.column_count:
        return -1
    return self.program.route_of(frame.columns[self.program.type_at].at, <uint32_t>min(frame.columns[self.program.type_at].size, 9))


cdef inline int run_message(ConverterKernel self, Frame *frame, const Route *route) noexcept nogil:
    cdef const Op *ops = self.program.ops
    cdef int fault
    if not route.size_min <= frame.size <= route.size_max:
        return FAULT_LENGTH
    if self.program.is_csv and frame.column_count != route.columns:
        return FAULT_LENGTH
    fault = run_values(frame, ops + route.values, ops + route.steps)
    if fault:
        return fault
    return run_steps(frame, ops, route.steps, route.end)
