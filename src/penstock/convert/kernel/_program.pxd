"""A plan in memory: for each type of source message a list of operations on registers.

The compiler (plan.py) reads the same names from penstock.convert.kernel._program; _values.pyx and _steps.pyx run them.
"""

from libc.stdint cimport INT64_MIN, int16_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy


cpdef enum: # Code
    # values of the source message, and what becomes of them; these change nothing but registers
    CODE_LOAD_BIG = 1       # to = unsigned number of `size` bytes at `offset`
    CODE_LOAD_LITTLE
    CODE_LOAD_BIG_WINDOW    # the same out of the 8 bytes at `offset`: shifted right by `size` bits, and only bits x of it
    CODE_LOAD_LITTLE_WINDOW
    CODE_LOAD_BIG_SIGNED
    CODE_LOAD_LITTLE_SIGNED
    CODE_LOAD_PACKED        # to = text of `size` bytes at `offset`, at most 8, without its padding
    CODE_LOAD_TEXT          # text `to` = `size` bytes at `offset`
    CODE_LOAD_COLUMN        # text `to` = column `a`
    CODE_LOAD_SIZED         # text `to` = as many bytes at `offset` as register `a` says
    CODE_LOAD_AFTER         # text `to` = what comes after text `a`
    CODE_CONSTANT           # to = x
    CODE_TRIM               # text `to` = text `a` without blanks and zeros at its ends
    CODE_PACK               # to = text `a` in 8 bytes
    CODE_KEY                # to = text `a` in 8 bytes, a hash of it if it is longer
    CODE_NUMBER             # to = the integer that text `a` says
    CODE_DECIMAL            # to = the decimal number that text `a` says, with `size` decimals
    CODE_FLOAT_OF_TEXT
    CODE_FLOAT_OF_NUMBER    # to = a / x
    CODE_MULTIPLY           # to = a × x
    CODE_DIVIDE             # to = a / x; a message that would lose digits by it is malformed
    CODE_ROUND              # to = a / x, rounded, halves away from zero
    CODE_ADD                # to = a + x
    CODE_BIT                # to = bit x of a
    CODE_ADD_DAY            # to = a + midnight of the trading date
    CODE_LOOKUP             # to = what map x says of the byte in a
    CODE_LOOKUP_KEY         # to = what map x says of a
    CODE_CHECK_RANGE        # x <= a <= y, else the message is malformed
    CODE_CHECK_PRESENT      # a is not missing, else the message is malformed
    CODE_CHECK_SIZE         # text a has at most `size` bytes, else the message is malformed
    CODE_CALL               # to = what the user's function x makes of a
    # steps
    CODE_INSTRUMENT         # the instrument whose key is a; text b has its symbol, if b is not NONE; c = 1 assigns the key again
    CODE_SCALE              # to = a, which has the instrument's decimals of prices (b = 0) or quantities (b = 1), with x decimals
    CODE_SYMBOL             # text `to` = symbol of the instrument whose key is a, empty if it is not known
    CODE_NEED_INSTRUMENT    # go on only with a known instrument
    CODE_LOAD_BEST          # fill the registers of the best bid and offer
    CODE_LOAD_LEVELS        # fill the registers of the ten best levels
    CODE_LOAD_DAY
    CODE_LOAD_REFERENCE
    CODE_UNLESS_EQUAL       # go on at operation `offset` unless a = x
    CODE_UNLESS_UNEQUAL
    CODE_UNLESS_LESS
    CODE_UNLESS_LESS_EQUAL
    CODE_UNLESS_GREATER
    CODE_UNLESS_GREATER_EQUAL
    CODE_UNLESS_BITS        # unless a & x
    CODE_DEFINE             # the rest are verbs: a, b, … are the registers of their arguments in the order of VERBS
    CODE_ORDER_ADD
    CODE_ORDER_TAKE
    CODE_ORDER_DELETE
    CODE_ORDER_REPLACE
    CODE_LEVEL_SET
    CODE_SIDE_SET
    CODE_BOOK_CLEAR
    CODE_TRADE
    CODE_TRADE_BREAK
    CODE_TRADE_CORRECT
    CODE_STATUS
    CODE_RESTRICTION
    CODE_LIMITS
    CODE_PHASE
    CODE_EMIT               # begin output `x`
    CODE_STORE_WORD         # register a into 8 bytes at `offset` of the record
    CODE_STORE              # register a into `size` bytes at `offset`
    CODE_STORE_OPTIONAL     # the same, x if it is missing
    CODE_STORE_TEXT         # text a into `size` bytes at `offset`, the rest zeros
    CODE_STORE_SYMBOL       # the instrument's symbol at `offset`
    CODE_POSITION           # the instrument last changed at event time a
    CODE_FORWARD            # topic text a, model id b, version c, payload text d


