"""Plans as the kernels read them; _program.pxd describes the memory."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from penstock.base.counters import Cause
from penstock.base.errors import LimitError

FAULT_CAUSES = {
    FAULT_TYPE: Cause.KIND,
    FAULT_LENGTH: Cause.LENGTH,
    FAULT_NUMBER: Cause.NUMBER,
    FAULT_RANGE: Cause.RANGE,
    FAULT_MISSING: Cause.MISSING,
    FAULT_ENUMERATION: Cause.ENUMERATION,
    FAULT_TEXT: Cause.TEXT,
    FAULT_FUNCTION: Cause.FUNCTION,
    FAULT_VALUE: Cause.VALUE,
    FAULT_LIMIT: Cause.STATE_LIMIT,
    FAULT_ORDER: Cause.UNKNOWN_ORDER,
    FAULT_TRADE: Cause.UNKNOWN_TRADE,
    FAULT_INSTRUMENT: Cause.UNKNOWN_INSTRUMENT,
    FAULT_DUPLICATE_ORDER: Cause.DUPLICATE_ORDER,
    FAULT_EXCESS: Cause.EXCESS,
    FAULT_DECIMALS: Cause.DECIMALS,
}
"""Those up to Cause.STATE_LIMIT are faults of the message itself; the others come of what was never received."""

OPS_MAX = 65_536


cdef class Program:
    """Made by plan.py, never changed, used by any number of converters at once."""

    def __cinit__(
        self, *, list ops, list routes, list outputs, list maps, tuple functions, image, str layout, separator, type_place
    ):
        if len(ops) > OPS_MAX or len(routes) > TYPES or len(outputs) > TYPES - 1:
            raise LimitError(
                f"the plan has {len(ops)} operations, {len(routes)} messages and {len(outputs)} outputs",
                hint=f"at most {OPS_MAX}, {TYPES} and {TYPES - 1}",
            )
        self.functions = functions
        self._kept = []
        self.is_csv = layout == "csv"
        self.separator = ord(separator)
        self.type_at, self.type_size = type_place
        self.image_start, self.image_end = image
        put_ops(self, ops)
        put_routes(self, routes)
        put_outputs(self, outputs)
        put_maps(self, maps)
        measure(self)
        open_windows(self)
        find_keys(self)

    def __dealloc__(self):
        cdef int index
        free(self.ops)
        if self.maps is not NULL:
            for index in range(self.map_count):
                free(self.maps[index].keys)
                free(self.maps[index].numbers)
            free(self.maps)

    cdef int route_of(self, const uint8_t *data, uint32_t size) noexcept nogil:
        """The message's type, or -1; for lines, `data` and `size` are the column that tells it."""
        cdef uint64_t key = 0
        cdef int index
        if self.type_at < 0:
            return 0
        if not self.is_csv:
            if size < <uint32_t>(self.type_at + self.type_size):
                return -1
            data += self.type_at
            size = self.type_size
        if size == 1:
            return self.route_by_byte[data[0]]
        if size == 0 or size > 8:
            return -1
        memcpy(&key, data, size)
        for index in range(self.route_count):
            if self.type_keys[index] == key:
                return index
        return -1


cdef int put_ops(Program self, list ops) except -1:
    cdef Op *op
    cdef Py_ssize_t index
    self.ops = <Op *>calloc(len(ops) + 1, sizeof(Op))
    if self.ops is NULL:
        raise MemoryError
    for index in range(len(ops)):
        op = &self.ops[index]
        op.code, op.to, registers, op.offset, op.size, op.x, op.y = ops[index]
        op.a, op.b, op.c, op.d, op.e, op.f = registers
    return 0


cdef int put_routes(Program self, list routes) except -1:
    cdef Route *route
    cdef int index
    for index in range(256):
        self.route_by_byte[index] = -1
    self.route_count = len(routes)
    for index in range(self.route_count):
        route = &self.routes[index]
        key, route.values, route.steps, route.end, route.size_min, route.size_max, route.columns = routes[index]
        if key is not None:
            self.type_keys[index] = int.from_bytes(key, "little")
            if len(key) == 1:
                self.route_by_byte[<uint8_t>key[0]] = <int16_t>index
    return 0


cdef int put_outputs(Program self, list outputs) except -1:
    cdef Output *output
    cdef int index
    cdef bytes blank
    self.output_count = len(outputs)
    for index in range(self.output_count):
        output = &self.outputs[index]
        blank, output.model_id, output.model_version, output.topic_kind, output.is_about_instrument = outputs[index]
        output.record_size = <uint32_t>len(blank)
        output.blank = blank
        self._kept.append(blank)
    return 0


