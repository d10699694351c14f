"""Conflation: merges updates of an item into one record by the model's contract, see _conflate.pxd."""

from libc.math cimport isnan
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from penstock.base.errors import LimitError, LocalProtocolError, ModelError
from penstock.model._numbers cimport F4, F8, TEXT, U8, read_float, read_integer, storage_of, text_size

cdef extern from *:
    bint add_signed "__builtin_saddll_overflow"(long long left, long long right, long long *sum) nogil
    bint add_unsigned "__builtin_uaddll_overflow"(
        unsigned long long left, unsigned long long right, unsigned long long *sum
    ) nogil

cdef dict RULES = {"first": RULE_FIRST, "max": RULE_MAX, "min": RULE_MIN, "sum": RULE_SUM}

cdef enum:
    BLOCK_SPANS = 256


cdef void merge(
    const Contract *contract,
    uint8_t *held, uint32_t held_size, uint16_t held_version,
    const uint8_t *update, uint32_t size, uint16_t version,
) noexcept nogil:
    cdef uint32_t index, end
    cdef const ContractField *field
    cdef uint16_t version_both = min(held_version, version)
    cdef uint32_t size_both = min(held_size, size)
    for index in range(contract.stretch_count):
        if contract.stretches[index].offset >= size:
            break
        end = min(contract.stretches[index].end, size)
        memcpy(
            held + contract.stretches[index].offset,
            update + contract.stretches[index].offset,
            end - contract.stretches[index].offset,
        )
    for index in range(contract.field_count):
        field = &contract.fields[index]
        if field.offset >= size:
            break
        end = field.offset + field.size
        if field.since <= version_both and end <= size_both:
            _combine(field, held + field.offset, update + field.offset)
        else:
            memcpy(held + field.offset, update + field.offset, min(end, size) - field.offset)


cdef inline void _combine(const ContractField *field, uint8_t *held, const uint8_t *update) noexcept nogil:
    if _is_missing(field, held):
        memcpy(held, update, field.size)
    elif field.rule != RULE_FIRST and not _is_missing(field, update):
        if field.storage == F4 or field.storage == F8:
            _combine_floats(field, held, update)
        elif field.storage == U8:
            _combine_unsigned(field, held, update)
        else:
            _combine_integers(field, held, update)


cdef inline bint _is_missing(const ContractField *field, const uint8_t *place) noexcept nogil:
    if field.storage == F4 or field.storage == F8:
        return isnan(read_float(field.storage, place))
    if not field.optional:
        return False
    if field.storage == TEXT:
        return text_size(place, field.size) == 0
    return read_integer(field.storage, place) == field.missing


cdef inline void _combine_floats(const ContractField *field, uint8_t *held, const uint8_t *update) noexcept nogil:
    cdef double left = read_float(field.storage, held), right = read_float(field.storage, update)
    cdef float narrow
    if field.rule == RULE_MAX:
        left = right if right > left else left
    elif field.rule == RULE_MIN:
        left = right if right < left else left
    else:
        left += right
    if field.storage == F8:
        memcpy(held, &left, 8)
    else:
        narrow = <float>left
        memcpy(held, &narrow, 4)


cdef inline void _combine_unsigned(const ContractField *field, uint8_t *held, const uint8_t *update) noexcept nogil:
    cdef unsigned long long left, right
    memcpy(&left, held, 8)
    memcpy(&right, update, 8)
    if field.rule == RULE_MAX:
        left = max(left, right)
    elif field.rule == RULE_MIN:
        left = min(left, right)
    elif add_unsigned(left, right, &left) or left > <uint64_t>field.high:
        left = <uint64_t>field.high
    memcpy(held, &left, 8)


cdef inline void _combine_integers(const ContractField *field, uint8_t *held, const uint8_t *update) noexcept nogil:
    cdef long long left = read_integer(field.storage, held)
    cdef long long right = read_integer(field.storage, update)
    if field.rule == RULE_MAX:
        left = max(left, right)
    elif field.rule == RULE_MIN:
        left = min(left, right)
    elif add_signed(left, right, &left):
        left = field.high if right > 0 else field.low
    else:
        left = min(max(left, field.low), field.high)
    memcpy(held, &left, field.size)  # little-endian: the low bytes come first


cdef class ConflationPlan:
    """The contract of one model and its older versions; created by of().

    A model with conflate = false, or with a field marked "never", does not allow conflation: each of its updates
    counts.
    """

    def __cinit__(self, model not None):
        kept = [field for field in model.fields if field.conflate in RULES]
        self.model = model
        self.is_conflatable = model.conflate and all(field.conflate != "never" for field in model.fields)
        self.needs_accumulator = self.is_conflatable and len(kept) > 0
        self.contract.field_count = len(kept)
        self.contract.fields = <ContractField *>calloc(len(kept) + 1, sizeof(ContractField))
        self.contract.stretches = <Stretch *>calloc(len(kept) + 1, sizeof(Stretch))
        if self.contract.fields is NULL or self.contract.stretches is NULL:
            raise MemoryError
        cdef uint32_t end = 0, index
        for index, field in enumerate(kept):
            _fill(&self.contract.fields[index], field)
            if field.offset > end:
                _add_stretch(&self.contract, end, field.offset)
            end = field.offset + field.size
        _add_stretch(&self.contract, end, 0xFFFFFFFF)  # records of newer versions are longer

    def __dealloc__(self):
        free(self.contract.fields)
        free(self.contract.stretches)

    @staticmethod
    def of(model) -> ConflationPlan:
        return ConflationPlan(model)

    def merged(
        self, const unsigned char[::1] held not None, const unsigned char[::1] update not None,
        held_version=None, version=None,
    ) -> bytes:
        """What a record held and a newer update conflate to; versions are the model's unless they are given."""
        if not self.is_conflatable:
            raise LocalProtocolError(f"updates of model {self.model.name!r} are never conflated")
        for record, name in ((held, "held"), (update, "update")):
            if len(record) == 0:
                raise ModelError(f"the record {name} is empty")
        cdef bytearray out = bytearray(max(len(held), len(update)))
        cdef unsigned char[::1] view = out
        view[:held.shape[0]] = held
        merge(
            &self.contract,
            &view[0], held.shape[0], self.model.version if held_version is None else held_version,
            &update[0], update.shape[0], self.model.version if version is None else version,
        )
        return bytes(out[:len(update)])


