"""Classification of records; _classify.pxd has the data structures."""

from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from penstock.model._numbers cimport text_size
from penstock.topics._predicate cimport Program, evaluate

from penstock.base.errors import LocalProtocolError

cdef enum:
    SLOTS = 2 * VALUES_MAX


cdef class ValueTest:
    """Matches a text or enum field with a regular expression.

    `matches` is called once for each value, as bytes without padding; for an enum, once for each of its names.
    """

    def __cinit__(self, field not None, matches not None):
        self._matches = matches
        self.table.matches = <PyObject *>matches
        self.table.offset, self.table.size = field.offset, field.size
        self.table.is_enum = field.type == "enum"
        if self.table.is_enum:
            for name, number in field.values.items():
                self.table.by_number[number] = bool(matches(name.encode()))
            return
        if field.type != "text":
            raise LocalProtocolError(f"field {field.name!r} is {field.type_text}, expressions need texts or enums")
        self.table.known = <Known *>calloc(SLOTS, sizeof(Known))
        self.table.values = <uint8_t *>calloc(SLOTS, self.table.size)
        if self.table.known is NULL or self.table.values is NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.table.known)
        free(self.table.values)

    def __len__(self):
        """Number of cached values."""
        return self.table.count

    def __call__(self, const unsigned char[::1] record not None):
        return bool(record.shape[0] and _holds(&self.table, &record[0], record.shape[0]))


cdef bint _holds(ValueTable *table, const uint8_t *record, uint32_t size) noexcept nogil:
    cdef const uint8_t *place
    cdef uint64_t hash
    cdef uint32_t slot
    if <uint64_t>table.offset + table.size > size:
        return False
    place = record + table.offset
    if table.is_enum:
        return table.by_number[place[0]]
    hash = _hash(place, table.size)
    slot = hash % SLOTS
    while table.known[slot].hash:
        if table.known[slot].hash == hash and memcmp(table.values + <uint64_t>slot * table.size, place, table.size) == 0:
            return table.known[slot].is_match
        slot = (slot + 1) % SLOTS
    with gil:
        return _learn(table, slot, hash, place)


cdef bint _learn(ValueTable *table, uint32_t slot, uint64_t hash, const uint8_t *place) noexcept:
    cdef bint is_match = bool((<object>table.matches)(place[:text_size(place, table.size)]))
    if table.count == VALUES_MAX:
        memset(table.known, 0, SLOTS * sizeof(Known))
        table.count = 0
        slot = hash % SLOTS
    table.known[slot] = Known(hash, is_match)
    memcpy(table.values + <uint64_t>slot * table.size, place, table.size)
    table.count += 1
    return is_match


cdef inline uint64_t _hash(const uint8_t *place, uint32_t size) noexcept nogil:
    """FNV-1a, then mixed; never 0. Chosen collisions cost at most VALUES_MAX comparisons."""
    cdef uint64_t hash = 0xCBF29CE484222325ULL
    cdef uint32_t index
    for index in range(size):
        hash = (hash ^ place[index]) * 0x100000001B3ULL
    return (hash ^ (hash >> 29)) | 1


cdef inline bint _all_hold(ValueTable **tests, uint32_t count, const uint8_t *record, uint32_t size) noexcept nogil:
    cdef uint32_t index
    for index in range(count):
        if not _holds(tests[index], record, size):
            return False
    return True


cdef class ClassProgram:
    """`steps` are (Program or None, ValueTests, class). The first step that matches decides, otherwise `otherwise`."""

    def __cinit__(self, steps not None, uint8_t otherwise):
        cdef uint32_t index, test_at = 0
        cdef Program program
        tests = [test for _, tests, _ in steps for test in tests]
        self._held = tuple(steps), tuple(tests)
        self.static_class = 0 if steps else otherwise
        self.rules.otherwise = otherwise
        self.rules.step_count = len(steps)
        self.rules.steps = <Step *>calloc(len(steps) + 1, sizeof(Step))
        self.rules.tests = <ValueTable **>calloc(len(tests) + 1, sizeof(ValueTable *))
        if self.rules.steps is NULL or self.rules.tests is NULL:
            raise MemoryError
        for index, (condition, step_tests, cls) in enumerate(steps):
            self.rules.steps[index] = Step(NULL, NULL, 0, test_at, len(step_tests), cls)
            if condition is not None:
                program = condition
                self.rules.steps[index].nodes, self.rules.steps[index].pool = program.nodes, program.pool
                self.rules.steps[index].entry = program.entry
            for test in step_tests:
                self.rules.tests[test_at] = &(<ValueTest?>test).table
                test_at += 1

    def __dealloc__(self):
        free(self.rules.steps)
        free(self.rules.tests)

    def __call__(self, const unsigned char[::1] record not None) -> int:
        """Return the class of an update with this record."""
        return self.classify(&record[0] if record.shape[0] else NULL, record.shape[0])

    cdef uint8_t classify(self, const uint8_t *record, uint32_t size) noexcept nogil:
        cdef uint32_t index
        cdef const Step *step
        for index in range(self.rules.step_count):
            step = &self.rules.steps[index]
            if step.nodes is not NULL and not evaluate(step.nodes, step.entry, step.pool, record, size):
                continue
            if _all_hold(self.rules.tests + step.first_test, step.test_count, record, size):
                return step.cls
        return self.rules.otherwise
