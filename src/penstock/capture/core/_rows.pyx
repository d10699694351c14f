"""Parse a journal's records into rows of messages, and read values from such rows in place, without the GIL."""

from libc.stdint cimport UINT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

import numpy

from penstock.base._prefetch cimport prefetch, prefetch_span
from penstock.journal.core._log cimport RecordRow
from penstock.wire._codec cimport (
    ERROR_NONE,
    KIND_DATA,
    KIND_GONE,
    MESSAGE_CONTINUATION,
    MESSAGE_HEADER_SIZE,
    MESSAGE_MORE,
    MESSAGE_SEALED,
    MessageView,
    PACKET_COUNT_AT,
    PACKET_HEADER_SIZE,
    PACKET_REPAIR,
    PacketView,
    RANGE_FIRST_AT,
    RANGE_LAST_AT,
    RANGE_SIZE,
    load_u16,
    load_u64,
    parse_contents,
    parse_header,
)
from penstock.wire._origin cimport find_origin

from penstock.base.errors import LimitError, LocalProtocolError
from penstock.wire import MESSAGE_DTYPE, PACKET_DTYPE

# row types shared with numpy; a typed memoryview refuses an array whose fields differ
ORIGIN_DTYPE = numpy.dtype(
    [("stream_id", "u4"), ("part", "u2"), ("flags", "u2"), ("term", "u8"), ("source_seq", "u8"), ("seq", "u8")]
)
PLACE_DTYPE = numpy.dtype(
    [
        ("record", "u8"),
        ("captured_ns", "i8"),
        ("publisher", "u8"),
        ("packet", "u8"),
        ("group", "u4"),
        ("epoch", "u4"),
        ("flags", "u2"),
        ("reserved", "u2"),
        ("reserved_too", "u4"),
    ]
)
STREAM_DTYPE = numpy.dtype(
    [
        ("publisher", "u8"),
        ("group", "u4"),
        ("epoch", "u4"),
        ("first_record", "u8"),
        ("last_record", "u8"),
        ("first_packet", "u8"),
        ("last_packet", "u8"),
        ("packets", "u8"),
        ("packets_lost", "u8"),
        ("packets_leapt", "u8"),
        ("packets_repaired", "u8"),
        ("packets_repeated", "u8"),
        ("packets_reordered", "u8"),
        ("messages", "u8"),
        ("bytes", "u8"),
        ("recent", "u8"),
    ]
)

STREAMS_MAX = 65_536
"""Maximum number of streams (publisher, group, epoch) per reader."""

cdef enum:
    SLOTS_MIN = 64
    RECENT_BITS = 64


