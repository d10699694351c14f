"""Operations on registers: from the bytes of a source message to the numbers and texts that steps use.

They read the message and the trading date and nothing else, so they cannot leave a change half done: they all run
before the first step, and a message that fails here has no effect.
"""

from cpython.ref cimport PyObject
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

from operator import index

from penstock.convert.kernel._frame cimport Frame, Text
from penstock.convert.kernel._program cimport *
from penstock.convert.books._units cimport mix_row


cdef extern from *:
    """
    #define times_overflows(a, b, out) __builtin_mul_overflow(a, b, out)
    #define plus_overflows(a, b, out) __builtin_add_overflow(a, b, out)
    """
    bint times_overflows(int64_t a, int64_t b, int64_t *out) noexcept nogil
    bint plus_overflows(int64_t a, int64_t b, int64_t *out) noexcept nogil


cdef int run_values(Frame *frame, const Op *op, const Op *end) noexcept nogil:
    """What most messages have stands here; the chain of equalities becomes a jump table."""
    cdef int64_t *registers = frame.registers
    cdef const uint8_t *data = frame.data
    cdef int fault = FAULT_NONE
    while op < end:
        if op.code == CODE_LOAD_BIG_WINDOW:
            while op.code == CODE_LOAD_BIG_WINDOW: # no message's steps begin with one
                registers[op.to] = <int64_t>load_window(data + op.offset, op.size, <uint64_t>op.x, True)
                op += 1
            continue
        elif op.code == CODE_LOAD_LITTLE_WINDOW:
            registers[op.to] = <int64_t>load_window(data + op.offset, op.size, <uint64_t>op.x, False)
        elif op.code == CODE_LOAD_PACKED:
            registers[op.to] = <int64_t>load_packed(data + op.offset, op.size)
        elif op.code == CODE_LOAD_TEXT:
            frame.texts[op.to].at = data + op.offset
            frame.texts[op.to].size = op.size
        elif op.code == CODE_LOOKUP:
            registers[op.to] = frame.maps[op.x].bytes[<uint8_t>registers[op.a]]
            if registers[op.to] == MISSING():
                return FAULT_ENUMERATION
        elif op.code == CODE_CONSTANT:
            registers[op.to] = op.x
        elif op.code == CODE_MULTIPLY:
            if registers[op.a] == MISSING():
                registers[op.to] = MISSING()
            elif times_overflows(registers[op.a], op.x, &registers[op.to]):
                return FAULT_RANGE
        elif op.code == CODE_ADD_DAY:
            if registers[op.a] == MISSING():
                registers[op.to] = MISSING()
            elif plus_overflows(registers[op.a], frame.state.session.day_ns, &registers[op.to]):
                return FAULT_RANGE
        elif op.code == CODE_CHECK_RANGE:
            if not op.x <= registers[op.a] <= op.y and not (op.b and registers[op.a] == MISSING()):
                return FAULT_RANGE
        else:
            fault = run_other_value(frame, op)
            if fault:
                return fault
        op += 1
    return FAULT_NONE


cdef int run_other_value(Frame *frame, const Op *op) noexcept nogil:
    cdef int64_t *to = &frame.registers[op.to]
    if op.code <= CODE_LOAD_LITTLE_SIGNED:
        return run_load(frame, op, to)
    if op.code < CODE_TRIM:
        return run_text_load(frame, op)
    if op.code < CODE_MULTIPLY:
        return run_text(frame, op)
    if op.code == CODE_CHECK_SIZE:
        return FAULT_TEXT if frame.texts[op.a].size > op.size else FAULT_NONE
    if op.code == CODE_CALL:
        return call_function(frame, op)
    if frame.registers[op.a] != MISSING():
        return run_number(frame, op, frame.registers[op.a], to)
    if op.code == CODE_CHECK_PRESENT:
        return FAULT_MISSING
    to[0] = MISSING()
    return FAULT_NONE


cdef inline int run_load(Frame *frame, const Op *op, int64_t *to) noexcept nogil:
    """Numbers in messages of fewer than 8 bytes, and those with a sign."""
    cdef bint is_big = op.code == CODE_LOAD_BIG or op.code == CODE_LOAD_BIG_SIGNED
    cdef const uint8_t *at = frame.data + op.offset
    cdef uint64_t value = load_big(at, op.size) if is_big else load_little(at, op.size)
    if op.code == CODE_LOAD_BIG or op.code == CODE_LOAD_LITTLE:
        to[0] = <int64_t>value
        return FAULT_NONE
    to[0] = signed_of(value, op.size)
    return FAULT_RANGE if to[0] == MISSING() else FAULT_NONE


