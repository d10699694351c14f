"""The conversion state in memory: what it holds, in units, and how a unit's digest follows its rows.

A unit is what an image copies, sends and replaces as a whole: the session, each of 1,024 order shards, each
instrument, and each instrument's trade log. The rows below are also the bytes of an image
(docs/reference/protocol/state-image.md).
"""

from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "penstock/convert/books/mix.h" nogil:
    uint64_t MIX_SHARD
    uint64_t mix_fold(uint64_t a, uint64_t b)
    uint64_t mix_row(uint64_t key, const void *row, size_t words)
    void prefetch(const void *address)
    void wide_add(uint64_t *low, uint64_t *high, int64_t price, uint64_t size)
    int64_t wide_divide(uint64_t low, uint64_t high, int64_t divisor)


cdef extern from "penstock/convert/books/pool.h" nogil:
    ctypedef struct Pool:
        pass
    void *pool_map(size_t size)
    void pool_unmap(void *memory, size_t size)
    size_t pool_size(size_t size)
    void *pool_take(Pool *pool, size_t size)
    void pool_give(Pool *pool, void *block, size_t size)
    void *pool_grow(Pool *pool, void *block, size_t size, size_t used, size_t size_wanted)
    void pool_close(Pool *pool)


cpdef enum:
    SIDE_BID = 0
    SIDE_ASK = 1


ctypedef int Answer

cpdef enum: # an Answer
    STATE_OK = 0
    STATE_UNKNOWN = 1   # no such order, trade or level: nothing was changed
    STATE_DUPLICATE = 2 # the order reference is in use: nothing was changed
    STATE_SHORT = 3     # more was taken than there was: the order is gone
    STATE_REFUSED = 4   # a limit or the memory ends here: nothing was changed, and `refused` counts it
    STATE_INVALID = 5   # a size of 0, a price that is none: nothing was changed


cpdef enum:
    LIMIT_INSTRUMENTS = 0
    LIMIT_ORDERS = 1
    LIMIT_LEVELS = 2
    LIMIT_TRADES = 3
    LIMIT_COUNT = 4


cpdef enum: # the same bits as in `conditions` of the trade model
    TRADE_EXTENDED_HOURS = 2
    TRADE_OPENING = 16
    TRADE_CLOSING = 32
    TRADE_NOT_LAST = 256
    TRADE_NOT_HIGH_LOW = 512
    TRADE_NOT_VOLUME = 1024
    TRADE_BROKEN = 1 << 30 # ours: taken back


cpdef enum:
    SHARD_BITS = 10
    SHARDS = 1024
    IMAGES_MAX = 16  # images of one state that may be under way at once
    SYMBOL_SIZE = 16
    VENUE_SIZE = 4
    REASON_SIZE = 8
    SESSION_SIZE = 56
    ORDER_SIZE = 32
    LEVEL_SIZE = 24
    TRADE_SIZE = 40
    REFERENCE_SIZE = 64
    STATISTICS_SIZE = 80
    EXTENDED_SIZE = 56
    POSITION_SIZE = 16
    UNIT_SESSION = 0
    UNIT_SHARDS = 1         # 1,024 of them
    UNIT_INSTRUMENTS = 1025 # two for each: the instrument, then its trade log


cdef enum: # the upper bits of a mix's key
    ROW_SESSION = 1
    ROW_ORDER = 2
    ROW_REFERENCE = 3
    ROW_STATISTICS = 4
    ROW_POSITION = 5
    ROW_LEVEL = 6
    ROW_TRADE = 7
    ROW_EXTENDED = 8


cpdef enum: # Hours
    HOURS_UNKNOWN = 0   # the calendar tells, if there is one
    HOURS_REGULAR = 1
    HOURS_EXTENDED = 2
    HOURS_ENDED = 3     # nothing more comes in this session


