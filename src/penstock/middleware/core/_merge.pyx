"""The merger's fast path: delivers the first copy of each message whose order is clear, without Python.

All other messages (a new term, a stream with losses, messages that wait for others) are left to the merger, one by
one.
"""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

import numpy

from penstock.wire._codec cimport (
    MessageView,
    ORIGIN_FLAGS_AT,
    ORIGIN_INDEX_AT,
    ORIGIN_MESSAGE_SEQUENCE_AT,
    ORIGIN_SOURCE_SEQUENCE_AT,
    ORIGIN_STREAM_ID_AT,
    ORIGIN_SYNCHRONISED,
    ORIGIN_TERM_AT,
    PacketView,
    load_u16,
    load_u32,
    load_u64,
)
from penstock.wire._messages cimport MessageBatch
from penstock.wire._origin cimport find_origin

from penstock.wire.term import LINEAGE_SHIFT, SESSION_TAG_SHIFT

cdef enum:
    SLOTS_MIN = 64

cdef uint32_t lineage_shift = LINEAGE_SHIFT
cdef int session_tag_shift = SESSION_TAG_SHIFT
cdef uint16_t flags_mask = (1 << SESSION_TAG_SHIFT) - 1

cdef uint64_t UNMERGED_STREAM = <uint64_t>1 << 32  # source stream ids have fewer bits

UNMERGED = UNMERGED_STREAM
"""Represents the source stream of messages without one."""


cdef class SourceCursor:
    """The position of a source stream. While `is_smooth`, none of its messages is held back."""


cdef class BranchCursor:
    """The position of one publisher's stream in a source stream.

    While `is_continuous`, nothing was lost since its last message; `is_synchronised` is true if that message could
    be used.
    """

    def __init__(self, publisher_id, group, stream_id, SourceCursor source = None):
        self.publisher_id = publisher_id
        self.group = group
        self.stream_id = stream_id
        self.source = source
        self.source_ = <PyObject *>source


