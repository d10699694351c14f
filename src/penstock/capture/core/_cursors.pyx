"""Take each message of redundant streams once: the rule of a Merger, for captures, where waiting is impossible.

A merger holds back early messages; here, an early message is taken at once, and the numbers it skipped are remembered
as holes, so that their messages are taken when they arrive. Positions in the source are compared within a session. Two
sessions may have the same tag, so an announcement of another session name or trading date resets the position.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memmove, memset

import numpy

from penstock.base._prefetch cimport prefetch
from penstock.capture.core._rows cimport AHEAD, OriginRow, read_origin
from penstock.wire._codec cimport MessageView, ORIGIN_DISCONTINUITY, ORIGIN_IMAGE, ORIGIN_SYNCHRONISED

from penstock.base.crc32c import crc32c
from penstock.base.errors import LocalProtocolError
from penstock.middleware.core.source_stream import DiscontinuityNote
from penstock.wire.term import LINEAGE_SHIFT, SESSION_TAG_SHIFT, is_same_session

cdef uint32_t lineage_shift = LINEAGE_SHIFT
cdef int session_tag_shift = SESSION_TAG_SHIFT


cdef class StreamCursor:
    """Position of one source stream; term 0 is before its first message."""

    cdef CursorState state
    cdef readonly list beginnings
    """Lineages with which announced sessions began, in order: the last one before the rows, and those in the rows."""

    def __cinit__(self, stream_id):
        memset(&self.state, 0, sizeof(CursorState))
        self.state.stream_id = stream_id
        self.beginnings = []

    def export(self) -> tuple:
        """Return the arguments with which restore() creates an equal cursor."""
        holes = [(self.state.hole_first[i], self.state.hole_last[i]) for i in range(self.state.hole_count)]
        tag = self.state.session_tag if self.state.has_position else -1
        return (
            self.state.term, self.state.number, self.state.source_seq, self.state.part, tag, holes,
            self.state.session_name, self.state.session_date, self.state.begun,
        )

    def restore(
        self, term, seq, source_seq, part, tag, holes, session_name=0, session_date=0, begun=0
    ) -> None:
        cdef uint32_t count = 0
        self.state.term = term
        self.state.number = seq
        self.state.source_seq = source_seq
        self.state.part = part
        self.state.has_position = tag >= 0
        self.state.session_tag = max(tag, 0)
        for first, last in holes[-HOLES_MAX:]:
            self.state.hole_first[count] = first
            self.state.hole_last[count] = last
            count += 1
        self.state.hole_count = count
        self.state.session_name = session_name
        self.state.session_date = session_date
        self.state.begun = begun
        self.beginnings = [begun] if begun else []

    cdef int note_session(self, const uint8_t[::1] payloads, const MessageView *row, const OriginRow *origin) except -1:
        """Called before judge(): reset the position if the announcement is for another session than the previous
        one.
        """
        cdef uint32_t lineage = <uint32_t>origin.term >> lineage_shift
        cdef uint32_t known = self.state.term >> lineage_shift
        if not origin.flags & ORIGIN_SYNCHRONISED or origin.part or lineage < known: # part 1: a session end
            return 0
        if <uint64_t>row.payload_offset + row.payload_size > <uint64_t>payloads.shape[0]:
            raise LocalProtocolError("an announcement is not within the payloads")
        note = DiscontinuityNote.decode(bytes(payloads[row.payload_offset : row.payload_offset + row.payload_size]))
        cdef uint32_t name = crc32c(note.session.encode()) if note.session else 0
        cdef uint32_t date = crc32c(note.trading_date.encode()) if note.trading_date else 0
        cdef bint is_other = lineage > known and note.reason == "session"
        if name and self.state.session_name:
            is_other |= not is_same_session(name, date, self.state.session_name, self.state.session_date)
        if is_other:
            self.state.has_position = False
            self.state.begun = lineage
            self.beginnings.append(lineage)
            self.state.session_name = self.state.session_date = 0
        if name:
            self.state.session_name = name
            self.state.session_date = date or self.state.session_date
        return 0


def judge_rows(
    dict cursors not None, const uint8_t[::1] payloads not None, const MessageView[::1] rows not None
):
    """Return the verdict on each message (KEPT, ...) as an array of u1, and advance the cursors by stream id."""
    cdef Py_ssize_t index = 0
    cdef Py_ssize_t count = rows.shape[0]
    cdef StreamCursor cursor
    cdef OriginRow origin
    made = numpy.zeros(count, numpy.uint8)
    memset(&origin, 0, sizeof(origin))
    if count == 0 or payloads.shape[0] == 0:
        return made # no message has an ORIGIN
    check_extensions(payloads.shape[0], rows)
    cdef uint8_t[::1] verdicts = made
    while index < count:
        with nogil:
            while index < count and not read_origin(&payloads[0], &rows[index], &origin):
                index += 1 # a message without ORIGIN is kept
        if index == count:
            break
        if origin.stream_id not in cursors:
            cursors[origin.stream_id] = StreamCursor(origin.stream_id)
        cursor = cursors[origin.stream_id]
        if origin.flags & ORIGIN_DISCONTINUITY:
            cursor.note_session(payloads, &rows[index], &origin)
            verdicts[index] = judge(&cursor.state, &origin)
            index += 1
            continue
        with nogil:
            index = judge_run(&cursor.state, &payloads[0], rows, &verdicts[0], index)
    return made


cdef Py_ssize_t judge_run(
    CursorState *cursor, const uint8_t *payloads, const MessageView[::1] rows, uint8_t *verdicts, Py_ssize_t start
) noexcept nogil:
    """Process messages while they belong to the cursor's stream, up to an announcement."""
    cdef Py_ssize_t index
    cdef OriginRow origin
    for index in range(start, rows.shape[0]):
        if index + AHEAD < rows.shape[0]:
            prefetch(payloads + rows[index + AHEAD].extensions_offset)
        if not read_origin(payloads, &rows[index], &origin) or origin.stream_id != cursor.stream_id:
            return index
        if origin.flags & ORIGIN_DISCONTINUITY:
            return index
        verdicts[index] = judge(cursor, &origin)
    return rows.shape[0]