cdef enum:
    INSTRUMENT_DECIMALS_MAX = 18
    SIZE_LIMIT_BITS = 62 # sizes, levels and volumes are below 2^62: a sum is checked after one addition


cdef struct Unit:
    uint64_t digest
    uint64_t touched # how many images had begun when the unit was last changed


cdef struct SessionRow:
    uint8_t name[16]
    int64_t day_ns  # midnight that the feed's times of day count from
    uint64_t phase  # the feed's own code of where the day is
    int64_t open_ns # the regular session by the calendar; both 0 where there is none
    int64_t close_ns
    uint64_t hours  # an Hours: what the feed says


cdef struct OrderRow:
    uint64_t reference
    int64_t price
    uint64_t shares # 0: the slot is free
    uint32_t place  # instrument × 2 + side
    uint32_t participant


cdef struct LevelRow:
    int64_t price
    uint64_t size
    uint32_t count
    uint32_t reserved


cdef struct TradeRow:
    uint64_t trade_id
    int64_t price
    uint64_t size
    int64_t event_ns
    uint32_t conditions
    uint32_t reserved


cdef struct ReferenceRow:
    uint8_t symbol[16] # zero padded
    uint8_t venue[4]
    uint32_t round_lot
    uint64_t locate    # the feed's own key; LOCATE_NONE without one
    uint32_t flags     # the table's own
    uint8_t status     # the state of the status model; 0 is not known
    uint8_t restrictions
    uint8_t price_decimals    # the instrument's own, + 1; 0 is not known
    uint8_t quantity_decimals
    uint8_t reason[8]
    int64_t upper_limit
    int64_t lower_limit


cdef struct StatisticsRow:
    int64_t open
    int64_t high
    int64_t low
    int64_t last
    int64_t previous_close
    uint64_t last_size
    uint64_t volume
    uint64_t turnover_low # price × size with 8 decimals and those of sizes, 128 bits
    uint64_t turnover_high
    uint64_t trade_count


cdef struct ExtendedRow: # what the trades of extended hours come to
    int64_t high
    int64_t low
    int64_t last
    uint64_t volume
    uint64_t turnover_low
    uint64_t turnover_high
    uint64_t trade_count


cdef struct PositionRow:
    int64_t event_ns
    uint64_t source_sequence


cdef struct Ladder: # one side of a book, the best level last
    LevelRow *levels
    uint32_t count
    uint32_t room


cdef struct Instrument: # five cache lines; what changes with every order is in the first
    Unit unit
    Unit log_unit
    Ladder sides[2]
    PositionRow position
    StatisticsRow statistics
    ReferenceRow reference
    TradeRow *trades
    uint32_t trade_count
    uint32_t trade_room
    uint64_t is_log_ascending # each trade id is above the one before, so it can be found by halving
    ExtendedRow extended
    uint64_t reserved[2]


cdef struct Shard:
    Unit unit
    OrderRow *slots
    uint32_t mask
    uint32_t count


cdef struct Saved: # a unit's bytes as they were when images began that have not sent it yet; the bytes follow
    uint64_t size
    uint32_t images
    uint32_t reserved


cdef struct Image:
    uint64_t began
    uint64_t digest
    uint64_t offset       # bytes of the unit under way that were sent
    uint64_t copies       # units copied because they changed, or did not fit a chunk
    uint64_t copied_size
    uint32_t instrument_count
    uint32_t unit_count
    uint32_t cursor       # the unit under way
    uint32_t chunk_count
    uint64_t *digests     # of every unit as the image has it
    uint8_t *is_wanted
    uint32_t *trade_counts
    Saved **saved
    bint is_complete
    bint is_ended         # the state changed as a whole: the image cannot be finished
    bint is_short         # there was no memory for a copy


cdef struct LocateSlot: # the key beside the number, so that most lookups touch nothing else
    uint64_t locate
    uint64_t number # + 1, 0 is free


cdef struct Limits:
    uint64_t counts[4]