cdef void _add_stretch(Contract *contract, uint32_t offset, uint32_t end) noexcept:
    contract.stretches[contract.stretch_count] = Stretch(offset, end)
    contract.stretch_count += 1


cdef int _fill(ContractField *kept, field) except -1:
    kept.offset, kept.size, kept.since = field.offset, field.size, field.since
    kept.storage = storage_of(field.storage)
    kept.rule = RULES[field.conflate]
    kept.optional = field.optional
    low, high = field.bounds
    kept.low = low
    kept.high = <int64_t><uint64_t>high if kept.storage == U8 else high
    if field.missing is not None:
        kept.missing = <int64_t><uint64_t>field.missing if kept.storage == U8 else field.missing
    return 0


cdef class SpanStore:
    """Waiting records of one model, at most `spans_max`."""

    def __cinit__(self, ConflationPlan plan not None, uint32_t spans_max):
        if not plan.is_conflatable:
            raise LocalProtocolError(f"updates of model {plan.model.name!r} are never conflated")
        if spans_max == 0xFFFFFFFF:
            raise LimitError(f"a store cannot hold {spans_max} spans")
        self.plan = plan
        self.spans_max = spans_max

    def __dealloc__(self):
        cdef uint32_t block, index
        for block in range(self.block_count):
            for index in range(BLOCK_SPANS):
                free(self.blocks[block][index].record)
            free(self.blocks[block])
        free(self.blocks)

    def put(
        self, uint32_t number, const unsigned char[::1] update not None, uint16_t version, uint64_t item_version,
        int64_t started_ns=0,
    ) -> int:
        """Merge the update into the span of this number, or begin a span if it is NO_SPAN. Return the span's number."""
        if number != NO_SPAN:
            _check(self, number)
        if update.shape[0] == 0:
            raise ModelError("the record is empty")
        if not self.hold(&number, &update[0], update.shape[0], version, item_version, started_ns):
            raise LimitError(f"the limit of {self.spans_max} waiting records is reached")
        return number

    def take(self, uint32_t number) -> tuple[int, int, int, int, bytes]:
        """Remove a span. Return its first and last version, number of updates, model version and record."""
        _check(self, number)
        cdef Span *span = self.at(number)
        taken = span.first, span.last, span.merged, span.version, span.record[:span.size]
        self.release(&number)
        return taken

    cdef bint hold(
        self, uint32_t *number, const uint8_t *update, uint32_t size, uint16_t version,
        uint64_t item_version, int64_t started_ns,
    ) noexcept nogil:
        cdef uint32_t taken = number[0] if number[0] else _take(self)
        cdef Span *span
        if taken == NO_SPAN:
            return False
        span = self.at(taken)
        if not _has_room(span, size):
            if number[0] == NO_SPAN:
                self.release(&taken)
            return False
        number[0] = taken
        if span.merged:
            merge(&self.plan.contract, span.record, span.size, span.version, update, size, version)
        else:
            span.first = item_version
            memcpy(span.record, update, size)
        span.merged += 1
        span.last = item_version
        span.started_ns = started_ns
        span.size = size
        span.version = version
        return True

    cdef Span *at(self, uint32_t number) noexcept nogil:
        return &self.blocks[(number - 1) // BLOCK_SPANS][(number - 1) % BLOCK_SPANS]

    cdef const uint8_t *record(self, uint32_t number) noexcept nogil:
        return self.at(number).record

    cdef void release(self, uint32_t *number) noexcept nogil:
        cdef Span *span
        if number[0] != NO_SPAN:
            span = self.at(number[0])
            span.merged = 0
            span.next_free = self.free
            self.free = number[0]
            self.in_use -= 1
            number[0] = NO_SPAN


cdef int _check(SpanStore store, uint32_t number) except -1:
    if not 0 < number <= store.made or store.at(number).merged == 0:
        raise LocalProtocolError(f"unknown span {number}")
    return 0


cdef uint32_t _take(SpanStore store) noexcept nogil:
    cdef uint32_t number = store.free
    if number != NO_SPAN:
        store.free = store.at(number).next_free
    elif store.made < store.spans_max and _has_block(store, store.made // BLOCK_SPANS):
        store.made += 1
        number = store.made
    else:
        return NO_SPAN
    store.in_use += 1
    return number


cdef bint _has_block(SpanStore store, uint32_t index) noexcept nogil:
    cdef void *blocks
    if index < store.block_count:
        return True
    blocks = realloc(store.blocks, (index + 1) * sizeof(Span *))
    if blocks is NULL:
        return False
    store.blocks = <Span **>blocks
    store.blocks[index] = <Span *>calloc(BLOCK_SPANS, sizeof(Span))
    if store.blocks[index] is NULL:
        return False
    store.block_count = index + 1
    return True


cdef bint _has_room(Span *span, uint32_t size) noexcept nogil:
    cdef void *bigger
    if size > span.capacity or span.record is NULL:
        bigger = realloc(span.record, max(size, <uint32_t>8))
        if bigger is NULL:
            return False
        span.record = <uint8_t *>bigger
        span.capacity = max(size, <uint32_t>8)
    return True