cpdef enum: # Register
    REGISTER_SEQUENCE
    REGISTER_RECEIVE
    REGISTER_CHANGED        # 1: the best bid or offer is not what was last emitted or looked at
    REGISTER_ORDER_PRICE
    REGISTER_ORDER_QUANTITY # what is left of it
    REGISTER_ORDER_TAKEN    # what was taken from it
    REGISTER_ORDER_SIDE
    REGISTER_ORDER_PARTICIPANT
    REGISTER_TRADE_PRICE
    REGISTER_TRADE_QUANTITY
    REGISTER_TRADE_CONDITIONS
    REGISTER_DAY_OPEN
    REGISTER_DAY_HIGH
    REGISTER_DAY_LOW
    REGISTER_DAY_LAST
    REGISTER_DAY_PREVIOUS_CLOSE
    REGISTER_DAY_VOLUME
    REGISTER_DAY_TURNOVER
    REGISTER_DAY_TRADE_COUNT
    REGISTER_ROUND_LOT
    REGISTER_STATE
    REGISTER_REASON
    REGISTER_RESTRICTIONS
    REGISTER_UPPER_LIMIT
    REGISTER_LOWER_LIMIT
    REGISTER_EVENT_TIME
    REGISTER_PHASE
    REGISTER_ALTERED        # 1: the verb before changed what is known of the instrument
    REGISTER_PRICE_DECIMALS
    REGISTER_QUANTITY_DECIMALS
    REGISTER_EXTENDED_HIGH
    REGISTER_EXTENDED_LOW
    REGISTER_EXTENDED_LAST
    REGISTER_EXTENDED_VOLUME
    REGISTER_EXTENDED_TURNOVER
    REGISTER_EXTENDED_TRADE_COUNT
    REGISTER_BOOK           # ten levels of three each for the bid, then for the offer: price, size, orders
    REGISTER_FREE = 96
    REGISTERS = 168


cpdef enum:
    TEXTS = 32
    COLUMNS = 64
    LEVELS = 10
    EMITTED_OVERHEAD = 32   # bytes of the ORIGIN extension before each record
    FORWARDED_SIZE_MAX = 65_536
    NONE = 255              # in place of a register that is not there
    TYPES = 256             # message types of a format, and outputs of a table


cpdef enum: # Kind
    """What a register holds."""
    KIND_NUMBER
    KIND_UNSIGNED           # 64 bits of them
    KIND_FLOAT
    KIND_PACKED             # a text of at most 8 bytes, in a number
    KIND_TEXT               # in a text register


cpdef enum: # Fault
    """Why a source message was not converted, or not to the end; FAULT_CAUSES names the Cause of each."""
    FAULT_NONE = 0
    FAULT_TYPE              # no message of the format has this type
    FAULT_LENGTH            # a wrong number of bytes or columns
    FAULT_NUMBER            # a text is no number
    FAULT_RANGE             # a number is too great or too small for where it goes
    FAULT_MISSING           # a value is not there
    FAULT_ENUMERATION       # a value is none of those in the map
    FAULT_TEXT              # a text is too long, or no UTF-8
    FAULT_FUNCTION          # a user's function failed
    FAULT_VALUE             # the state refuses it: a quantity of 0, a price that is none
    FAULT_LIMIT             # the state is full
    FAULT_ORDER             # an order that is not known
    FAULT_TRADE             # a trade that is not known
    FAULT_INSTRUMENT        # an instrument that is not known
    FAULT_DUPLICATE_ORDER   # an order reference that is in use
    FAULT_EXCESS            # more was taken from an order than it had; the message is converted all the same
    FAULT_DECIMALS          # a value has more decimals than its instrument; the message is converted all the same
    FAULTS


cdef struct Op:
    uint8_t code
    uint8_t to
    uint8_t a
    uint8_t b
    uint8_t c
    uint8_t d
    uint8_t e
    uint8_t f
    uint32_t offset
    uint32_t size
    int64_t x
    int64_t y


cdef struct Window: # where a number that tells an order or an instrument lies, within 8 bytes of the message
    uint32_t offset
    uint32_t shift
    uint64_t mask # 0: nowhere
    bint is_big


cdef struct Route: # the program of one message type
    uint32_t values # where its operations are: those on registers, then the steps, which end where the next begins
    uint32_t steps
    uint32_t end
    uint32_t size_min
    uint32_t size_max
    uint32_t columns
    Window order            # for looking ahead
    Window new_order        # that takes its place
    Window instrument


cdef struct Map: # sorted by key; `bytes` is the same for keys of one byte, with MISSING for what is not in it
    uint32_t count
    int64_t otherwise # MISSING: what is not in the map is malformed
    uint64_t *keys
    int64_t *numbers
    int64_t bytes[256]


cdef struct Output:
    uint32_t record_size
    uint16_t model_id
    uint16_t model_version
    uint16_t topic_kind
    bint is_about_instrument
    const uint8_t *blank # the record with everything in it that is always the same


cdef extern from *:
    """
    #define program_swapped(value) __builtin_bswap64(value)
    """
    uint64_t program_swapped(uint64_t value) noexcept nogil


cdef inline uint64_t load_window(const uint8_t *at, uint32_t shift, uint64_t mask, bint is_big) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    if is_big:
        value = program_swapped(value)
    return value >> shift & mask


cdef inline int64_t MISSING() noexcept nogil:
    """In a register: there is no value."""
    return INT64_MIN


cdef class Program:
    cdef Op *ops
    cdef Route routes[256]
    cdef uint64_t type_keys[256]
    cdef int16_t route_by_byte[256]
    cdef Output outputs[256]
    cdef Map *maps
    cdef readonly int route_count
    cdef readonly int output_count
    cdef int map_count
    cdef bint is_csv
    cdef uint8_t separator
    cdef int type_at        # -1: the format has one type only
    cdef int type_size
    cdef uint32_t image_start
    cdef uint32_t image_end
    cdef uint32_t emitted_size_max # bytes of outputs, and outputs, that one source message can give
    cdef uint32_t emitted_max
    cdef bint looks_ahead   # types are one byte, so that a look at a message is cheap
    cdef bint forwards      # some message brings its topic itself
    cdef readonly tuple functions
    cdef list _kept

    cdef int route_of(self, const uint8_t *data, uint32_t size) noexcept nogil