cdef struct State:
    uint64_t digest
    uint64_t images_begun
    uint64_t installs # how often an image became this state: what was derived from instruments is void then
    uint64_t seed
    uint64_t counts[4] # instruments, orders, levels, trades: in the order of Limit
    uint64_t refused[4]
    Limits limits
    Pool *pool # of rows; shared while an image is being installed
    Instrument *instruments
    uint32_t *by_symbol # open addressing; a number + 1, 0 is free
    LocateSlot *by_locate
    uint64_t lookup_mask
    Unit session_unit
    SessionRow session
    Image *images[16]
    Shard shards[1024]


cdef inline int64_t PRICE_NONE() noexcept nogil:
    return INT64_MIN


cdef inline uint64_t LOCATE_NONE() noexcept nogil:
    return <uint64_t>-1


cdef inline uint64_t row_key(uint64_t kind, uint64_t place) noexcept nogil:
    return kind << 56 | place


cdef inline uint64_t order_mix(const OrderRow *row) noexcept nogil:
    return mix_row(row_key(ROW_ORDER, 0), row, 4)


cdef inline uint64_t level_mix(uint32_t instrument, uint8_t side, const LevelRow *row) noexcept nogil:
    return mix_row(row_key(ROW_LEVEL, <uint64_t>instrument << 1 | side), row, 3)


cdef inline uint64_t trade_mix(uint32_t instrument, uint32_t ordinal, const TradeRow *row) noexcept nogil:
    return mix_row(row_key(ROW_TRADE, <uint64_t>instrument << 32 | ordinal), row, 5)


cdef inline uint64_t reference_mix(uint32_t instrument, const ReferenceRow *row) noexcept nogil:
    return mix_row(row_key(ROW_REFERENCE, instrument), row, 8)


cdef inline uint64_t statistics_mix(uint32_t instrument, const StatisticsRow *row) noexcept nogil:
    return mix_row(row_key(ROW_STATISTICS, instrument), row, 10)


cdef inline uint64_t extended_mix(uint32_t instrument, const ExtendedRow *row) noexcept nogil:
    return mix_row(row_key(ROW_EXTENDED, instrument), row, 7)


cdef inline uint64_t position_mix(uint32_t instrument, const PositionRow *row) noexcept nogil:
    return mix_row(row_key(ROW_POSITION, instrument), row, 2)


cdef inline uint64_t session_mix(const SessionRow *row) noexcept nogil:
    return mix_row(row_key(ROW_SESSION, 0), row, 7)


cdef inline void digest_add(State *state, Unit *unit, uint64_t change) noexcept nogil:
    unit.digest += change
    state.digest += change


cdef inline uint32_t shard_of(uint64_t reference) noexcept nogil:
    return <uint32_t>((reference * MIX_SHARD) >> (64 - SHARD_BITS))


cdef inline bint is_size(uint64_t size) noexcept nogil:
    return size != 0 and size >> SIZE_LIMIT_BITS == 0


cdef inline uint32_t unit_of_shard(uint32_t shard) noexcept nogil:
    return UNIT_SHARDS + shard


cdef inline uint32_t unit_of_instrument(uint32_t instrument) noexcept nogil:
    return UNIT_INSTRUMENTS + 2 * instrument


cdef inline uint32_t unit_of_log(uint32_t instrument) noexcept nogil:
    return UNIT_INSTRUMENTS + 2 * instrument + 1


cdef inline uint32_t unit_count(const State *state) noexcept nogil:
    return UNIT_INSTRUMENTS + 2 * <uint32_t>state.counts[LIMIT_INSTRUMENTS]


# Without a pool the state gets its own, which state_close() closes.
cdef State *state_open(const Limits *limits, uint64_t seed, Pool *pool) except NULL
cdef void state_empty(State *state) noexcept nogil
cdef void state_close(State *state, bint is_pool_shared) noexcept nogil
cdef Unit *unit_at(State *state, uint32_t number) noexcept nogil
