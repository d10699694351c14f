"""Evaluate predicates; see _predicate.pxd for the program's format. lowering.py creates programs."""

from libc.math cimport isnan
from libc.stdint cimport uint16_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from penstock.base.errors import LocalProtocolError
from penstock.model._numbers cimport F4, F8, TEXT, U8, read_float, read_integer, storage_of, text_size

cdef extern from *:
    ctypedef long long int128_t "__int128"

cdef int64_t NAN_KEY = 0x7FFFFFFFFFFFFFFF
cdef uint64_t SIGN_BIT = 0x8000000000000000ULL

cdef int[11] WIDTHS = [1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 0]


cdef class Program:
    """A validated decision graph: no program reads outside a record's bytes, and every run ends."""

    def __cinit__(self, nodes not None, int32_t entry, bytes pool not None):
        self.count = len(nodes)
        self.entry = entry
        self.pool_held = pool
        self.pool = pool
        self.nodes = <Node*>calloc(max(self.count, 1), sizeof(Node))
        if self.nodes == NULL:
            raise MemoryError
        _check_jump(-1, entry, self.count)
        cdef Py_ssize_t index
        for index in range(self.count):
            _fill(&self.nodes[index], nodes[index])
            _check(&self.nodes[index], index, self.count, len(pool))

    def __dealloc__(self):
        free(self.nodes)

    def __len__(self):
        return self.count

    def __call__(self, const unsigned char[::1] record not None):
        """True if the record matches."""
        # An empty record is never read: every test needs at least one byte.
        return bool(self.accepts(&record[0] if record.shape[0] else NULL, record.shape[0]))

    cdef bint accepts(self, const unsigned char* record, Py_ssize_t size) noexcept nogil:
        return evaluate(self.nodes, self.entry, self.pool, record, size)

    def select(self, const unsigned char[::1] data not None, Py_ssize_t stride, uint8_t[::1] passes not None):
        """Fill `passes` for the records in `data`, one every `stride` bytes."""
        cdef Py_ssize_t index, count = passes.shape[0]
        if count == 0:
            return
        if stride < 1 or data.shape[0] // stride < count:
            raise LocalProtocolError(f"{data.shape[0]} bytes do not hold {count} records of {stride} bytes")
        cdef const unsigned char* record = &data[0]
        with nogil:
            for index in range(count):
                passes[index] = evaluate(self.nodes, self.entry, self.pool, record, stride)
                record += stride

    def select_at(
        self,
        const unsigned char[::1] data not None,
        const uint32_t[::1] offsets not None,
        const uint32_t[::1] sizes not None,
        uint8_t[::1] passes not None,
    ):
        """Fill `passes` for the records at `offsets` with these sizes."""
        cdef Py_ssize_t index, count = passes.shape[0], end = data.shape[0]
        if offsets.shape[0] != count or sizes.shape[0] != count:
            raise LocalProtocolError("offsets and sizes differ in length")
        for index in range(count):
            if <uint64_t>offsets[index] + sizes[index] > <uint64_t>end:
                raise LocalProtocolError(f"record {index} ends outside the data")
        cdef const unsigned char* start = &data[0] if end else NULL
        with nogil:
            for index in range(count):
                passes[index] = evaluate(self.nodes, self.entry, self.pool, start + offsets[index], sizes[index])


cdef int _fill(Node* node, source) except -1:
    node.on_true, node.on_false, node.on_missing = source.on_true, source.on_false, source.on_missing
    test = source.test
    node.kind = test.kind
    node.signs = test.signs
    node.storage = storage_of(test.field.storage)
    node.offset, node.size, node.end = test.field.offset, test.field.size, test.field.end
    if test.right is not None:
        node.storage_right = storage_of(test.right.storage)
        node.offset_right, node.size_right = test.right.offset, test.right.size
        node.end = max(test.field.end, test.right.end)
    node.constant, node.constant_size = source.constant, source.constant_size
    node.low, node.high = test.low, test.high
    return 0


cdef int _check(const Node* node, Py_ssize_t index, Py_ssize_t count, Py_ssize_t pool_size) except -1:
    cdef bint both = node.kind >= KIND_FIELDS_NUMBER
    cdef bint text = node.kind in (KIND_TEXT, KIND_LIKE, KIND_FIELDS_TEXT)
    cdef uint64_t constant_bytes = 2 * <uint64_t>node.constant_size if node.kind == KIND_LIKE else node.constant_size
    for jump in (node.on_true, node.on_false, node.on_missing):
        _check_jump(index, jump, count)
    if (
        node.kind > KIND_FIELDS_TEXT
        or node.size < 1
        or text != (node.storage == TEXT)
        or (both and text != (node.storage_right == TEXT))
        or (not text and WIDTHS[node.storage] != <int>node.size)
        or (both and not text and WIDTHS[node.storage_right] != <int>node.size_right)
        or <uint64_t>node.offset + node.size > node.end
        or (both and <uint64_t>node.offset_right + node.size_right > node.end)
        or <uint64_t>node.constant + constant_bytes > <uint64_t>pool_size
    ):
        raise LocalProtocolError(f"node {index} of a predicate is malformed")
    return 0


cdef int _check_jump(Py_ssize_t index, Py_ssize_t jump, Py_ssize_t count) except -1:
    if jump != ACCEPT and jump != REJECT and not index < jump < count:
        raise LocalProtocolError(f"node {index} of a predicate has an invalid jump to {jump}")
    return 0


