"""What an agent does with packets: those that are new are kept, and wait for every link with a leg that wants them.

The lane (_lane.pyx) feeds it from sockets, without Python; Fanout, which this is the compiled part of, from Python.
"""

cimport cython
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove

from penstock.filter.core.kernel._condition cimport is_met
from penstock.filter.core.kernel._matching cimport Matcher
from penstock.tree.core.kernel._frame cimport (
    BLOCK_HEADER_SIZE,
    BLOCK_KIND_AT,
    BLOCK_LEG_AT,
    BLOCK_SIZE_MAX,
    FRAME_LENGTH_SIZE,
    FRAME_SIZE_MAX,
    KIND_CONTROL,
    KIND_PACKETS,
    KIND_PUBLISHED,
    are_packets,
    packet_size_at,
    write_block_header,
)
from penstock.tree.core.kernel._history cimport History, Stream, next_place, packet_at
from penstock.tree.core.kernel._intake cimport INTAKE_OPEN, INTAKE_WAITS
from penstock.tree.core.kernel._link cimport Link, free_link, is_stopped, keep_partial, missing_size, without
from penstock.tree.core.kernel._newest cimport Subject, newest_put, subject_of
from penstock.tree.core.kernel._notes cimport (
    FAULT_FRAME,
    FAULT_INFO,
    FAULT_MEMORY,
    FAULT_PACKET,
    FAULT_SLOW,
    FAULT_UNEXPECTED,
    NOTE_CONTROL,
    NOTE_ENDED,
    NOTE_INFO,
    NOTE_LEFT_LIVE,
    NOTE_LEG_BLOCK,
    NOTE_NEWER_TERM,
    Note,
    note,
    note_data,
    note_published,
    notes_free,
)
from penstock.tree.core.kernel._queue cimport Queue, Run, queue_drop_packets, queue_front, queue_put, run_at
from penstock.wire._codec cimport (
    ERROR_NONE,
    KIND_DATA,
    MESSAGE_CONTINUATION,
    MESSAGE_DIRECT,
    MESSAGE_MORE,
    PACKET_GROUP_AT,
    PACKET_SEQUENCE_AT,
    PACKET_SIZE_AT,
    PacketView,
    load_u32,
    load_u64,
    parse_contents,
    parse_header,
)

import os

from penstock.topics import InterestTable

cdef extern from "Python.h":
    int PyBUF_READ

cdef enum:
    MIB = 1_048_576
    MARGIN_SHARE = 8        # of the history: how far ahead of what is written over queues are looked at
    KEPT_SIZE_MAX = 2 * FRAME_SIZE_MAX # bytes that come while nothing is taken from the link