cdef class BranchTable:
    """The branches, by publisher, group and source stream."""

    def __cinit__(self, uint64_t seed = 0):
        self._seed = seed
        self._branches = set()
        self._room = 0
        self.allot(SLOTS_MIN)

    def __dealloc__(self):
        PyMem_Free(self._slots)

    def add(self, BranchCursor branch not None) -> None:
        if 2 * (<uint64_t>len(self._branches) + 1) > self._mask + 1:
            self.allot(2 * (self._mask + 1))
        self._branches.add(branch)
        self.insert(branch)

    def remove(self, BranchCursor branch not None) -> None:
        """Remove a branch. The table is rebuilt, because streams end seldom."""
        self._branches.discard(branch)
        self.allot(self._mask + 1)

    def take(self, MessageBatch batch not None, Py_ssize_t start) -> tuple:
        """Merge messages from `start` on while the result is clear.

        Return the delivered messages, if any, and the index where it stopped.
        """
        batch.check_current()
        cdef Py_ssize_t chosen = 0
        cdef Py_ssize_t end
        if self._room < batch.message_count_:
            self.make_marks(batch.message_count_)
        with nogil:
            end = self.run(batch, start, &chosen)
        return batch.choose(self._is_chosen, start, end, chosen) if chosen else None, end

    cdef Py_ssize_t run(self, MessageBatch batch, Py_ssize_t start, Py_ssize_t *chosen_count) noexcept nogil:
        cdef const uint8_t *data = batch._datagrams.data
        cdef const PacketView *packet
        cdef const MessageView *message
        cdef const uint8_t *origin
        cdef PyObject *branch = NULL
        cdef uint64_t stream_id
        cdef Py_ssize_t packet_index, index
        cdef int verdict
        for packet_index in range(batch.packet_count_):
            packet = &batch.packet[packet_index]
            branch = NULL
            for index in range(packet.message_start, packet.message_start + packet.count):
                if index < start:
                    continue
                message = &batch.message[index]
                origin = NULL
                if not find_origin(data + message.extensions_offset, message.extensions_size, &origin):
                    return index
                stream_id = UNMERGED_STREAM if origin is NULL else load_u32(origin + ORIGIN_STREAM_ID_AT)
                if branch is NULL or (<BranchCursor>branch).stream_id != stream_id:
                    branch = self.find(packet.publisher_id, packet.group, stream_id)
                    if branch is NULL:
                        return index
                verdict = CHOSEN if origin is NULL else judge(
                    <BranchCursor>branch, <SourceCursor>(<BranchCursor>branch).source_, origin
                )
                if verdict == UNCLEAR:
                    return index
                self._is_chosen[index] = verdict == CHOSEN
                if verdict == CHOSEN:
                    chosen_count[0] += 1
                    self.merged_count += origin is not NULL
                else:
                    self.duplicate_count += 1
        return batch.message_count_

    cdef PyObject *find(self, uint64_t publisher_id, uint32_t group, uint64_t stream_id) noexcept nogil:
        cdef uint64_t at = self.slot_of(publisher_id, group, stream_id)
        cdef PyObject *slot = self._slots[at]
        while slot is not NULL and not (
            (<BranchCursor>slot).publisher_id == publisher_id
            and (<BranchCursor>slot).stream_id == stream_id
            and (<BranchCursor>slot).group == group
        ):
            at = (at + 1) & self._mask
            slot = self._slots[at]
        return slot

    cdef uint64_t slot_of(self, uint64_t publisher_id, uint32_t group, uint64_t stream_id) noexcept nogil:
        cdef uint64_t mixed = (publisher_id ^ self._seed ^ <uint64_t>group << 32) * <uint64_t>0x9E3779B97F4A7C15
        mixed = (mixed ^ mixed >> 32 ^ stream_id) * <uint64_t>0xD6E8FEB86659FD93
        return mixed >> 32 & self._mask

    cdef int make_marks(self, Py_ssize_t room) except -1:
        self._marks = numpy.empty(room, numpy.uint8)
        cdef uint8_t[::1] marks = self._marks
        self._is_chosen = &marks[0]
        self._room = room
        return 0

    cdef int allot(self, uint64_t slots) except -1:
        cdef PyObject **fresh = <PyObject **>PyMem_Calloc(slots, sizeof(PyObject *))
        if fresh is NULL:
            raise MemoryError
        PyMem_Free(self._slots)
        self._slots = fresh
        self._mask = slots - 1
        for branch in self._branches:
            self.insert(<BranchCursor>branch)
        return 0

    cdef void insert(self, BranchCursor branch) noexcept:
        cdef uint64_t at = self.slot_of(branch.publisher_id, branch.group, branch.stream_id)
        while self._slots[at] is not NULL:
            at = (at + 1) & self._mask
        self._slots[at] = <PyObject *>branch


cdef enum:
    UNCLEAR = 0
    CHOSEN = 1
    DUPLICATE = 2


cdef inline int judge(BranchCursor branch, SourceCursor source, const uint8_t *origin) noexcept nogil:
    """Decide on the branch's next message; if the decision is clear, advance the branch and its source stream."""
    cdef uint64_t number = load_u64(origin + ORIGIN_MESSAGE_SEQUENCE_AT)
    cdef uint64_t source_sequence
    cdef uint16_t message_index
    cdef uint32_t term = load_u32(origin + ORIGIN_TERM_AT)
    cdef uint16_t flags = load_u16(origin + ORIGIN_FLAGS_AT)
    if not source.is_smooth or not is_same_lineage(term, source.term) or not is_same_lineage(term, branch.term) or number == 0:
        return UNCLEAR
    if flags & flags_mask != ORIGIN_SYNCHRONISED or not branch.is_continuous:
        return UNCLEAR
    if number > source.number and flags >> session_tag_shift != source.session_tag:
        return UNCLEAR
    if number > source.number and number - 1 > source.number and branch.number > source.number:
        return UNCLEAR
    branch.number = number
    branch.term = term
    source.term = max(source.term, term)
    if number > source.number:
        source.number = number
        source_sequence = load_u64(origin + ORIGIN_SOURCE_SEQUENCE_AT)
        message_index = load_u16(origin + ORIGIN_INDEX_AT)
        if not source.has_position or source_sequence > source.source_sequence or (
            source_sequence == source.source_sequence and message_index > source.message_index
        ):
            source.source_sequence = source_sequence
            source.message_index = message_index
            source.has_position = True
            return CHOSEN
    return DUPLICATE


cdef inline bint is_same_lineage(uint32_t term, uint32_t other) noexcept nogil:
    """True if two terms have the same lineage, and therefore the same numbers (wire/term.py)."""
    return term >> lineage_shift == other >> lineage_shift