cdef inline int run_number(Frame *frame, const Op *op, int64_t a, int64_t *to) noexcept nogil:
    cdef uint8_t code = op.code
    if code == CODE_DIVIDE:
        return divide_exactly(a, op.x, to)
    elif code == CODE_ROUND:
        to[0] = rounded(a, op.x)
    elif code == CODE_ADD:
        return FAULT_RANGE if plus_overflows(a, op.x, to) else FAULT_NONE
    elif code == CODE_BIT:
        to[0] = a >> op.x & 1
    elif code == CODE_LOOKUP_KEY:
        to[0] = look_up(&frame.maps[op.x], <uint64_t>a)
        return FAULT_ENUMERATION if to[0] == MISSING() else FAULT_NONE
    return FAULT_NONE


cdef int divide_exactly(int64_t a, int64_t divisor, int64_t *to) noexcept nogil:
    to[0] = a // divisor
    return FAULT_NONE if to[0] * divisor == a else FAULT_RANGE


cdef int scale_exactly(int64_t a, uint32_t decimals, uint32_t wanted, int64_t *to) noexcept nogil:
    cdef int64_t power = 1
    cdef uint32_t difference = max(decimals, wanted) - min(decimals, wanted)
    while difference:
        power *= 10
        difference -= 1
    if decimals > wanted:
        return divide_exactly(a, power, to)
    return FAULT_RANGE if times_overflows(a, power, to) else FAULT_NONE


cdef inline int64_t rounded(int64_t a, int64_t divisor) noexcept nogil:
    cdef int64_t quotient = a // divisor
    cdef int64_t rest = a - quotient * divisor
    if rest >= divisor - rest:
        return quotient + 1
    if rest < 0 and -rest >= divisor + rest:
        return quotient - 1
    return quotient


cdef inline int64_t look_up(const Map *map, uint64_t key) noexcept nogil:
    cdef uint32_t low = 0, high = map.count, middle
    while low < high:
        middle = (low + high) // 2
        if map.keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    if low < map.count and map.keys[low] == key:
        return map.numbers[low]
    return map.otherwise


# Numbers in bytes


cdef inline uint64_t load_big(const uint8_t *at, uint32_t size) noexcept nogil:
    return program_swapped(load_little(at, size)) >> (64 - 8 * size)


cdef inline uint64_t load_little(const uint8_t *at, uint32_t size) noexcept nogil:
    cdef uint64_t value = 0
    memcpy(&value, at, size)
    return value


cdef inline int64_t signed_of(uint64_t value, uint32_t size) noexcept nogil:
    cdef int unused = 64 - 8 * <int>size
    return <int64_t>(value << unused) >> unused


cdef inline uint64_t load_packed(const uint8_t *at, uint32_t size) noexcept nogil:
    """A text of at most 8 bytes as one number: the first character lowest, no padding."""
    cdef uint64_t value = 0
    if size == 1:
        return at[0] if at[0] != 32 else 0
    while size > 0 and (at[size - 1] == 32 or at[size - 1] == 0):
        size -= 1
    memcpy(&value, at, size)
    return value


# Texts


cdef int run_text_load(Frame *frame, const Op *op) noexcept nogil:
    cdef Text *to = &frame.texts[op.to]
    cdef const Text *before
    if op.code == CODE_LOAD_COLUMN:
        if op.a >= frame.column_count:
            return FAULT_LENGTH
        to[0] = frame.columns[op.a]
    elif op.code == CODE_LOAD_SIZED:
        if <uint64_t>frame.registers[op.a] > frame.size - op.offset:
            return FAULT_LENGTH
        to.at = frame.data + op.offset
        to.size = <uint64_t>frame.registers[op.a]
    elif op.code == CODE_LOAD_AFTER:
        before = &frame.texts[op.a]
        to.at = before.at + before.size
        to.size = frame.size - <uint64_t>(to.at - frame.data)
    return FAULT_NONE


cdef int run_text(Frame *frame, const Op *op) noexcept nogil:
    cdef Text text
    cdef int64_t *to = &frame.registers[op.to]
    if op.code == CODE_FLOAT_OF_NUMBER:
        put_float(to, MISSING_FLOAT() if frame.registers[op.a] == MISSING() else frame.registers[op.a] / <double>op.x)
        return FAULT_NONE
    text = frame.texts[op.a]
    trim(&text)
    if op.code == CODE_TRIM:
        frame.texts[op.to] = text
    elif op.code == CODE_PACK:
        if text.size > 8:
            return FAULT_TEXT
        to[0] = <int64_t>load_packed(text.at, <uint32_t>text.size)
    elif op.code == CODE_KEY:
        to[0] = key_of(&text)
    elif op.code == CODE_NUMBER:
        return parse_decimal(&text, 0, to)
    elif op.code == CODE_DECIMAL:
        return parse_decimal(&text, op.size, to)
    elif op.code == CODE_FLOAT_OF_TEXT:
        return parse_float(&text, to)
    return FAULT_NONE


cdef inline void trim(Text *text) noexcept nogil:
    while text.size > 0 and (text.at[text.size - 1] <= 32):
        text.size -= 1
    while text.size > 0 and text.at[0] <= 32:
        text.at += 1
        text.size -= 1