cdef class RecordParser:
    """Parses records as packets, and counts by stream.

    After parse(), `packets` has a row of PACKET_DTYPE per record (an invalid record has its error and no messages),
    `messages` has the rows of MESSAGE_DTYPE, including fragments, and `refused` the index of each packet with a message
    whose ORIGIN is invalid; that message is left out. The next parse() reuses the arrays.
    """

    cdef object _packets
    cdef object _messages
    cdef object _streams
    cdef uint32_t *_slots # open addressing: 1 + the row of a stream; 0 is free
    cdef uint64_t _mask
    cdef Py_ssize_t _stream_count
    cdef StreamRow *_last # the stream of the previous packet
    cdef readonly object packets
    cdef readonly object messages
    cdef readonly list refused
    cdef readonly bint has_fragments
    cdef readonly bint has_gone
    cdef readonly bint has_bad

    def __cinit__(self):
        self._packets = numpy.empty(0, PACKET_DTYPE)
        self._messages = numpy.empty(0, MESSAGE_DTYPE)
        self.allot(SLOTS_MIN)

    def __dealloc__(self):
        free(self._slots)

    @property
    def stream_count(self) -> int:
        return self._stream_count

    @property
    def streams(self):
        """A row of STREAM_DTYPE for every stream seen so far."""
        return self._streams[: self._stream_count].copy()

    def parse(self, const uint8_t[::1] data not None, const RecordRow[::1] records not None) -> None:
        cdef Py_ssize_t count = records.shape[0]
        cdef Py_ssize_t room, kept = 0, index
        cdef uint8_t nowhere = 0
        cdef const uint8_t *start = &data[0] if data.shape[0] else &nowhere
        check_rows(data.shape[0], records)
        if count > len(self._packets):
            self._packets = numpy.empty(2 * count, PACKET_DTYPE)
        room = 0
        with nogil:
            for index in range(count):
                room += claimed_messages(start, &records[index])
        if room > len(self._messages):
            self._messages = numpy.empty(room + room // 4, MESSAGE_DTYPE)
        self.refused = []
        self.has_fragments = False
        self.has_gone = False
        self.has_bad = False
        cdef PacketView[::1] packets = self._packets
        cdef MessageView[::1] messages = self._messages
        cdef MessageView nothing
        cdef MessageView *out = &messages[0] if room else &nothing
        with nogil:
            for index in range(count):
                if index + 1 < count:
                    prefetch_span(start + records[index + 1].offset, records[index + 1].size)
                kept += self.parse_one(start, &records[index], <uint32_t>index, &packets[index], out + kept)
        self.packets = self._packets[:count]
        self.messages = self._messages[:kept]

    cdef Py_ssize_t parse_one(
        self,
        const uint8_t *data,
        const RecordRow *record,
        uint32_t number,
        PacketView *packet,
        MessageView *messages,
    ) except -1 nogil:
        """Parse one record and return its number of messages."""
        cdef uint32_t index, kept = 0
        cdef const uint8_t *origin
        cdef StreamRow *stream
        if (
            parse_header(data, record.offset, record.size, packet) != ERROR_NONE
            or parse_contents(data, packet, messages) != ERROR_NONE
        ):
            self.has_bad = True
            return 0
        if packet.kind == KIND_GONE:
            self.has_gone = True
        elif packet.kind == KIND_DATA:
            for index in range(packet.count):
                origin = NULL
                if messages[index].flags & (MESSAGE_CONTINUATION | MESSAGE_MORE):
                    self.has_fragments = True
                elif not find_origin(
                    data + messages[index].extensions_offset, messages[index].extensions_size, &origin
                ):
                    with gil:
                        self.refused.append(number)
                    self.has_bad = True
                    continue
                if kept != index:
                    messages[kept] = messages[index]
                messages[kept].packet_index = number
                kept += 1
        else:
            self.has_bad = True
            return 0
        stream = self.stream_of(packet)
        note_packet(stream, data, record, packet)
        return kept

    cdef StreamRow *stream_of(self, const PacketView *packet) except NULL nogil:
        cdef uint64_t at
        cdef StreamRow *stream = self._last
        if stream is not NULL and is_of(stream, packet):
            return stream
        at = slot_of(packet.publisher_id, packet.group, packet.epoch) & self._mask
        with gil:
            stream = self.row(0)
            while self._slots[at]:
                if is_of(stream + self._slots[at] - 1, packet):
                    self._last = stream + self._slots[at] - 1
                    return self._last
                at = (at + 1) & self._mask
            return self.add_stream(packet)

    cdef StreamRow *add_stream(self, const PacketView *packet) except NULL:
        cdef StreamRow *stream
        cdef uint64_t at
        if self._stream_count >= STREAMS_MAX:
            raise LimitError(f"the journal exceeds the limit of {STREAMS_MAX} streams")
        if 2 * <uint64_t>(self._stream_count + 1) > self._mask + 1:
            self.allot(2 * (self._mask + 1))
        stream = self.row(self._stream_count)
        memset(stream, 0, sizeof(StreamRow))
        stream.publisher = packet.publisher_id
        stream.group = packet.group
        stream.epoch = packet.epoch
        self._stream_count += 1
        at = slot_of(packet.publisher_id, packet.group, packet.epoch) & self._mask
        while self._slots[at]:
            at = (at + 1) & self._mask
        self._slots[at] = <uint32_t>self._stream_count
        self._last = stream
        return stream

    cdef StreamRow *row(self, Py_ssize_t index) except NULL:
        cdef StreamRow[::1] rows = self._streams
        return &rows[0] + index

    cdef int allot(self, uint64_t slots) except -1:
        """Allocate slots for half as many streams; existing streams keep their rows."""
        cdef uint32_t *fresh = <uint32_t *>calloc(slots, sizeof(uint32_t))
        cdef StreamRow *stream
        cdef uint64_t at
        cdef Py_ssize_t index
        if fresh is NULL:
            raise MemoryError
        free(self._slots)
        self._slots = fresh
        self._mask = slots - 1
        streams = numpy.zeros(slots // 2, STREAM_DTYPE)
        if self._stream_count:
            streams[: self._stream_count] = self._streams[: self._stream_count]
        self._streams = streams
        self._last = NULL
        for index in range(self._stream_count):
            stream = self.row(index)
            at = slot_of(stream.publisher, stream.group, stream.epoch) & self._mask
            while self._slots[at]:
                at = (at + 1) & self._mask
            self._slots[at] = <uint32_t>(index + 1)
        return 0


cdef inline bint is_of(const StreamRow *stream, const PacketView *packet) noexcept nogil:
    return (
        stream.publisher == packet.publisher_id and stream.group == packet.group and stream.epoch == packet.epoch
    )


cdef inline uint64_t slot_of(uint64_t publisher, uint32_t group, uint32_t epoch) noexcept nogil:
    cdef uint64_t mixed = (publisher ^ <uint64_t>group << 32 ^ epoch) * <uint64_t>0x9E3779B97F4A7C15
    return mixed >> 32


cdef inline uint32_t claimed_messages(const uint8_t *data, const RecordRow *record) noexcept nogil:
    """Return an upper bound of the number of messages in the record."""
    cdef uint32_t claimed, possible
    if record.size < PACKET_HEADER_SIZE:
        return 0
    claimed = load_u16(data + record.offset + PACKET_COUNT_AT)
    possible = (record.size - PACKET_HEADER_SIZE) // MESSAGE_HEADER_SIZE
    return min(claimed, possible)


cdef void note_packet(
    StreamRow *stream, const uint8_t *data, const RecordRow *record, const PacketView *packet
) noexcept nogil:
    cdef uint64_t leap, behind
    cdef uint32_t index
    cdef const uint8_t *item
    if stream.first_record == 0:
        stream.first_record = record.sequence
    stream.last_record = record.sequence
    stream.bytes += record.size
    if packet.kind == KIND_GONE:
        for index in range(packet.count):
            item = data + packet.offset + PACKET_HEADER_SIZE + packet.extensions_size + index * RANGE_SIZE
            stream.packets_lost += load_u64(item + RANGE_LAST_AT) - load_u64(item + RANGE_FIRST_AT) + 1
            if load_u64(item + RANGE_LAST_AT) > stream.last_packet:
                stream.last_packet = load_u64(item + RANGE_LAST_AT)
                stream.recent = 0
        return
    stream.messages += packet.count
    if packet.flags & PACKET_REPAIR:
        stream.packets_repaired += 1
    if stream.packets == 0 and stream.last_packet == 0:
        stream.first_packet = packet.sequence
        stream.last_packet = packet.sequence
        stream.recent = 1
    elif packet.sequence > stream.last_packet:
        leap = packet.sequence - stream.last_packet
        if leap - 1 > packet.gap:
            stream.packets_leapt += leap - 1 - packet.gap
        stream.recent = 1 if leap >= RECENT_BITS else stream.recent << leap | 1
        stream.last_packet = packet.sequence
    else:
        behind = stream.last_packet - packet.sequence
        if behind < RECENT_BITS and not stream.recent >> behind & 1:
            stream.recent |= <uint64_t>1 << behind
            stream.packets_reordered += 1
        else:
            stream.packets_repeated += 1
    stream.packets += 1


cdef int check_rows(Py_ssize_t size, const RecordRow[::1] records) except -1:
    cdef Py_ssize_t index
    if size > <Py_ssize_t>UINT32_MAX:
        raise LocalProtocolError(f"a batch of {size} bytes exceeds the limit of {UINT32_MAX}")
    for index in range(records.shape[0]):
        if <uint64_t>records[index].offset + records[index].size > <uint64_t>size:
            raise LocalProtocolError(f"record {index} is outside the data")
    return 0


# Reading values from rows. Offsets are checked first, because rows may come from anywhere.


def read_origins(const uint8_t[::1] payloads not None, const MessageView[::1] rows not None):
    """Return a row of ORIGIN_DTYPE for each message; zeros for one without a valid ORIGIN."""
    cdef Py_ssize_t index
    cdef const MessageView *row
    made = numpy.zeros(rows.shape[0], ORIGIN_DTYPE)
    cdef OriginRow[::1] origins = made
    with nogil:
        for index in range(rows.shape[0]):
            row = &rows[index]
            if row.extensions_size == 0:
                continue
            if <uint64_t>row.extensions_offset + row.extensions_size > <uint64_t>payloads.shape[0]:
                with gil:
                    raise LocalProtocolError(f"the extensions of message {index} are outside the payloads")
            read_origin(&payloads[0], row, &origins[index])
    return made


def read_places(
    const MessageView[::1] rows not None, const PacketView[::1] packets not None, const RecordRow[::1] records not None
):
    """Return a row of PLACE_DTYPE for each message, from its packet and record."""
    cdef Py_ssize_t index
    cdef uint32_t number
    cdef const PacketView *packet
    cdef PlaceRow *out
    if packets.shape[0] != records.shape[0]:
        raise LocalProtocolError(f"{packets.shape[0]} packets for {records.shape[0]} records")
    made = numpy.zeros(rows.shape[0], PLACE_DTYPE)
    cdef PlaceRow[::1] places = made
    with nogil:
        for index in range(rows.shape[0]):
            number = rows[index].packet_index
            if <Py_ssize_t>number >= packets.shape[0]:
                with gil:
                    raise LocalProtocolError(f"message {index} refers to unknown packet {number}")
            packet = &packets[number]
            out = &places[index]
            out.record = records[number].sequence
            out.captured_ns = records[number].timestamp_ns
            out.publisher = packet.publisher_id
            out.packet = packet.sequence
            out.group = packet.group
            out.epoch = packet.epoch
            out.flags = packet.flags
    return made


def gather_bytes(const uint8_t[::1] data not None, const MessageView[::1] rows not None, bint is_topic) -> tuple:
    """Return the concatenated topics or payloads, and their offsets: the buffers of an Arrow array."""
    cdef Py_ssize_t index
    cdef uint64_t total = 0
    cdef uint64_t at = 0
    cdef uint32_t offset, size
    for index in range(rows.shape[0]):
        offset = rows[index].topic_offset if is_topic else rows[index].payload_offset
        size = rows[index].topic_size if is_topic else rows[index].payload_size
        if <uint64_t>offset + size > <uint64_t>data.shape[0]:
            raise LocalProtocolError(f"message {index} is outside the data")
        total += size
    if total > 0x7FFFFFFF:
        raise LocalProtocolError(f"{total} bytes exceed the size of an Arrow array")
    offsets = numpy.empty(rows.shape[0] + 1, numpy.int32)
    contents = numpy.empty(max(total, <uint64_t>1), numpy.uint8)
    cdef int32_t[::1] starts = offsets
    cdef uint8_t[::1] out = contents
    with nogil:
        for index in range(rows.shape[0]):
            offset = rows[index].topic_offset if is_topic else rows[index].payload_offset
            size = rows[index].topic_size if is_topic else rows[index].payload_size
            starts[index] = <int32_t>at
            if size:
                memcpy(&out[at], &data[offset], size)
            at += size
    starts[rows.shape[0]] = <int32_t>at
    return offsets, contents[:total]


def find_sound(const MessageView[::1] rows not None, uint16_t model_id, const uint32_t[::1] sizes_needed not None):
    """Return a bool array of the rows that are complete records of the model; sizes_needed[v] is the record size of
    version v.
    """
    cdef Py_ssize_t index
    cdef Py_ssize_t newest = sizes_needed.shape[0] - 1
    cdef const MessageView *row
    made = numpy.empty(rows.shape[0], numpy.bool_)
    cdef uint8_t[::1] sound = made.view(numpy.uint8)
    with nogil:
        for index in range(rows.shape[0]):
            row = &rows[index]
            sound[index] = (
                row.model_id == model_id
                and row.model_version > 0
                and not row.flags & MESSAGE_SEALED
                and row.payload_size >= sizes_needed[min(<Py_ssize_t>row.model_version, newest)]
            )
    return made


def gather_spans(
    const uint8_t[::1] payloads not None,
    const MessageView[::1] rows not None,
    uint16_t version,
    uint32_t start,
    uint32_t size,
    uint8_t[::1] out not None,
) -> bool:
    """Copy `size` bytes from offset `start` of each payload to its position in `out`.

    False if a record has an older version, whose layout may differ; `out` is invalid then.
    """
    cdef Py_ssize_t index = 0
    if out.shape[0] != rows.shape[0] * size or not size:
        raise LocalProtocolError(f"the output of {out.shape[0]} bytes does not fit {rows.shape[0]} spans of {size}")
    if rows.shape[0] == 0:
        return True
    with nogil:
        # a constant size compiles to one or two moves
        if size == 8:
            index = copy_spans(payloads, rows, version, start, 8, &out[0])
        elif size == 16:
            index = copy_spans(payloads, rows, version, start, 16, &out[0])
        else:
            index = copy_spans(payloads, rows, version, start, size, &out[0])
    if index < rows.shape[0] and rows[index].model_version >= version:
        raise LocalProtocolError(f"message {index} is too short")
    return index == rows.shape[0]


cdef inline Py_ssize_t copy_spans(
    const uint8_t[::1] payloads,
    const MessageView[::1] rows,
    uint16_t version,
    uint32_t start,
    uint32_t size,
    uint8_t *out,
) noexcept nogil:
    """Return the number of rows copied; fewer than all if a row has an older version or is too short."""
    cdef Py_ssize_t index
    cdef const MessageView *row
    for index in range(rows.shape[0]):
        row = &rows[index]
        if index + AHEAD < rows.shape[0]:
            prefetch(&payloads[0] + rows[index + AHEAD].payload_offset + start)
        if (
            row.model_version < version
            or <uint64_t>start + size > row.payload_size
            or <uint64_t>row.payload_offset + row.payload_size > <uint64_t>payloads.shape[0]
        ):
            return index
        memcpy(out + index * size, &payloads[row.payload_offset + start], size)
    return rows.shape[0]


def gather_records(
    const uint8_t[::1] payloads not None,
    const MessageView[::1] rows not None,
    const uint8_t[::1] blank not None,
    const uint32_t[:, ::1] newer not None,
    uint8_t[::1] out not None,
) -> None:
    """Copy each record to its position in `out`; missing fields are taken from `blank`.

    `newer` has version, offset and size of every field that was added after the model's first version.
    """
    cdef Py_ssize_t index, field
    cdef Py_ssize_t record_size = blank.shape[0]
    cdef uint32_t size
    cdef const MessageView *row
    cdef uint8_t *record
    if out.shape[0] != rows.shape[0] * record_size:
        raise LocalProtocolError(f"the output of {out.shape[0]} bytes does not fit {rows.shape[0]} records")
    for index in range(rows.shape[0]):
        if <uint64_t>rows[index].payload_offset + rows[index].payload_size > <uint64_t>payloads.shape[0]:
            raise LocalProtocolError(f"message {index} is outside the payloads")
    for field in range(newer.shape[0]):
        if <uint64_t>newer[field, 1] + newer[field, 2] > <uint64_t>record_size:
            raise LocalProtocolError("a field is outside the record")
    with nogil:
        for index in range(rows.shape[0]):
            row = &rows[index]
            record = &out[index * record_size]
            size = min(row.payload_size, <uint32_t>record_size)
            if size:
                memcpy(record, &payloads[row.payload_offset], size)
            if size < record_size:
                memcpy(record + size, &blank[size], record_size - size)
            for field in range(newer.shape[0]):
                if newer[field, 0] > row.model_version:
                    memcpy(record + newer[field, 1], &blank[newer[field, 1]], newer[field, 2])
