"""Records as Python objects: one compiled descriptor per field reads and writes the record's bytes in place.

A Record checks once, when it is made, that its buffer holds every field of the record's version. A descriptor then
needs two comparisons before it reads: that the record is of its own layout, and that the record's version has the
field. Both checks are independent of the caller, so no Python code can read or write outside the buffer.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_FromDouble
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.math cimport fabs, isfinite, isnan, llrint
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from decimal import Decimal, InvalidOperation
from operator import index

from penstock.base.errors import ModelError
from penstock.model._numbers cimport F4, TEXT, U8, Storage, read_float, read_integer, storage_of, text_size

cdef extern from *:
    """
    static PyObject *new_instance(PyObject *type, PyObject *arguments) {
        return ((PyTypeObject *)type)->tp_new((PyTypeObject *)type, arguments, NULL);
    }
    """
    object new_instance(object type, object arguments)


cdef enum Kind:
    KIND_INTEGER
    KIND_FLOAT
    KIND_PRICE
    KIND_TEXT
    KIND_ENUM
    KIND_FLAGS

cdef dict KINDS = {
    "f32": KIND_FLOAT, "f64": KIND_FLOAT, "price": KIND_PRICE, "text": KIND_TEXT, "enum": KIND_ENUM, "flags": KIND_FLAGS,
}

cdef int64_t EXACT_MAX = 9007199254740992  # 2**53: integers up to this value are exact as doubles
cdef Py_ssize_t SIZE_MAX = 1 << 62  # larger than any record
cdef object LATER = object()  # stands for the memory of a record that is set after the record is made

cdef int DIGITS_MAX = 100  # a number with more digits fits no price; refuse it without further work


cdef class RecordLayout:
    """Data shared by all records of one model: their size, and the size that each version needs."""

    def __cinit__(self, Py_ssize_t record_size, int version, fields):
        self.record_size = record_size
        self.version = version
        sizes = {1: 0}
        for field in fields:
            sizes[field.since] = max(sizes.get(field.since, 0), field.offset + field.size)
        size = 0
        steps = []
        for since in sorted(sizes):
            size = max(size, sizes[since])
            steps.append((since, size))
        self.sizes_by_since = tuple(steps)
        self.accessors = tuple([make_accessor(self, field) for field in fields])
        self.accessors_by_name = {accessor.name: accessor for accessor in self.accessors}

    cdef int version_of(self, Py_ssize_t size, version) except -1:
        """Return the version for reading a record: its own, but at most the model's; check that the record is long
        enough.
        """
        cdef int own, since, best = 0
        cdef Py_ssize_t needed
        if version is not None and not 1 <= version <= 65_535:
            raise ModelError(f"record version {version} is outside 1 to 65535")
        own = self.version if version is None else min(version, self.version)
        for since, needed in self.sizes_by_since:
            if since > own:
                break
            if needed > size:
                if version is None and best:
                    return best
                raise ModelError(
                    f"the record has {size} bytes, but version {own if version is not None else since} needs {needed}"
                )
            # The fields of this step are present, and no field is added until the next step.
            best = since
        return own


# Hide the reference to the buffer's owner from the garbage collector, which would clear a garbage memoryview before the
# record releases its buffer. A record is never part of a cycle.
@cython.no_gc
cdef class Record:
    """A record of one model over a buffer, which the record keeps alive. Fields are attributes of the model's own
    subclass.
    """

    # version: the model version that the record was written with, if known
    # topic: the topic of the message; empty until a transport sets it
    # seq: the message's sequence number on its stream; None until a transport sets it

    def __cinit__(self, RecordLayout layout not None, data, version=None):
        self.topic = ""
        self.layout = layout
        if data is LATER:
            return
        PyObject_GetBuffer(data, &self.buffer, PyBUF_SIMPLE)
        self.held = True
        self.data = <unsigned char*>self.buffer.buf
        self.version_read = layout.version_of(self.buffer.len, version)
        self.version = self.version_read if version is None else version

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)

    @property
    def source(self):
        """The message's position in its source, in the form of the transport; None until a transport sets it."""
        if self._undecoded is not NULL:
            self._source = self._source(PyBytes_FromStringAndSize(<const char *>self._undecoded, self._undecoded_size))
            self._undecoded = NULL
        return self._source

    @source.setter
    def source(self, source):
        self._undecoded = NULL
        self._source = source

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.buffer.len, self.buffer.readonly, flags)

    def __len__(self):
        return self.buffer.len

    def __eq__(self, other):
        """True for records of the same model and version with equal bytes in every field."""
        if not isinstance(other, Record) or (<Record>other).layout is not self.layout:
            return NotImplemented
        cdef Record right = <Record>other
        if self.version_read != right.version_read:
            return False
        cdef FieldAccessor field
        for field in self.layout.accessors:
            if field.since <= self.version_read and memcmp(
                self.data + field.offset, right.data + field.offset, field.size
            ) != 0:
                return False
        return True

    def scaled(self, str name not None):
        """Return the scaled integer of a price, or of a quantity with decimals: 12.34 with four decimals is 123400.
        None if missing.
        """
        cdef FieldAccessor field = self.layout.accessors_by_name.get(name)
        if field is None:
            raise ModelError(f"the model has no field {name!r}")
        if field.kind != KIND_PRICE:
            raise ModelError(f"field {name!r} is neither a price nor a quantity with decimals")
        if field.since > self.version_read:
            return None
        cdef int64_t value = read_integer(field.storage, self.data + field.offset)
        return None if field.optional and value == field.missing else value