cdef int check_extensions(Py_ssize_t size, const MessageView[::1] rows) except -1:
    cdef Py_ssize_t index
    cdef uint64_t end = 0
    for index in range(rows.shape[0]):
        end = max(end, <uint64_t>rows[index].extensions_offset + rows[index].extensions_size)
    if end > <uint64_t>size:
        raise LocalProtocolError(f"the extensions of a message end at {end}, the payloads at {size}")
    return 0


cdef inline uint8_t judge(CursorState *cursor, const OriginRow *origin) noexcept nogil:
    cdef uint32_t lineage = <uint32_t>origin.term >> lineage_shift
    cdef bint is_discontinuity = origin.flags & ORIGIN_DISCONTINUITY != 0
    if origin.flags & ORIGIN_IMAGE and not is_discontinuity:
        return KEPT
    if origin.seq == 0 and not is_discontinuity:
        return UNNUMBERED
    if not origin.flags & ORIGIN_SYNCHRONISED:
        return ANNOUNCEMENT if is_discontinuity else UNSYNCHRONISED
    if cursor.term == 0 or lineage > cursor.term >> lineage_shift:
        cursor.term = <uint32_t>origin.term
        cursor.number = origin.seq if is_discontinuity else origin.seq - 1
        cursor.hole_count = 0
    if is_discontinuity:
        return ANNOUNCEMENT
    if lineage < cursor.term >> lineage_shift:
        return FENCED
    cursor.term = max(cursor.term, <uint32_t>origin.term)
    if origin.seq <= cursor.number:
        return KEPT if fill_hole(cursor, origin.seq) else REPEATED
    if origin.seq > cursor.number + 1:
        add_hole(cursor, cursor.number + 1, origin.seq - 1)
    cursor.number = origin.seq
    return KEPT if is_new_position(cursor, origin) else REPEATED


cdef inline bint is_new_position(CursorState *cursor, const OriginRow *origin) noexcept nogil:
    """True if the message's source message and part were not seen under another number."""
    cdef uint16_t tag = origin.flags >> session_tag_shift
    if cursor.has_position and tag == cursor.session_tag and (
        origin.source_seq < cursor.source_seq
        or (origin.source_seq == cursor.source_seq and origin.part <= cursor.part)
    ):
        return False
    cursor.has_position = True
    cursor.session_tag = tag
    cursor.source_seq = origin.source_seq
    cursor.part = origin.part
    return True


cdef void add_hole(CursorState *cursor, uint64_t first, uint64_t last) noexcept nogil:
    if cursor.hole_count == HOLES_MAX: # the oldest hole is given up
        remove_hole(cursor, 0)
    cursor.hole_first[cursor.hole_count] = first
    cursor.hole_last[cursor.hole_count] = last
    cursor.hole_count += 1


cdef void remove_hole(CursorState *cursor, uint32_t index) noexcept nogil:
    cdef size_t size = (cursor.hole_count - index - 1) * sizeof(uint64_t)
    memmove(&cursor.hole_first[index], &cursor.hole_first[index] + 1, size)
    memmove(&cursor.hole_last[index], &cursor.hole_last[index] + 1, size)
    cursor.hole_count -= 1


cdef bint fill_hole(CursorState *cursor, uint64_t number) noexcept nogil:
    """True if the number was in a hole; removes the number from the hole."""
    cdef uint32_t index
    cdef uint64_t last
    for index in range(cursor.hole_count):
        if not cursor.hole_first[index] <= number <= cursor.hole_last[index]:
            continue
        last = cursor.hole_last[index]
        if cursor.hole_first[index] == number == last:
            remove_hole(cursor, index)
        elif cursor.hole_first[index] == number:
            cursor.hole_first[index] += 1
        elif last == number:
            cursor.hole_last[index] -= 1
        elif cursor.hole_count < HOLES_MAX: # within the hole: split it in two
            memmove(
                &cursor.hole_first[index] + 1,
                &cursor.hole_first[index],
                (cursor.hole_count - index) * sizeof(uint64_t),
            )
            memmove(
                &cursor.hole_last[index] + 1, &cursor.hole_last[index], (cursor.hole_count - index) * sizeof(uint64_t)
            )
            cursor.hole_count += 1
            cursor.hole_last[index] = number - 1
            cursor.hole_first[index + 1] = number + 1
        else:
            cursor.hole_first[index] = number + 1
        return True
    return False