cdef inline int64_t key_of(const Text *text) noexcept nogil:
    cdef uint64_t words[3]
    if text.size <= 8:
        return <int64_t>load_packed(text.at, <uint32_t>text.size)
    words[0] = words[1] = 0
    words[2] = text.size
    memcpy(words, text.at, min(text.size, <uint64_t>16))
    return <int64_t>mix_row(0, words, 3)


cdef int parse_decimal(const Text *text, uint32_t decimals, int64_t *to) noexcept nogil:
    """Digits with an optional sign and point; decimals beyond `decimals` must be zeros. An empty text is missing."""
    cdef uint64_t index = 0
    cdef int64_t value = 0
    cdef int64_t after = -1 # digits after the point so far, -1 before it
    cdef bint is_negative = False, has_digit = False
    cdef uint8_t character
    if text.size == 0:
        to[0] = MISSING()
        return FAULT_NONE
    if text.at[0] == 45 or text.at[0] == 43:
        is_negative = text.at[0] == 45
        index = 1
    while index < text.size:
        character = text.at[index]
        index += 1
        if character == 46 and after < 0 and decimals > 0:
            after = 0
            continue
        if not 48 <= character <= 57:
            return FAULT_NUMBER
        has_digit = True
        if after == <int64_t>decimals:
            if character != 48:
                return FAULT_RANGE
            continue
        if times_overflows(value, 10, &value) or plus_overflows(value, character - 48, &value):
            return FAULT_RANGE
        if after >= 0:
            after += 1
    after = max(after, 0)
    while after < <int64_t>decimals:
        if times_overflows(value, 10, &value):
            return FAULT_RANGE
        after += 1
    to[0] = -value if is_negative else value
    return FAULT_NONE if has_digit else FAULT_NUMBER


cdef int parse_float(const Text *text, int64_t *to) noexcept nogil:
    cdef double value = MISSING_FLOAT()
    if text.size > 64:
        return FAULT_NUMBER
    if text.size:
        with gil:
            try:
                value = float(text.at[:text.size].decode("ascii"))
            except ValueError:
                return FAULT_NUMBER
    put_float(to, value)
    return FAULT_NONE


cdef inline void put_float(int64_t *to, double value) noexcept nogil:
    memcpy(to, &value, 8)


cdef extern from "math.h" nogil:
    double NAN


cdef inline double MISSING_FLOAT() noexcept nogil:
    return NAN


# Users' functions


cdef int call_function(Frame *frame, const Op *op) noexcept with gil:
    """Registers in `a`, by `b`: what kind of value it is; by `c`: what the function gives (_program.pxd's Kind)."""
    cdef Text *text
    cdef double number
    try:
        function, arguments = (<tuple><PyObject *>frame.functions)[op.x]
        if op.b == KIND_TEXT:
            text = &frame.texts[op.a]
            given = text.at[:text.size].decode("utf-8")
        elif op.b == KIND_PACKED:
            given = (<uint8_t *>&frame.registers[op.a])[:8].rstrip(b"\0").decode("utf-8")
        elif op.b == KIND_FLOAT:
            memcpy(&number, &frame.registers[op.a], 8)
            given = number
        elif op.b == KIND_UNSIGNED:
            given = <uint64_t>frame.registers[op.a]
        else:
            given = None if frame.registers[op.a] == MISSING() else frame.registers[op.a]
        return keep_result(frame, op, function(given, *arguments))
    except Exception as error:
        (<list><PyObject *>frame.kept).append(error)
        return FAULT_FUNCTION


cdef int keep_result(Frame *frame, const Op *op, result) except -1:
    cdef bytes encoded
    if op.c == KIND_TEXT:
        encoded = bytes(result, "utf-8")
        kept = <list><PyObject *>frame.kept
        if len(kept) > 2 * TEXTS:
            del kept[:TEXTS] # of messages before
        kept.append(encoded)
        frame.texts[op.to].at = <const uint8_t *>encoded
        frame.texts[op.to].size = len(encoded)
    elif op.c == KIND_FLOAT:
        put_float(&frame.registers[op.to], MISSING_FLOAT() if result is None else result)
    elif result is None:
        frame.registers[op.to] = MISSING()
    elif not INT64_MIN < index(result) <= INT64_MAX:
        return FAULT_RANGE
    else:
        frame.registers[op.to] = index(result) # a float, or a Decimal, is refused instead of cut off
    return FAULT_NONE


# Lines


cdef uint32_t split_columns(Frame *frame, uint8_t separator) noexcept nogil:
    cdef const uint8_t *at = frame.data
    cdef const uint8_t *end = frame.data + frame.size
    cdef const uint8_t *next
    cdef uint32_t count = 0
    while True:
        next = <const uint8_t *>memchr(at, separator, end - at) if at < end else NULL
        if count < COLUMNS:
            frame.columns[count].at = at
            frame.columns[count].size = <uint64_t>((next if next is not NULL else end) - at)
        count += 1
        if next is NULL:
            break
        at = next + 1
    frame.column_count = min(count, <uint32_t>COLUMNS)
    return count