cdef bint evaluate(
    const Node* nodes, int32_t entry, const unsigned char* pool, const unsigned char* record, Py_ssize_t size
) noexcept nogil:
    cdef int32_t next_node = entry
    cdef const Node* node
    while next_node >= 0:
        node = &nodes[next_node]
        if size < <Py_ssize_t>node.end:
            next_node = node.on_missing
        elif holds(node, pool, record):
            next_node = node.on_true
        else:
            next_node = node.on_false
    return next_node == ACCEPT


cdef inline bint holds(const Node* node, const unsigned char* pool, const unsigned char* record) noexcept nogil:
    cdef const unsigned char* place = record + node.offset
    cdef int64_t value
    if node.kind == KIND_RANGE:
        value = key(node.storage, place)
        return node.low <= value and value <= node.high
    if node.kind == KIND_TEXT:
        return (sign_of_text(place, node.size, pool + node.constant, node.constant_size) & node.signs) != 0
    if node.kind == KIND_BITS:
        return (key(node.storage, place) & node.low) != 0
    if node.kind == KIND_LIKE:
        return like(place, text_size(place, node.size), pool + node.constant, node.constant_size)
    if node.kind == KIND_FIELDS_NUMBER:
        return (sign_of_numbers(node, record) & node.signs) != 0
    if node.kind == KIND_FIELDS_FLOAT:
        return (sign_of_floats(node, record) & node.signs) != 0
    return (sign_of_text(place, node.size, record + node.offset_right, node.size_right) & node.signs) != 0


cdef inline int64_t key(uint8_t storage, const unsigned char* place) noexcept nogil:
    """Return an integer with the order that Spark gives the values; unsigned 64-bit values are shifted down by
    2**63.
    """
    cdef int64_t integer
    if storage == F4 or storage == F8:
        return float_key(read_float(storage, place))
    integer = read_integer(storage, place)
    return <int64_t>(<uint64_t>integer ^ SIGN_BIT) if storage == U8 else integer


cdef inline int64_t float_key(double number) noexcept nogil:
    """Map doubles to integers in their order: -0.0 equals 0.0, and all NaNs are equal and above every other value."""
    cdef int64_t bits
    if isnan(number):
        return NAN_KEY
    number += 0.0  # makes -0.0 positive
    memcpy(&bits, &number, 8)
    return bits if bits >= 0 else <int64_t>(<uint64_t>bits ^ <uint64_t>NAN_KEY)


def key_of_float(double number):
    """Return the integer for a float in a range test."""
    return float_key(number)


cdef inline int128_t read_number(uint8_t storage, const unsigned char* place) noexcept nogil:
    cdef int64_t integer = read_integer(storage, place)
    return <int128_t><uint64_t>integer if storage == U8 else <int128_t>integer


cdef inline double read_double(uint8_t storage, const unsigned char* place) noexcept nogil:
    if storage == F4 or storage == F8:
        return read_float(storage, place)
    return <double>read_number(storage, place)


cdef int sign_of_numbers(const Node* node, const unsigned char* record) noexcept nogil:
    cdef int128_t left = read_number(node.storage, record + node.offset) * <int128_t>node.low
    cdef int128_t right = read_number(node.storage_right, record + node.offset_right) * <int128_t>node.high
    return SIGN_LESS if left < right else SIGN_GREATER if left > right else SIGN_EQUAL


cdef int sign_of_floats(const Node* node, const unsigned char* record) noexcept nogil:
    cdef int64_t left = float_key(read_double(node.storage, record + node.offset))
    cdef int64_t right = float_key(read_double(node.storage_right, record + node.offset_right))
    return SIGN_LESS if left < right else SIGN_GREATER if left > right else SIGN_EQUAL


cdef inline int sign_of_text(
    const unsigned char* left, Py_ssize_t left_size, const unsigned char* right, Py_ssize_t right_size
) noexcept nogil:
    """Compare bytewise, without trailing NULs; a prefix of the other text is less."""
    cdef Py_ssize_t common = left_size if left_size < right_size else right_size
    cdef int difference = memcmp(left, right, common)
    if difference != 0:
        return SIGN_LESS if difference < 0 else SIGN_GREATER
    if text_size(left + common, left_size - common) > 0:
        return SIGN_GREATER
    if text_size(right + common, right_size - common) > 0:
        return SIGN_LESS
    return SIGN_EQUAL


cdef bint like(
    const unsigned char* text, Py_ssize_t size, const unsigned char* tokens, Py_ssize_t count
) noexcept nogil:
    """Match tokens (bytes, ANY_CHARACTER, ANY_CHARACTERS); only the last ANY_CHARACTERS is backtracked."""
    cdef Py_ssize_t at = 0, token = 0, retry_at = 0, retry_token = -1
    cdef uint16_t wanted
    while at < size:
        wanted = 0
        if token < count:
            memcpy(&wanted, tokens + 2 * token, 2)
        if token < count and wanted == ANY_CHARACTERS:
            token += 1
            retry_token, retry_at = token, at
        elif token < count and wanted == ANY_CHARACTER:
            token += 1
            at = after_character(text, size, at)
        elif token < count and wanted == text[at]:
            token += 1
            at += 1
        elif retry_token >= 0:
            retry_at = after_character(text, size, retry_at)
            token, at = retry_token, retry_at
        else:
            return False
    while token < count:
        memcpy(&wanted, tokens + 2 * token, 2)
        if wanted != ANY_CHARACTERS:
            return False
        token += 1
    return True


cdef inline Py_ssize_t after_character(const unsigned char* text, Py_ssize_t size, Py_ssize_t at) noexcept nogil:
    """Return the position after one UTF-8 character: its first byte and the continuation bytes."""
    at += 1
    while at < size and (text[at] & 0xC0) == 0x80:
        at += 1
    return at
