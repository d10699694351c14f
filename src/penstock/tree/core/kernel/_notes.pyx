"""Notes for Python, as functions on a struct."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from penstock.tree.core.kernel._frame cimport BLOCK_SIZE_MAX

from penstock.base.counters import Cause
from penstock.tree.core.kernel.notices import (
    ControlFrame,
    InfoPacket,
    LeftLive,
    LegBlock,
    LinkEnded,
    NewerTerm,
    PublishedBlock,
)

cdef enum:
    ROWS_MIN = 64

cdef dict FAULTS = {
    FAULT_CLOSED: (Cause.CLOSED, "the other side has ended the link"),
    FAULT_CUT: (Cause.CUT, "the connection broke"),
    FAULT_SLOW: (Cause.SLOW, "it does not read the data sent to it"),
    FAULT_FRAME: (Cause.LENGTH, "it sent a frame that is too long, or of unknown kind"),
    FAULT_UNEXPECTED: (Cause.UNEXPECTED, "it sent packets, which are not expected from it"),
    FAULT_INFO: (Cause.REFUSED, "it sent a message on the infostream, but is not an agent"),
    FAULT_PACKET: (Cause.CHECKSUM, "it sent damaged or invalid packets"),
    FAULT_MEMORY: (Cause.FAILED, "there is no memory for what it sent"),
}


cdef Note *note(Notes *notes, uint8_t kind, uint64_t link) noexcept nogil:
    """Return a new note; NULL without memory."""
    cdef Note *rows
    cdef uint64_t capacity
    if notes.count == notes.capacity:
        capacity = max(2 * notes.capacity, <uint64_t>ROWS_MIN)
        rows = <Note *>realloc(notes.rows, capacity * sizeof(Note))
        if rows is NULL:
            return NULL
        notes.rows = rows
        notes.capacity = capacity
    rows = &notes.rows[notes.count]
    memset(rows, 0, sizeof(Note))
    rows.kind = kind
    rows.link = link
    notes.count += 1
    notes.total += 1
    return rows


cdef bint note_data(
    Notes *notes, uint8_t kind, uint64_t link, uint32_t leg, const uint8_t *data, uint64_t size
) noexcept nogil:
    cdef Note *row
    cdef uint8_t *copy = <uint8_t *>malloc(max(size, <uint64_t>1))
    if copy is NULL:
        return False
    row = note(notes, kind, link)
    if row is NULL:
        free(copy)
        return False
    memcpy(copy, data, size)
    row.data = copy
    row.size = row.capacity = size
    row.leg = leg
    notes.bytes += size
    return True


cdef bint note_published(Notes *notes, uint64_t link, const uint8_t *data, uint64_t size) noexcept nogil:
    cdef Note *row
    cdef void *bigger
    if notes.count == 0:
        return note_data(notes, NOTE_PUBLISHED, link, 0, data, size)
    row = &notes.rows[notes.count - 1]
    if row.kind != NOTE_PUBLISHED or row.link != link or row.size + size > BLOCK_SIZE_MAX:
        return note_data(notes, NOTE_PUBLISHED, link, 0, data, size)
    if row.size + size > row.capacity:
        bigger = realloc(row.data, 2 * (row.size + size))
        if bigger is NULL:
            return False
        row.data = <uint8_t *>bigger
        row.capacity = 2 * (row.size + size)
    memcpy(row.data + row.size, data, size)
    row.size += size
    notes.bytes += size
    return True


cdef void notes_free(Notes *notes) noexcept nogil:
    cdef uint64_t position
    for position in range(notes.count):
        free(notes.rows[position].data)
    free(notes.rows)
    memset(notes, 0, sizeof(Notes))


cdef list notes_as_notices(Notes *notes, uint64_t count_max):
    cdef uint64_t position, count = min(notes.count, count_max)
    cdef list notices = []
    try:
        for position in range(count):
            notices.append(as_notice(&notes.rows[position]))
    finally:
        for position in range(count):
            notes.bytes -= notes.rows[position].size
            free(notes.rows[position].data)
        notes.count -= count
        if notes.count:
            memmove(notes.rows, notes.rows + count, notes.count * sizeof(Note))
    return notices


cdef object as_notice(const Note *row):
    if row.kind == NOTE_NEWER_TERM:
        return NewerTerm(row.link, row.leg, row.code, row.number)
    if row.kind == NOTE_LEFT_LIVE:
        return LeftLive(row.link, row.leg, row.number)
    if row.kind == NOTE_ENDED:
        return LinkEnded(row.link, *FAULTS[row.code])
    data = PyBytes_FromStringAndSize(<const char *>row.data, row.size)
    if row.kind == NOTE_CONTROL:
        return ControlFrame(row.link, data)
    if row.kind == NOTE_LEG_BLOCK:
        return LegBlock(row.link, row.leg, data)
    if row.kind == NOTE_PUBLISHED:
        return PublishedBlock(row.link, data)
    return InfoPacket(row.link, data)