@cython.no_gc_clear
cdef class Flow:
    def __cinit__(
        self,
        uint64_t tree_id,
        *,
        uint64_t history_size = 64 * MIB,
        uint32_t streams_max = 1_024,
        uint32_t links_max = 4_096,
        uint32_t legs_max = 65_536,
        uint32_t wants_max = 262_144,
        uint64_t queue_packets_max = 65_536,
        uint64_t words_size_max = 4 * MIB,
        uint32_t topics_waiting_max = 65_536,
    ):
        self.bell = -1
        self.tree_id = tree_id
        self.links_max = links_max
        self.legs_max = legs_max
        self.wants_max = wants_max
        self.words_size_max = words_size_max
        self._queue_packets_max = queue_packets_max
        self._conflate_from = min(queue_packets_max, <uint64_t>CONFLATE_FROM)
        self._topics_waiting_max = topics_waiting_max
        if mutex_init(&self.mutex):
            raise MemoryError
        self.history = History(history_size, streams_max)
        self.linked = <Link *>calloc(max(1, links_max), sizeof(Link))
        self.ready_slots = <uint32_t *>calloc(max(1, links_max), sizeof(uint32_t))
        self.lane_slots = <uint32_t *>calloc(max(1, links_max), sizeof(uint32_t))
        self.held_slots = <uint32_t *>calloc(max(1, links_max), 2 * sizeof(uint32_t))  # see go_on_held()
        self.legs = <Leg *>calloc(max(1, legs_max), sizeof(Leg))
        self.wants = <Want *>calloc(max(1, wants_max), sizeof(Want))
        if self.linked is NULL or self.ready_slots is NULL or self.lane_slots is NULL:
            raise MemoryError
        if self.held_slots is NULL or self.legs is NULL or self.wants is NULL:
            raise MemoryError
        self.table = InterestTable()
        self._matcher = Matcher(self.table)

    def __dealloc__(self):
        cdef uint32_t slot
        if self.linked is not NULL:
            for slot in range(self.links_max):
                if self.linked[slot].number:
                    free_link(&self.linked[slot])
        free(self.linked)
        free(self.ready_slots)
        free(self.lane_slots)
        free(self.held_slots)
        free(self.legs)
        free(self.wants)
        notes_free(&self.notes)
        mutex_destroy(&self.mutex)

    cdef void release(self) noexcept:
        """Wake the lane if there is something to send."""
        cdef bint is_lane_needed = self.mutex.depth == 1 and self.lane_count and self.is_lane_asleep
        is_lane_needed = is_lane_needed and not self.is_corked
        if is_lane_needed:
            self.is_lane_asleep = False
        mutex_release(&self.mutex)
        if is_lane_needed:
            os.eventfd_write(self.bell, 1)

    cdef void mark_ready(self, uint32_t slot) noexcept nogil:
        if self.linked[slot].is_ready:
            return
        self.linked[slot].is_ready = True
        if self.linked[slot].fd >= 0:
            self.lane_slots[self.lane_count] = slot
            self.lane_count += 1
        else:
            self.ready_slots[self.ready_count] = slot
            self.ready_count += 1
            self.ready_total += 1

    cdef void forget_ready(self, uint32_t slot) noexcept nogil:
        if self.linked[slot].is_ready:
            self.linked[slot].is_ready = False
            self.ready_count = without(self.ready_slots, self.ready_count, slot)
            self.lane_count = without(self.lane_slots, self.lane_count, slot)

    cdef void was_noted(self, uint32_t slot, uint64_t size) noexcept nogil:
        cdef Link *link = &self.linked[slot]
        link.noted += 1
        link.noted_size += size
        if link.noted < NOTED_MAX and link.noted_size < NOTED_SIZE_MAX:
            return
        link.held_at = self.notes.total
        if not link.is_held:
            link.is_held = True
            self.held_slots[self.held_count] = slot
            self.held_count += 1
            self.mark_ready(slot)

    cdef int go_on_held(self) except -1 nogil:
        """Each whose notes have been given to Python gets its turn, and may have to wait again."""
        cdef uint32_t position, slot, turns = self.held_count, kept = 0
        cdef uint64_t given = self.notes.total - self.notes.count
        cdef Link *link
        for position in range(turns):
            slot = self.held_slots[position]
            link = &self.linked[slot]
            if link.held_at > given:
                self.held_slots[kept] = slot
                kept += 1
                continue
            link.is_held = False
            link.noted = 0
            link.noted_size = 0
            self.go_on(slot)
        self.held_count -= turns  # those who have to wait again were put behind
        memmove(self.held_slots + kept, self.held_slots + turns, self.held_count * sizeof(uint32_t))
        self.held_count += kept
        return 0

    cdef void end(self, uint32_t slot, uint32_t fault) noexcept nogil:
        """Note that the link is at its end; once."""
        cdef Note *row
        if self.linked[slot].is_over:
            return
        self.silence(slot)
        row = note(&self.notes, NOTE_ENDED, self.linked[slot].number)
        if row is not NULL:  # without memory for that, who owns the link finds out by its silence
            row.code = fault

    cdef void silence(self, uint32_t slot) noexcept nogil:
        """Nothing more is taken from the link, and no packets are sent."""
        cdef Link *link = &self.linked[slot]
        cdef uint32_t leg = link.legs
        link.is_over = True
        link.partial_size = 0
        queue_drop_packets(&link.queue)
        while leg:
            self.legs[leg - 1].is_live = False
            leg = self.legs[leg - 1].next
        self.mark_ready(slot)

    # Frames

    cdef int take_in(self, uint32_t slot, const uint8_t *data, uint64_t size) except -1 nogil:
        cdef Link *link = &self.linked[slot]
        cdef uint64_t missing, taken = 0
        link.bytes_in += size
        while link.partial_size and size and not is_stopped(link):
            missing = missing_size(link)
            if not keep_partial(link, data, min(missing, size)):
                self.end(slot, FAULT_MEMORY)
                return 0
            data += min(missing, size)
            size -= min(missing, size)
            if missing_size(link) == 0:
                self.take_partial(slot)
        if size and not is_stopped(link):
            self.take_frames(slot, data, size, &taken)
        if taken == size or link.is_over:
            return 0
        if link.partial_size + size - taken > KEPT_SIZE_MAX or not keep_partial(link, data + taken, size - taken):
            self.end(slot, FAULT_MEMORY)
        return 0

    cdef int take_partial(self, uint32_t slot) except -1 nogil:
        """The frame that came in pieces is whole, or turns out to be none."""
        cdef Link *link = &self.linked[slot]
        cdef uint8_t *frame = link.partial
        cdef uint64_t size = link.partial_size, capacity = link.partial_capacity, taken = 0
        cdef bint has_to_wait
        link.partial = NULL  # so that what is left over can be kept while the frame is read
        link.partial_size = link.partial_capacity = 0
        self.take_frames(slot, frame, size, &taken)
        has_to_wait = taken == 0 and link.is_waiting
        if has_to_wait or (link.partial is NULL and capacity <= PARTIAL_KEPT):
            link.partial = frame
            link.partial_capacity = capacity
            link.partial_size = size if has_to_wait else 0
        else:
            free(frame)
        return 0

    cdef int go_on(self, uint32_t slot) except -1 nogil:
        """With what came while nothing was taken from it, if something is again."""
        cdef Link *link = &self.linked[slot]
        cdef uint8_t *data = link.partial
        cdef uint64_t size = link.partial_size, taken = 0
        if is_stopped(link):
            return 0
        link.partial = NULL
        link.partial_size = link.partial_capacity = 0
        self.take_frames(slot, data, size, &taken)
        if taken < size and not link.is_over and not keep_partial(link, data + taken, size - taken):
            self.end(slot, FAULT_MEMORY)
        free(data)
        self.mark_ready(slot)
        return 0

    cdef int take_frames(self, uint32_t slot, const uint8_t *data, uint64_t size, uint64_t *taken) except -1 nogil:
        """Whole frames, until there is no more, or nothing more is to be taken from the link."""
        cdef Link *link = &self.linked[slot]
        cdef uint64_t length
        while size - taken[0] >= FRAME_LENGTH_SIZE and not is_stopped(link):
            length = load_u32(data + taken[0])
            if length == 0 or length > FRAME_SIZE_MAX - FRAME_LENGTH_SIZE:
                self.end(slot, FAULT_FRAME)
                return 0
            if size - taken[0] < FRAME_LENGTH_SIZE + length or self.must_wait(slot, data[taken[0] + BLOCK_KIND_AT]):
                return 0
            self.take_frame(slot, data + taken[0], <uint32_t>(FRAME_LENGTH_SIZE + length))
            taken[0] += FRAME_LENGTH_SIZE + length
        return 0

    cdef int take_frame(self, uint32_t slot, const uint8_t *frame, uint32_t size) except -1 nogil:
        cdef Link *link = &self.linked[slot]
        cdef uint8_t kind = frame[BLOCK_KIND_AT]
        cdef const uint8_t *packets = frame + BLOCK_HEADER_SIZE
        cdef uint32_t leg, packets_size = size - BLOCK_HEADER_SIZE
        cdef bint is_noted = True
        if kind >= KIND_CONTROL:
            is_noted = note_data(
                &self.notes, NOTE_CONTROL, link.number, 0, frame + FRAME_LENGTH_SIZE, size - FRAME_LENGTH_SIZE
            )
            self.was_noted(slot, size)
        elif size < BLOCK_HEADER_SIZE or size > BLOCK_SIZE_MAX or kind < KIND_PACKETS or kind > KIND_PUBLISHED:
            self.end(slot, FAULT_FRAME)
        elif not link.brings & (PUBLISHED if kind == KIND_PUBLISHED else PACKETS | INFO):
            self.end(slot, FAULT_UNEXPECTED)
        elif kind == KIND_PACKETS and load_u32(frame + BLOCK_LEG_AT) == 0:
            self.take_block(slot, packets, packets_size)
        elif not are_packets(packets, packets_size):
            self.end(slot, FAULT_PACKET)
        elif kind == KIND_PUBLISHED:
            is_noted = self.take_published(slot, packets, packets_size)
        else:
            leg = load_u32(frame + BLOCK_LEG_AT)
            is_noted = note_data(&self.notes, NOTE_LEG_BLOCK, link.number, leg, packets, packets_size)
            link.is_paused = True  # live packets that follow it must not be taken before it
            self.mark_ready(slot)
        if not is_noted:
            self.end(slot, FAULT_MEMORY)
        return 0

    cdef bint must_wait(self, uint32_t slot, uint8_t kind) noexcept nogil:
        """Whether this is a publisher's block that the intake is to have, which is about to be opened."""
        if kind != KIND_PUBLISHED or self.intake is None or self.intake.state != INTAKE_WAITS:
            return False
        self.wait_for_intake(slot)
        return True

    cdef void wait_for_intake(self, uint32_t slot) noexcept nogil:
        self.linked[slot].is_waiting = True
        self.waiting_count += 1
        self.mark_ready(slot)

    cdef int go_on_waiting(self) except -1 nogil:
        cdef uint32_t slot
        for slot in range(self.links_max if self.waiting_count else 0):
            if self.linked[slot].is_waiting:
                self.linked[slot].is_waiting = False
                self.waiting_count -= 1
                self.go_on(slot)
        return 0

    cdef bint take_published(self, uint32_t slot, const uint8_t *packets, uint32_t size) except? -1 nogil:
        """What the intake does not take is noted, and what follows that waits until Python has seen to it: most of it is
        the intake's again. False without memory."""
        cdef uint32_t taken = self.give_places(slot, packets, size)
        if taken == size:
            return True
        if self.intake is not None and self.intake.state == INTAKE_OPEN:
            self.wait_for_intake(slot)
        return note_published(&self.notes, self.linked[slot].number, packets + taken, size - taken)

    cdef uint32_t give_places(self, uint32_t slot, const uint8_t *packets, uint32_t size) except? 0xFFFFFFFF nogil:
        """To a publisher's messages; how many bytes of them have theirs, and are passed on."""
        cdef Link *link = &self.linked[slot]
        cdef uint32_t taken, passed_on = 0
        if not link.publisher.id or not self.now_ns or self.intake is None or self.intake.state != INTAKE_OPEN:
            return 0
        taken = self.intake.take(&link.publisher, self.history, packets, size, self.now_ns)
        if self.intake.fresh_size:
            self.absorb_packets(NO_SLOT, True, self.intake.fresh, self.intake.fresh_size, &passed_on)
        return taken

    cdef int take_block(self, uint32_t slot, const uint8_t *packets, uint32_t size) except -1 nogil:
        """A live block; what of it cannot be taken yet is kept, as a block."""
        cdef Link *link = &self.linked[slot]
        cdef uint8_t header[BLOCK_HEADER_SIZE]
        cdef uint32_t taken = 0
        self.absorb_packets(slot, False, packets, size, &taken)
        if link.is_over or taken == size:
            return 0
        if not link.is_paused:
            self.end(slot, FAULT_PACKET)
            return 0
        write_block_header(header, KIND_PACKETS, 0, size - taken)
        if not keep_partial(link, header, BLOCK_HEADER_SIZE) or not keep_partial(link, packets + taken, size - taken):
            self.end(slot, FAULT_MEMORY)
        return 0

    # Packets

    cdef int64_t absorb_packets(
        self, uint32_t slot, bint is_any_term, const uint8_t *data, uint32_t size, uint32_t *taken
    ) except -1 nogil:
        cdef uint32_t count = 0, packet_size
        cdef int64_t new = 0
        cdef Verdict verdict = NEW
        while taken[0] < size and (verdict == NEW or verdict == PASSED_OVER):
            packet_size = packet_size_at(data + taken[0], size - taken[0])
            verdict = self.judge(slot, is_any_term, data, taken[0], packet_size, count) if packet_size else BAD
            if verdict == NEW:
                count += 1
                new += 1
            if count == BATCH_MAX:
                self.pass_on(slot, data, size, count)
                count = 0
            if verdict == NEW or verdict == PASSED_OVER:
                taken[0] += packet_size
        if count:
            self.pass_on(slot, data, size, count)
        return new

    cdef Verdict judge(
        self, uint32_t slot, bint is_any_term, const uint8_t *data, uint32_t at, uint32_t size, uint32_t row
    ) noexcept nogil:
        """Of a packet that was found new the row is filled in."""
        cdef PacketView packet
        cdef Link *link = NULL if slot == NO_SLOT else &self.linked[slot]
        if (
            parse_header(data, at, size, &packet) != ERROR_NONE
            or packet.kind != KIND_DATA
            or packet.count != 1
            or parse_contents(data, &packet, &self._rows[row]) != ERROR_NONE
            or self._rows[row].flags & (MESSAGE_DIRECT | MESSAGE_CONTINUATION | MESSAGE_MORE)
        ):
            return BAD
        if link is not NULL:
            link.packets_in += 1
        if packet.group == 0:
            if link is NULL or not link.brings & INFO:
                if link is not NULL:
                    self.end(slot, FAULT_INFO)
                return BAD
            if not note_data(&self.notes, NOTE_INFO, link.number, 0, data + at, size):
                self.end(slot, FAULT_MEMORY)
            self.was_noted(slot, size)
            return PASSED_OVER
        if link is not NULL and not link.brings & PACKETS:
            self.end(slot, FAULT_UNEXPECTED)
            return BAD
        if link is not NULL and self.is_origin:
            link.dropped += 1
            return PASSED_OVER
        self._row_starts[row] = at
        self._row_sizes[row] = size
        return self.judge_place(slot, is_any_term, &packet, row)

    cdef Verdict judge_place(
        self, uint32_t slot, bint is_any_term, const PacketView *packet, uint32_t row
    ) noexcept nogil:
        """Whether it is the next of a stream."""
        cdef Stream *stream = self.history.find(packet.group)
        cdef Link *link = NULL if slot == NO_SLOT else &self.linked[slot]
        cdef Note *newer
        if packet.publisher_id != self.tree_id or stream is NULL or packet.epoch < stream.term:
            if link is not NULL:
                link.dropped += 1
            return PASSED_OVER
        if packet.epoch > stream.term:
            if not is_any_term:
                newer = note(&self.notes, NOTE_NEWER_TERM, link.number)
                if newer is NULL:
                    self.end(slot, FAULT_MEMORY)
                    return BAD
                newer.leg = stream.number
                newer.code = packet.epoch
                newer.number = packet.sequence
                link.is_paused = True
                self.mark_ready(slot)
                return NOT_YET
            stream.term = packet.epoch
        if packet.sequence <= stream.last:
            stream.duplicates += 1
            if link is not NULL:
                link.duplicates += 1
            return PASSED_OVER
        stream.last = packet.sequence
        stream.accepted += 1
        self._row_streams[row] = stream
        self._row_sequences[row] = packet.sequence
        return NEW

    cdef int pass_on(self, uint32_t slot, const uint8_t *data, uint32_t size, uint32_t count) except -1 nogil:
        """Keep what was found new, and queue it for whoever wants it."""
        cdef uint32_t row
        cdef uint64_t place, found
        cdef Stream *stream
        if self._matcher.kernel.regex_count:
            with gil:
                self._view = PyMemoryView_FromMemory(<char *>data, size, PyBUF_READ)
        self._matcher.match(data, self._view, self._rows, count)
        for row in range(count):
            stream = self._row_streams[row]
            self.make_way(self._row_sizes[row])
            place = self.history.keep(
                stream, self._row_sequences[row], data + self._row_starts[row], self._row_sizes[row]
            )
            for found in range(self._matcher.results[row], self._matcher.results[row + 1]):
                self.pass_to(&self.wants[self._matcher.found.subscribers[found]], slot, data, row, place)
            stream.done = self._row_sequences[row]
        return 0

    cdef void pass_to(
        self, const Want *want, uint32_t source, const uint8_t *data, uint32_t row, uint64_t place
    ) noexcept nogil:
        cdef const Leg *leg = &self.legs[want.leg]
        cdef Queue *queue = &self.linked[leg.slot].queue
        if (
            not leg.is_live
            or queue.last_place == place
            or leg.slot == source
            or leg.stream is not self._row_streams[row]
            or self._row_sequences[row] <= leg.after
        ):
            return
        if want.terms is not NULL and not is_met(want.terms, &self._rows[row], data + self._rows[row].payload_offset):
            return
        self.offer(leg.slot, place, self._row_sizes[row])

    # Queues

    cdef void offer(self, uint32_t slot, uint64_t place, uint32_t size) noexcept nogil:
        """A packet for a link, which has room for it or is dealt with by its class."""
        cdef Link *link = &self.linked[slot]
        cdef Queue *queue = &link.queue
        cdef Subject subject
        cdef int put
        if link.cls == CONFLATING and queue.packets >= self._queue_packets_max + self._topics_waiting_max:
            self.leave_live(slot)  # what it was told in between kept too many from being conflated
            return
        if link.cls == CONFLATING and (queue.newest.count or queue.packets >= self._conflate_from):
            subject_of(packet_at(self.history, place), &subject)
            put = newest_put(
                &queue.newest, self.history.data, self.history.size, &subject, place, size, self._topics_waiting_max
            )
            link.conflated += put == 2
            if put == 0:
                self.leave_live(slot)
                return
        elif queue.packets >= self._queue_packets_max and link.cls == DISCONNECT:
            self.end(slot, FAULT_SLOW)
            return
        elif queue.packets >= self._queue_packets_max or not queue_put(queue, place, size):
            self.leave_live(slot)
            return
        queue.last_place = place
        self.mark_ready(slot)

    cdef void make_way(self, uint32_t size) noexcept nogil:
        """Before something is written into the history: links whose packets would soon be written over leave live."""
        cdef uint64_t end = next_place(self.history, size) + size
        cdef uint64_t margin, front
        cdef uint32_t slot
        if end <= self._guard:
            return
        margin = self.history.size // MARGIN_SHARE
        for slot in range(self.links_max):
            if self.linked[slot].number == 0 or not queue_front(&self.linked[slot].queue, &front):
                continue
            if front + self.history.size < end + margin:
                if self.linked[slot].cls == DISCONNECT:
                    self.end(slot, FAULT_SLOW)
                else:
                    self.leave_live(slot)
        self._guard = end + margin

    cdef void leave_live(self, uint32_t slot) noexcept nogil:
        """None of the packets that wait for the link is sent: each of its legs has everything up to the first of them
        of its stream. Words stay."""
        cdef Link *link = &self.linked[slot]
        cdef uint32_t leg = link.legs
        cdef Leg *row
        cdef Note *left
        cdef uint64_t position, through
        cdef uint32_t waiting = link.queue.newest.first
        self._marks += 1
        for position in range(link.queue.begin, link.queue.end):
            self.mark_waiting(run_at(&link.queue, position), self._marks)
        while waiting:
            self.mark_packet(link.queue.newest.rows[waiting].place, self._marks)
            waiting = link.queue.newest.rows[waiting].after
        while leg:
            row = &self.legs[leg - 1]
            leg = row.next
            if not row.is_live:
                continue
            through = row.stream.first_waiting - 1 if row.stream.mark == self._marks else row.stream.done
            row.is_live = False
            left = note(&self.notes, NOTE_LEFT_LIVE, link.number)
            if left is NULL:
                self.end(slot, FAULT_MEMORY)
                return
            left.leg = row.number
            left.number = max(through, row.after)
        queue_drop_packets(&link.queue)

    cdef void mark_waiting(self, const Run *run, uint64_t mark) noexcept nogil:
        cdef uint64_t at = 0
        while run.count and at < run.size:
            self.mark_packet(run.place + at, mark)
            at += load_u32(packet_at(self.history, run.place + at) + PACKET_SIZE_AT)

    cdef void mark_packet(self, uint64_t place, uint64_t mark) noexcept nogil:
        """Note the lowest sequence of each stream."""
        cdef const uint8_t *packet = packet_at(self.history, place)
        cdef uint64_t sequence = load_u64(packet + PACKET_SEQUENCE_AT)
        cdef Stream *stream = self.history.find(load_u32(packet + PACKET_GROUP_AT))
        if stream is not NULL and (stream.mark != mark or sequence < stream.first_waiting):
            stream.mark = mark
            stream.first_waiting = sequence
