"""Images of a state: begun, preserved while the state goes on, and cut into chunks. _image.pxd describes them."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from penstock.base._crc32c cimport crc32c_extend, crc32c_initialise
from penstock.convert.books._units cimport (
    EXTENDED_SIZE,
    IMAGES_MAX,
    Instrument,
    LEVEL_SIZE,
    LIMIT_INSTRUMENTS,
    OrderRow,
    ORDER_SIZE,
    POSITION_SIZE,
    REFERENCE_SIZE,
    SESSION_SIZE,
    SHARDS,
    SIDE_ASK,
    SIDE_BID,
    STATISTICS_SIZE,
    Saved,
    Shard,
    TRADE_SIZE,
    UNIT_INSTRUMENTS,
    UNIT_SESSION,
    UNIT_SHARDS,
    unit_at,
    unit_count,
)

from penstock.base.errors import LimitError

crc32c_initialise()


# Beginning and ending


cdef Image *image_open(State *state, const uint64_t *known, uint32_t known_count) except NULL:
    """An image of the units whose digests are not those of `known`, as they are now."""
    cdef Image *image
    cdef uint32_t slot = 0, number, index
    while slot < IMAGES_MAX and state.images[slot] is not NULL:
        slot += 1
    if slot == IMAGES_MAX:
        raise LimitError(f"{IMAGES_MAX} images of this state are under way", hint="finish or close one")
    image = <Image *>calloc(1, sizeof(Image))
    if image is NULL:
        raise MemoryError
    image.instrument_count = <uint32_t>state.counts[LIMIT_INSTRUMENTS]
    image.unit_count = unit_count(state)
    image.digest = state.digest
    image.digests = <uint64_t *>malloc(image.unit_count * sizeof(uint64_t))
    image.is_wanted = <uint8_t *>malloc(image.unit_count)
    image.trade_counts = <uint32_t *>malloc((image.instrument_count + 1) * sizeof(uint32_t))
    image.saved = <Saved **>calloc(image.unit_count, sizeof(Saved *))
    if image.digests is NULL or image.is_wanted is NULL or image.trade_counts is NULL or image.saved is NULL:
        image_free(image)
        raise MemoryError
    for number in range(image.unit_count):
        image.digests[number] = unit_at(state, number).digest
        image.is_wanted[number] = number >= known_count or known[number] != image.digests[number]
    for index in range(image.instrument_count):
        image.trade_counts[index] = state.instruments[index].trade_count
    state.images_begun += 1
    image.began = state.images_begun
    state.images[slot] = image
    image_advance(image)
    return image


cdef void image_close(State *state, Image *image) noexcept nogil:
    cdef uint32_t slot
    for slot in range(IMAGES_MAX):
        if state.images[slot] is image:
            state.images[slot] = NULL
    image_free(image)


cdef void image_free(Image *image) noexcept nogil:
    cdef uint32_t number
    if image.saved is not NULL:
        for number in range(image.unit_count):
            saved_release(image, number)
    free(image.saved)
    free(image.digests)
    free(image.is_wanted)
    free(image.trade_counts)
    free(image)


cdef void images_end(State *state) noexcept nogil:
    """The state is about to change as a whole: images under way cannot be finished and give back what they hold."""
    cdef Image *image
    cdef uint32_t slot, number
    for slot in range(IMAGES_MAX):
        image = state.images[slot]
        if image is not NULL:
            image.is_ended = True
            for number in range(image.unit_count):
                saved_release(image, number)


cdef void image_advance(Image *image) noexcept nogil:
    """Move the cursor to the next unit to send."""
    while image.cursor < image.unit_count and not image.is_wanted[image.cursor]:
        image.cursor += 1


# Copies


cdef void saved_release(Image *image, uint32_t number) noexcept nogil:
    cdef Saved *saved = image.saved[number]
    image.saved[number] = NULL
    if saved is not NULL:
        saved.images -= 1
        if saved.images == 0:
            free(saved)


cdef void image_preserve(State *state, Unit *unit, uint32_t number) noexcept nogil:
    """Copy a unit that is about to change, once, for all images that have not sent it."""
    cdef Saved *saved = NULL
    cdef Image *image
    cdef uint32_t slot
    for slot in range(IMAGES_MAX):
        image = state.images[slot]
        if image is NULL or image.began <= unit.touched or not needs(image, number):
            continue
        # images that began at different times may have logs of different lengths; other units are the same for all
        if saved is NULL or is_log(number):
            saved = unit_copy(state, image, number)
        if saved is NULL:
            image.is_short = True
            continue
        saved.images += 1
        image.saved[number] = saved
    unit.touched = state.images_begun


cdef bint needs(const Image *image, uint32_t number) noexcept nogil:
    """Whether the image has yet to send a unit, or the rest of it, and has no copy of it."""
    return (
        not image.is_ended and number >= image.cursor and number < image.unit_count and image.is_wanted[number]
        and image.saved[number] is NULL
    )


cdef Saved *unit_copy(State *state, Image *image, uint32_t number) noexcept nogil:
    cdef uint64_t size = unit_size(state, image, number)
    cdef Saved *saved = <Saved *>malloc(sizeof(Saved) + size)
    if saved is not NULL:
        saved.size = size
        saved.images = 0
        unit_write(state, image, number, <uint8_t *>(saved + 1))
        image.copies += 1
        image.copied_size += size
    return saved


# Units as bytes


cdef bint is_log(uint32_t number) noexcept nogil:
    return number >= UNIT_INSTRUMENTS and (number - UNIT_INSTRUMENTS) & 1


cdef uint64_t unit_bytes_size(const State *state, uint32_t number) noexcept nogil:
    return unit_size(state, NULL, number)


cdef void unit_bytes_write(const State *state, uint32_t number, uint8_t *out) noexcept nogil:
    unit_write(state, NULL, number, out)


cdef uint32_t log_count(const State *state, const Image *image, uint32_t index) noexcept nogil:
    """Trades that were in the log when the image began; those of now without an image."""
    return state.instruments[index].trade_count if image is NULL else image.trade_counts[index]


cdef uint64_t unit_size(const State *state, const Image *image, uint32_t number) noexcept nogil:
    """Bytes of a unit that has not changed since the image began."""
    cdef uint32_t index = (number - UNIT_INSTRUMENTS) >> 1
    cdef const Instrument *instrument
    if number == UNIT_SESSION:
        return SESSION_SIZE
    if number < UNIT_INSTRUMENTS:
        return <uint64_t>state.shards[number - UNIT_SHARDS].count * ORDER_SIZE
    if is_log(number):
        return <uint64_t>log_count(state, image, index) * TRADE_SIZE
    instrument = &state.instruments[index]
    return (
        REFERENCE_SIZE + STATISTICS_SIZE + EXTENDED_SIZE + POSITION_SIZE + 8
        + (<uint64_t>instrument.sides[SIDE_BID].count + instrument.sides[SIDE_ASK].count) * LEVEL_SIZE
    )


cdef void unit_write(const State *state, const Image *image, uint32_t number, uint8_t *out) noexcept nogil:
    cdef uint32_t index = (number - UNIT_INSTRUMENTS) >> 1
    if number == UNIT_SESSION:
        memcpy(out, &state.session, SESSION_SIZE)
    elif number < UNIT_INSTRUMENTS:
        shard_write(&state.shards[number - UNIT_SHARDS], out)
    elif is_log(number):
        if log_count(state, image, index):
            memcpy(out, state.instruments[index].trades, <uint64_t>log_count(state, image, index) * TRADE_SIZE)
    else:
        instrument_write(&state.instruments[index], out)


cdef void shard_write(const Shard *shard, uint8_t *out) noexcept nogil:
    cdef uint64_t slot
    if shard.count:
        for slot in range(<uint64_t>shard.mask + 1):
            if shard.slots[slot].shares:
                memcpy(out, &shard.slots[slot], ORDER_SIZE)
                out += ORDER_SIZE


cdef void instrument_write(const Instrument *instrument, uint8_t *out) noexcept nogil:
    cdef uint32_t side
    memcpy(out, &instrument.reference, REFERENCE_SIZE)
    out += REFERENCE_SIZE
    memcpy(out, &instrument.statistics, STATISTICS_SIZE)
    out += STATISTICS_SIZE
    memcpy(out, &instrument.extended, EXTENDED_SIZE)
    out += EXTENDED_SIZE
    memcpy(out, &instrument.position, POSITION_SIZE)
    out += POSITION_SIZE
    for side in range(2):
        memcpy(out, &instrument.sides[side].count, 4)
        out += 4
    for side in range(2):
        if instrument.sides[side].count:
            memcpy(out, instrument.sides[side].levels, <uint64_t>instrument.sides[side].count * LEVEL_SIZE)
            out += <uint64_t>instrument.sides[side].count * LEVEL_SIZE


# Chunks


cdef uint64_t image_fill(State *state, Image *image, uint8_t *chunk, uint64_t size_max) noexcept nogil:
    """Write the next chunk, of at most `size_max` bytes; returns its size."""
    cdef uint64_t filled = CHUNK_HEADER_SIZE
    cdef uint64_t before
    cdef uint8_t flags = IMAGE_FIRST if image.chunk_count == 0 else 0
    cdef uint32_t number = IMAGE_MAGIC
    while image.cursor < image.unit_count and not image.is_short:
        before = filled
        filled += unit_send(state, image, chunk + filled, size_max - filled)
        if image.offset != 0 or filled == before:
            break
    image.is_complete = image.cursor >= image.unit_count
    memset(chunk, 0, CHUNK_HEADER_SIZE)
    memcpy(chunk + CHUNK_MAGIC_AT, &number, 4)
    chunk[CHUNK_VERSION_AT] = IMAGE_VERSION
    chunk[CHUNK_FLAGS_AT] = flags | (IMAGE_LAST if image.is_complete else 0)
    number = <uint32_t>(filled - CHUNK_HEADER_SIZE)
    memcpy(chunk + CHUNK_BODY_SIZE_AT, &number, 4)
    memcpy(chunk + CHUNK_NUMBER_AT, &image.chunk_count, 4)
    memcpy(chunk + CHUNK_INSTRUMENTS_AT, &image.instrument_count, 4)
    memcpy(chunk + CHUNK_DIGEST_AT, &image.digest, 8)
    number = crc32c_extend(0, chunk, CHUNK_CHECKSUM_AT)
    number = crc32c_extend(number, chunk + CHUNK_NUMBER_AT, filled - CHUNK_NUMBER_AT)
    memcpy(chunk + CHUNK_CHECKSUM_AT, &number, 4)
    image.chunk_count += 1
    return filled


cdef uint64_t unit_send(State *state, Image *image, uint8_t *out, uint64_t room) noexcept nogil:
    """Write the unit under way, or as much of it as fits; the cursor moves on when it was sent to its end."""
    cdef uint32_t unit_number = image.cursor
    cdef Saved *saved = image.saved[unit_number]
    cdef uint64_t size = saved.size if saved is not NULL else unit_size(state, image, unit_number)
    cdef uint64_t sent = 0, part
    if room < UNIT_HEADER_SIZE:
        return 0
    if saved is NULL and not is_log(unit_number) and room < UNIT_HEADER_SIZE + size:
        # it goes out in parts, and may change in between; a log does not, as long as it only grows
        saved = unit_copy(state, image, unit_number)
        if saved is NULL:
            image.is_short = True
            return 0
        saved.images = 1
        image.saved[unit_number] = saved
    if image.offset == 0:
        memset(out, 0, UNIT_HEADER_SIZE)
        memcpy(out + UNIT_NUMBER_AT, &unit_number, 4)
        memcpy(out + UNIT_SIZE_AT, &size, 8)
        memcpy(out + UNIT_DIGEST_AT, &image.digests[unit_number], 8)
        sent = UNIT_HEADER_SIZE
        image.offset = UNIT_HEADER_SIZE
    part = min(room - sent, size - (image.offset - UNIT_HEADER_SIZE))
    unit_part(state, image, saved, unit_number, out + sent, part)
    image.offset += part
    if image.offset == UNIT_HEADER_SIZE + size:
        saved_release(image, unit_number)
        image.offset = 0
        image.cursor += 1
        image_advance(image)
    return sent + part


cdef void unit_part(
    State *state, Image *image, const Saved *saved, uint32_t number, uint8_t *out, uint64_t part
) noexcept nogil:
    """Write `part` bytes of the unit under way, from where it has come to."""
    cdef uint64_t start = image.offset - UNIT_HEADER_SIZE
    if part == 0:
        return
    if saved is not NULL:
        memcpy(out, <const uint8_t *>(saved + 1) + start, part)
    elif is_log(number):
        memcpy(out, <const uint8_t *>state.instruments[(number - UNIT_INSTRUMENTS) >> 1].trades + start, part)
    else:
        unit_write(state, image, number, out)