cdef int put_maps(Program self, list maps) except -1:
    cdef Map *into
    cdef int index
    self.maps = <Map *>calloc(len(maps) + 1, sizeof(Map))
    if self.maps is NULL:
        raise MemoryError
    self.map_count = len(maps)
    for index in range(self.map_count):
        numbers, otherwise = maps[index]
        put_map(&self.maps[index], numbers, otherwise)
    return 0


cdef int measure(Program self) except -1:
    """How much one source message can give; what is forwarded is measured by the message itself."""
    cdef uint32_t at, size, count
    cdef int index
    for index in range(self.route_count):
        size = count = 0
        for at in range(self.routes[index].steps, self.routes[index].end):
            if self.ops[at].code == CODE_EMIT:
                size += EMITTED_OVERHEAD + self.outputs[self.ops[at].x].record_size
                count += 1
            elif self.ops[at].code == CODE_FORWARD:
                self.forwards = True
                size += EMITTED_OVERHEAD + FORWARDED_SIZE_MAX
                count += 1
        self.emitted_size_max = max(self.emitted_size_max, size)
        self.emitted_max = max(self.emitted_max, count)
    size = count = 0
    for at in range(self.image_start, self.image_end):
        if self.ops[at].code == CODE_EMIT:
            size += EMITTED_OVERHEAD + self.outputs[self.ops[at].x].record_size
            count += 1
    self.emitted_size_max = max(self.emitted_size_max, size)
    self.emitted_max = max(self.emitted_max, count)
    self.emitted_max = max(self.emitted_max, 1)
    return 0


cdef int open_windows(Program self) except -1:
    """Numbers of any size are read in the same way, out of 8 bytes, by messages that have so many."""
    cdef const Route *route
    cdef uint32_t at
    cdef int index
    for index in range(self.route_count):
        route = &self.routes[index]
        for at in range(route.values, route.steps):
            if self.ops[at].code == CODE_LOAD_BIG or self.ops[at].code == CODE_LOAD_LITTLE:
                open_window(&self.ops[at], route.size_min)
    return 0


cdef int open_window(Op *op, uint32_t message_size) except -1:
    cdef uint32_t end = op.offset + op.size
    cdef uint32_t start = min(op.offset, message_size - 8) if message_size >= 8 else 0
    if op.size == 0 or start + 8 < end or end > message_size:
        return 0
    op.x = -1 if op.size == 8 else (<int64_t>1 << 8 * op.size) - 1
    if op.code == CODE_LOAD_BIG:
        op.code = CODE_LOAD_BIG_WINDOW
        op.size = 8 * (start + 8 - end)
    else:
        op.code = CODE_LOAD_LITTLE_WINDOW
        op.size = 8 * (op.offset - start)
    op.offset = start
    return 0


cdef int find_keys(Program self) except -1:
    """Where in each message its order and its instrument are told."""
    cdef uint32_t at
    cdef uint8_t code
    cdef int index
    self.looks_ahead = not self.is_csv and self.type_at >= 0 and self.type_size == 1
    for index in range(self.route_count):
        for at in range(self.routes[index].steps, self.routes[index].end):
            code = self.ops[at].code
            if code == CODE_INSTRUMENT:
                put_window(self, index, self.ops[at].a, &self.routes[index].instrument)
            elif CODE_ORDER_ADD <= code <= CODE_ORDER_REPLACE:
                put_window(self, index, self.ops[at].a, &self.routes[index].order)
                if code == CODE_ORDER_REPLACE:
                    put_window(self, index, self.ops[at].b, &self.routes[index].new_order)
    return 0


cdef int put_window(Program self, int index, uint8_t register, Window *window) except -1:
    cdef const Op *op
    cdef uint32_t at
    for at in range(self.routes[index].values, self.routes[index].steps):
        op = &self.ops[at]
        if op.to == register and (op.code == CODE_LOAD_BIG_WINDOW or op.code == CODE_LOAD_LITTLE_WINDOW):
            window.offset = op.offset
            window.shift = op.size
            window.mask = <uint64_t>op.x
            window.is_big = op.code == CODE_LOAD_BIG_WINDOW
    return 0


cdef int put_map(Map *into, dict numbers, otherwise) except -1:
    cdef int index
    keys = sorted(numbers)
    into.keys = <uint64_t *>calloc(len(keys) + 1, sizeof(uint64_t))
    into.numbers = <int64_t *>calloc(len(keys) + 1, sizeof(int64_t))
    if into.keys is NULL or into.numbers is NULL:
        raise MemoryError
    into.count = <uint32_t>len(keys)
    into.otherwise = MISSING() if otherwise is None else <int64_t>otherwise
    for index in range(256):
        into.bytes[index] = into.otherwise
    for index, key in enumerate(keys):
        into.keys[index] = key
        into.numbers[index] = numbers[key]
        if key < 256:
            into.bytes[key] = numbers[key]
    return 0