cdef class RecordMaker:
    """Makes records of one model and version in memory of bytes objects, for compiled readers of packets."""

    def __cinit__(self, made not None, RecordLayout layout not None, int version):
        """`made` is the Record's subclass for the layout."""
        if not isinstance(made, type) or not issubclass(made, Record):
            raise ModelError(f"{made!r} is not a class of records")
        self._type = made
        self._arguments = (layout, LATER)
        self._layout = layout
        self._version = version
        self._version_read = layout.version_of(SIZE_MAX, version)
        self.size_min = max([needed for since, needed in layout.sizes_by_since if since <= self._version_read])

    cdef Record make(self, bytes owner, Py_ssize_t at):
        """Return the record in `owner` from `at` to the end, which are at least `size_min` bytes."""
        cdef Record record = new_instance(self._type, self._arguments)
        PyBuffer_FillInfo(&record.buffer, owner, <char *>owner + at, PyBytes_GET_SIZE(owner) - at, True, PyBUF_SIMPLE)
        record.held = True
        record.data = <unsigned char *>record.buffer.buf
        record.version_read = self._version_read
        record.version = self._version
        return record

    cdef void set_source(self, Record record, const uint8_t *encoded, Py_ssize_t size, decode):
        """Set the source, which is in memory of the record's owner and is decoded when it is read."""
        record._source = decode
        record._undecoded = encoded
        record._undecoded_size = size


cdef class FieldAccessor:
    """The data descriptor of one field, created by its layout. A descriptor created elsewhere accepts no record."""

    cdef readonly str name
    cdef readonly str __doc__
    cdef RecordLayout layout
    cdef Kind kind
    cdef Storage storage
    cdef Py_ssize_t offset
    cdef Py_ssize_t size
    cdef int since
    cdef bint optional
    cdef str expected
    cdef int64_t missing
    cdef object low
    cdef object high
    cdef double power
    cdef object power_exact
    cdef int decimals
    cdef tuple names_by_number
    cdef dict numbers_by_name

    def __get__(self, instance, owner):
        if instance is None:
            return self
        cdef Record record = self._checked(instance)
        if self.since > record.version_read:
            return None
        return self._read(record.data + self.offset)

    def __set__(self, instance, value):
        cdef Record record = self._checked(instance)
        if record.buffer.readonly:
            raise ModelError(f"field {self.name!r} cannot be set: the record is read-only", hint="call copy() first")
        if self.since > record.version_read:
            raise ModelError(f"field {self.name!r} cannot be set: record version {record.version} does not have it")
        self._write(record.data + self.offset, value)

    cdef inline Record _checked(self, instance):
        if not isinstance(instance, Record) or (<Record>instance).layout is not self.layout:
            raise ModelError(f"{type(instance).__name__} is not a message of the model of field {self.name!r}")
        return <Record>instance

    cdef object _read(self, const unsigned char* place):
        cdef int64_t integer
        cdef double number
        if self.kind == KIND_TEXT:
            return self._read_text(place)
        if self.kind == KIND_FLOAT:
            number = read_float(self.storage, place)
            return None if self.optional and isnan(number) else PyFloat_FromDouble(number)
        integer = read_integer(self.storage, place)
        if self.optional and integer == self.missing:
            return None
        if self.kind == KIND_PRICE:
            # Both are exact as doubles, so the quotient is correctly rounded.
            if -EXACT_MAX <= integer <= EXACT_MAX:
                return PyFloat_FromDouble(<double>integer / self.power)
            return int(integer) / self.power_exact
        if self.kind == KIND_ENUM:
            return self.names_by_number[<uint8_t>integer]
        if self.kind == KIND_FLAGS:
            return frozenset([name for name, bit in self.numbers_by_name.items() if integer & bit])
        return <uint64_t>integer if self.storage == U8 else integer

    cdef object _read_text(self, const unsigned char* place):
        cdef Py_ssize_t size = text_size(place, self.size)
        if size == 0 and self.optional:
            return None
        return PyUnicode_DecodeUTF8(<const char*>place, size, b"replace")

    cdef int _write(self, unsigned char* place, value) except -1:
        cdef double number
        if value is None:
            if not self.optional:
                raise ModelError(f"field {self.name!r} cannot be missing")
            return write_missing(self, place)
        if self.kind == KIND_TEXT:
            return self._write_text(place, value)
        if self.kind == KIND_FLOAT:
            number = self._float_from(value)
            write_float(self.storage, place, number)
            return 0
        if self.kind == KIND_PRICE:
            return self._write_integer(place, self._scaled_from(value), value)
        if self.kind == KIND_ENUM:
            return self._write_integer(place, self._number_from(value), value)
        if self.kind == KIND_FLAGS:
            return self._write_flags(place, value)
        try:
            return self._write_integer(place, index(value), value)
        except TypeError:
            raise self._refusal(value, self.expected) from None

    cdef int _write_integer(self, unsigned char* place, integer, value) except -1:
        if not self.low <= integer <= self.high:
            if self.kind == KIND_PRICE:
                low, high = self.low / self.power_exact, self.high / self.power_exact
                raise self._refusal(value, f"{self.expected} from {low} to {high}")
            raise self._refusal(value, f"an integer from {self.low} to {self.high}")
        cdef uint64_t raw = integer & 0xFFFFFFFFFFFFFFFF
        memcpy(place, &raw, self.size)  # little-endian: the low bytes come first
        return 0

    cdef int _write_text(self, unsigned char* place, value) except -1:
        if not isinstance(value, str):
            raise self._refusal(value, "a text")
        try:
            encoded = (<str>value).encode("utf-8")
        except UnicodeEncodeError:
            raise self._refusal(value, "a text without surrogates") from None
        if len(encoded) > self.size or b"\0" in encoded:
            raise self._refusal(value, f"a text of at most {self.size} bytes in UTF-8, none of them NUL")
        memset(place, 0, self.size)
        memcpy(place, <const char*>encoded, len(encoded))
        return 0

    cdef int _write_flags(self, unsigned char* place, value) except -1:
        cdef uint64_t raw = <uint64_t>read_integer(self.storage, place)
        if isinstance(value, str):
            raise self._refusal(value, "a set of names")
        for bit in self.numbers_by_name.values():
            raw &= ~<uint64_t>bit
        try:
            for name in value:
                raw |= <uint64_t>self.numbers_by_name[name]
        except (TypeError, KeyError):
            raise self._refusal(value, f"a set of: {', '.join(self.numbers_by_name)}") from None
        memcpy(place, &raw, self.size)
        return 0

    cdef object _number_from(self, value):
        if isinstance(value, str):
            if value not in self.numbers_by_name:
                raise self._refusal(value, f"one of: {', '.join(self.numbers_by_name)}")
            return self.numbers_by_name[value]
        try:
            return index(value)
        except TypeError:
            raise self._refusal(value, f"one of: {', '.join(self.numbers_by_name)}") from None

    cdef double _float_from(self, value) except? -1.0:
        cdef double number
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise self._refusal(value, "a number") from None
        if self.storage == F4 and isfinite(number) and not isfinite(<float>number):
            raise self._refusal(value, "a number that 32 bits can hold")
        if self.optional and isnan(number):
            raise self._refusal(value, "a number; use None for a missing value")
        return number

    cdef object _scaled_from(self, value):
        """Return the scaled integer of a price given as int, float, Decimal or text; refuse values that would lose
        digits.
        """
        if isinstance(value, float):
            return self._scaled_from_float(value)
        if isinstance(value, str):
            try:
                return self._scaled_from_decimal(Decimal(value))
            except InvalidOperation:
                raise self._refusal(value, "a decimal number") from None
        if isinstance(value, Decimal):
            return self._scaled_from_decimal(value)
        try:
            return index(value) * self.power_exact
        except TypeError:
            raise self._refusal(value, "an int, float, Decimal or text") from None

    cdef object _scaled_from_float(self, value):
        # A float represents a price if it is the float nearest to that price.
        cdef double number = value
        cdef double product = number * self.power
        if not isfinite(number):
            raise self._refusal(value, "a finite number")
        if fabs(product) <= EXACT_MAX and <double>llrint(product) / self.power == number:
            return llrint(product)
        numerator, denominator = value.as_integer_ratio()
        scaled = (2 * numerator * self.power_exact + denominator) // (2 * denominator)
        if scaled / self.power_exact != value:
            raise self._refusal(value, f"{self.expected} with {self.decimals} decimals")
        return scaled

    cdef object _scaled_from_decimal(self, value):
        sign, digits, exponent = value.as_tuple()
        if not value.is_finite() or len(digits) > DIGITS_MAX:
            raise self._refusal(value, f"{self.expected} with {self.decimals} decimals")
        coefficient = int("".join(map(str, digits)))
        shift = exponent + self.decimals
        # Check the shift before using it, because the exponent may be huge.
        if coefficient == 0:
            return 0
        if shift > 20:
            raise self._refusal(value, f"{self.expected} in range")
        if shift < 0:
            coefficient, rest = divmod(coefficient, 10 ** min(-shift, DIGITS_MAX + 1))
            if rest:
                raise self._refusal(value, f"{self.expected} with {self.decimals} decimals")
        else:
            coefficient *= 10**shift
        return -coefficient if sign else coefficient

    cdef object _refusal(self, value, str expected):
        shown = repr(value) if not isinstance(value, int) or abs(value) < 1 << 128 else "a very large integer"
        return ModelError(f"field {self.name!r} cannot be {shown[:80]}", hint=f"expected {expected}")


cdef FieldAccessor make_accessor(RecordLayout layout, field):
    cdef FieldAccessor accessor = FieldAccessor.__new__(FieldAccessor)
    accessor.name = field.name
    accessor.__doc__ = field.description
    accessor.layout = layout
    accessor.kind = KIND_PRICE if field.is_decimal else KINDS.get(field.type, KIND_INTEGER)
    accessor.storage = storage_of(field.storage)
    accessor.offset = field.offset
    accessor.size = field.size
    accessor.since = field.since
    accessor.optional = field.optional
    accessor.expected = "nanoseconds since 1970 as an integer" if field.type == "timestamp" else "an integer"
    if accessor.kind == KIND_PRICE:
        accessor.expected = f"a {field.type}"
    accessor.missing = <int64_t>(<uint64_t>((field.missing or 0) & 0xFFFFFFFFFFFFFFFF))
    accessor.low, accessor.high = field.bounds
    accessor.decimals = field.decimals
    accessor.power_exact = 10**field.decimals
    accessor.power = accessor.power_exact
    if accessor.kind == KIND_ENUM:
        names = {number: name for name, number in field.values.items()}
        accessor.names_by_number = tuple([names.get(number, number) for number in range(256)])
        accessor.numbers_by_name = field.values
    elif accessor.kind == KIND_FLAGS:
        accessor.numbers_by_name = {name: 1 << bit for name, bit in field.bits.items()}
    cdef Py_ssize_t width = field.size if accessor.storage == TEXT else int(field.storage[1:])
    if accessor.offset < 0 or accessor.size < 1 or accessor.size != width:
        raise ModelError(f"field {field.name!r} does not fit the record")
    return accessor


cdef int write_missing(FieldAccessor field, unsigned char* place) except -1:
    cdef uint64_t raw
    if field.kind == KIND_TEXT:
        memset(place, 0, field.size)
    elif field.kind == KIND_FLOAT:
        write_float(field.storage, place, float("nan"))
    else:
        raw = <uint64_t>field.missing
        memcpy(place, &raw, field.size)
    return 0


cdef void write_float(Storage storage, unsigned char* place, double number) noexcept nogil:
    cdef float f4 = <float>number
    if storage == F4:
        memcpy(place, &f4, 4)
    else:
        memcpy(place, &number, 8)
