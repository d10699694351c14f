"""Fanout, the data path of an agent: accepts packets, keeps new ones, and queues them for every link with a matching
leg.

Python opens streams, links and legs here; the lane (_lane.pyx) feeds it from sockets without Python. Everything runs
under one mutex, which is acquired without the GIL, so that code that holds the mutex may acquire the GIL.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove, memset

from penstock.filter.core.kernel._condition cimport Condition, is_met
from penstock.filter.core.kernel._matching cimport Matcher
from penstock.tree.core.kernel._frame cimport (
    ACKNOWLEDGE,
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
from penstock.tree.core.kernel._history cimport History, Kept, Stream, next_place, packet_at
from penstock.tree.core.kernel._intake cimport INTAKE_CLOSED, INTAKE_OPEN, INTAKE_WAITS, INTERVAL_NS, Intake, Publisher
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
    notes_as_notices,
    notes_free,
)
from penstock.tree.core.kernel._queue cimport (
    Pieces,
    Queue,
    Run,
    queue_drop_packets,
    queue_front,
    queue_init,
    queue_put,
    queue_control,
    queue_sent,
    queue_take,
    run_at,
)
from penstock.tree.core.kernel._selection cimport Selection
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

from penstock.base.counters import Cause
from penstock.base.errors import LimitError, LocalProtocolError, PacketError
from penstock.base.free_rows import FreeRows
from penstock.topics import Interest, InterestTable
from penstock.tree.core.kernel.notices import LinkState, Portion, StreamState
from penstock.tree.core.kernel.taken import PublisherProgress, Taken

__all__ = ["Brings", "Fanout", "LinkClass"]

cdef extern from "Python.h":
    int PyBUF_READ

cdef enum:
    MIB = 1_048_576
    MARGIN_SHARE = 8  # of the history: distance ahead of the write position in which queues are checked
    KEPT_SIZE_MAX = 2 * FRAME_SIZE_MAX  # bytes buffered while the link is stopped
    SCAN_SIZE_MAX = 4_194_304  # bytes of history that one fetch() scans
    NOTICES_MAX = 65_536


@cython.no_gc_clear
cdef class Fanout:
    """Any thread may call the methods. `with fanout:` holds the mutex: no other thread and not the lane runs in
    between, so that everything in the block happens at one sequence of every stream."""

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
        uint64_t control_size_max = 4 * MIB,
        uint32_t topics_waiting_max = 65_536,
    ):
        self.wakeup_fd = -1
        self.tree_id = tree_id
        self.links_max = links_max
        self.legs_max = legs_max
        self.wants_max = wants_max
        self.control_size_max = control_size_max
        self._queue_packets_max = queue_packets_max
        self._conflate_from = min(queue_packets_max, <uint64_t>CONFLATE_FROM)
        self._topics_waiting_max = topics_waiting_max
        if mutex_init(&self.mutex):
            raise MemoryError
        self.history = History(history_size, streams_max)
        self.link_table = <Link *>calloc(max(1, links_max), sizeof(Link))
        self.ready_slots = <uint32_t *>calloc(max(1, links_max), sizeof(uint32_t))
        self.lane_slots = <uint32_t *>calloc(max(1, links_max), sizeof(uint32_t))
        self.held_slots = <uint32_t *>calloc(max(1, links_max), 2 * sizeof(uint32_t))  # see resume_held()
        self.legs = <Leg *>calloc(max(1, legs_max), sizeof(Leg))
        self.wants = <Want *>calloc(max(1, wants_max), sizeof(Want))
        if self.link_table is NULL or self.ready_slots is NULL or self.lane_slots is NULL:
            raise MemoryError
        if self.held_slots is NULL or self.legs is NULL or self.wants is NULL:
            raise MemoryError
        self.table = InterestTable()
        self._matcher = Matcher(self.table)
        self._free_slots = FreeRows(self.links_max)
        self._free_legs = FreeRows(self.legs_max)
        self._free_wants = FreeRows(self.wants_max)
        self._slots = {}
        self._leg_rows = {}
        self._leg_wants = {}
        self._selections = {}
        self._publishers = {}
        self._allowed = {}

    def __dealloc__(self):
        cdef uint32_t slot
        if self.link_table is not NULL:
            for slot in range(self.links_max):
                if self.link_table[slot].number:
                    free_link(&self.link_table[slot])
        free(self.link_table)
        free(self.ready_slots)
        free(self.lane_slots)
        free(self.held_slots)
        free(self.legs)
        free(self.wants)
        notes_free(&self.notes)
        mutex_destroy(&self.mutex)

    def __enter__(self):
        with nogil:
            mutex_acquire(&self.mutex)
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.release()

    # Streams

    def open_stream(self, uint32_t stream, *, uint32_t term = 0, uint64_t last = 0) -> None:
        """Accept packets of this stream after `last` from now on. Stream 0, the infostream, is never opened."""
        cdef Stream *opened
        if stream == 0:
            raise LocalProtocolError("stream 0 is the infostream", hint="it is not opened")
        with self:
            self.history.add(stream)
            opened = self.history.find(stream)
            opened.term = term
            opened.last = opened.done = opened.kept_after = last

    def be_origin(self) -> None:
        """The agent is the root: packets of streams from links are dropped."""
        with self:
            self.is_origin = True

    def close_stream(self, uint32_t stream) -> None:
        """Close the stream and its legs; packets that wait are still sent."""
        cdef Stream *closed
        with self:
            closed = self.stream_of(stream)
            for link, leg in [key for key, row in self._leg_rows.items() if self.legs[<uint32_t>row].stream is closed]:
                self.drop_leg(link, leg)
            self.history.remove(stream)

    def set_stream(self, uint32_t stream, *, uint32_t term, uint64_t last) -> None:
        """Continue after `last` in this term. Later packets in the history are dropped; legs stay as they are."""
        cdef Stream *changed
        cdef uint32_t row
        with self:
            changed = self.stream_of(stream)
            if last > changed.last:
                changed.kept_after = last  # what is between was never here
                changed.kept_begin = changed.kept_end
            else:
                self.history.cut(changed, last)
            changed.term = term
            changed.last = changed.done = changed.given = last
            for row in self._leg_rows.values():
                if self.legs[row].stream is changed and self.legs[row].after > last:
                    self.legs[row].after = last

    def advance(self, uint32_t stream, uint64_t last) -> None:
        """All matching packets up to `last` have arrived. No effect if the stream is further."""
        cdef Stream *found
        with self:
            found = self.stream_of(stream)
            found.last = max(found.last, last)
            found.done = found.last

    def stream(self, uint32_t stream) -> StreamState:
        cdef Stream *found
        with self:
            found = self.stream_of(stream)
            self.history.trim(found)
            return StreamState(found.term, found.last, found.kept_after, found.accepted, found.duplicates)

    cdef Stream *stream_of(self, stream) except NULL:
        cdef Stream *found = self.history.find(stream)
        if found is NULL:
            raise LocalProtocolError(f"stream {stream} is not open")
        return found

    # Links

    def open_link(self, uint64_t link, *, brings = 0, cls = 0) -> None:
        """The caller chooses the number: above 0, and used once."""
        cdef Link *opened
        cdef uint32_t slot
        with self:
            if link == 0 or link in self._slots:
                raise LocalProtocolError(f"link {link} cannot be opened", hint="numbers are above 0 and used once")
            if not self._free_slots:
                raise LimitError(f"{self.links_max} links are open already", hint="raise links_max")
            slot = self._free_slots.take()
            opened = &self.link_table[slot]
            memset(opened, 0, sizeof(Link))
            queue_init(&opened.queue)
            opened.number = link
            opened.brings = <uint8_t>int(brings)
            opened.cls = <uint8_t>int(cls)
            opened.fd = -1
            self._slots[link] = slot

    def close_link(self, uint64_t link) -> None:
        """Close the link's legs and drop waiting packets. No effect if it is not open. If the lane has its socket,
        the lane has to close it first."""
        cdef uint32_t slot
        with self:
            if link not in self._slots:
                return
            slot = self._slots[link]
            if self.link_table[slot].fd >= 0:
                raise LocalProtocolError(f"link {link} is the lane's", hint="close it there")
            for each, leg in [key for key in self._leg_rows if key[0] == link]:
                self.drop_leg(each, leg)
            self.forget_ready(slot)
            self.held_count = without(self.held_slots, self.held_count, slot)
            self.drop_publisher(slot)
            self.waiting_count -= self.link_table[slot].is_waiting
            free_link(&self.link_table[slot])
            del self._slots[link]
            self._free_slots.give_back(slot)

    def stop(self, uint64_t link) -> None:
        """Accept nothing more from the link, and send it control frames but no packets. Makes no notice."""
        cdef uint32_t slot
        with self:
            if link in self._slots:
                slot = self._slots[link]
                self.stop_link(slot)

    def take_back(self, uint64_t link) -> None:
        """Drop the packets that wait, as if the link were too slow: its legs leave live. No effect if none waits."""
        cdef uint32_t slot
        with self:
            slot = self.slot_of(link)
            if self.link_table[slot].queue.packets or self.link_table[slot].queue.newest.count:
                self.leave_live(slot)

    def link(self, uint64_t link) -> LinkState:
        cdef Link *found
        with self:
            found = &self.link_table[self.slot_of(link)]
            return LinkState(
                found.queue.bytes + found.queue.newest.bytes + found.left_end - found.left_begin,
                found.queue.control_end - found.queue.control_begin,
                found.packets_in, found.bytes_in, found.packets_out, found.bytes_out,
                found.conflated, found.duplicates, found.dropped,
            )

    def links(self) -> list:
        """The numbers of the open links."""
        with self:
            return list(self._slots)

    cdef uint32_t slot_of(self, link) except? 0xFFFFFFFF:
        slot = self._slots.get(link)
        if slot is None:
            raise LocalProtocolError(f"link {link} is not open")
        return slot

    # Legs

    def open_leg(self, uint64_t link, uint32_t leg, uint32_t stream, wants not None, *, bint is_live) -> int:
        """A child's subscription to a stream. A live leg gets all new packets; another one gets nothing until fetch()
        makes it live. Returns the stream's last sequence."""
        cdef uint32_t slot, row
        cdef Stream *found
        with self:
            slot = self.slot_of(link)
            found = self.stream_of(stream)
            if leg == 0 or (link, leg) in self._leg_rows:
                raise LocalProtocolError(f"leg {leg} cannot be opened", hint="numbers are above 0 and used once")
            if not self._free_legs:
                raise LimitError(f"{self.legs_max} legs are open already", hint="raise legs_max")
            row = self._free_legs.take()
            try:
                self._leg_wants[row] = self.add_wants(row, wants)
            except BaseException:
                self._free_legs.give_back(row)
                raise
            self.legs[row] = Leg(leg, slot, self.link_table[slot].legs, is_live, found, found.done)
            self.link_table[slot].legs = row + 1
            self._leg_rows[link, leg] = row
            return found.done

    def close_leg(self, uint64_t link, uint32_t leg) -> None:
        """Close the leg; waiting packets are still sent. No effect if the leg is not open."""
        with self:
            if (link, leg) in self._leg_rows:
                self.drop_leg(link, leg)

    def change_leg(self, uint64_t link, uint32_t leg, wants not None) -> int:
        """Replace its wants. Returns the stream's last sequence."""
        cdef uint32_t row
        with self:
            row = self.row_of(link, leg)
            added = self.add_wants(row, wants)
            self.drop_wants(self._leg_wants[row])
            self._leg_wants[row] = added
            self._selections.pop(row, None)
            return self.legs[row].stream.done

    def is_live(self, uint64_t link, uint32_t leg) -> bool:
        """False as soon as the leg has left live, even if the notice is unread."""
        with self:
            return self.legs[self.row_of(link, leg)].is_live

    cdef uint32_t row_of(self, link, leg) except? 0xFFFFFFFF:
        row = self._leg_rows.get((link, leg))
        if row is None:
            raise LocalProtocolError(f"link {link} has no leg {leg}")
        return row

    cdef int drop_leg(self, link, leg) except -1:
        cdef uint32_t row = self._leg_rows.pop((link, leg))
        cdef uint32_t *at = &self.link_table[self.legs[row].slot].legs
        self.drop_wants(self._leg_wants.pop(row))
        self._selections.pop(row, None)
        while at[0] != row + 1:
            at = &self.legs[at[0] - 1].next
        at[0] = self.legs[row].next
        memset(&self.legs[row], 0, sizeof(Leg))
        self._free_legs.give_back(row)
        return 0

    cdef list add_wants(self, uint32_t row, wants):
        cdef Condition condition
        cdef uint32_t subscriber
        cdef list added = []
        parsed = [([Interest.parse(topic) for topic in topics], each) for topics, each in wants]
        if len(parsed) > len(self._free_wants):
            raise LimitError(f"{self.wants_max} wants are known already", hint="raise wants_max")
        try:
            for topics, each in parsed:
                condition = each
                subscriber = self._free_wants.take()
                added.append((subscriber, topics, condition))
                self.wants[subscriber].leg = row
                self.wants[subscriber].terms = NULL
                if condition is not None:
                    self.wants[subscriber].terms = &condition.terms
                for topic in topics:
                    self.table.add(topic, subscriber)
        except BaseException:
            self.drop_wants(added)
            raise
        return added

    cdef int drop_wants(self, list rows) except -1:
        for subscriber, _, _ in rows:
            self.table.remove_subscriber(subscriber)
            self._free_wants.give_back(subscriber)
        return 0

    # Packets from the history

    def fetch(self, uint64_t link, uint32_t leg, uint64_t after, uint64_t size_max) -> Portion | None:
        """The leg's packets after this sequence from the history; None if the history begins later. A portion that
        reaches the stream's last sequence makes the leg live."""
        cdef uint32_t row
        cdef Leg *found
        cdef Stream *stream
        cdef uint64_t through = after
        with self:
            row = self.row_of(link, leg)
            found = &self.legs[row]
            stream = found.stream
            self.history.trim(stream)
            if found.is_live:
                raise LocalProtocolError(f"leg {leg} of link {link} is live")
            if after < stream.kept_after:
                return None
            chosen = self.choose(row, self.past(stream, after), size_max, &through)
            if self.history.first_after(stream, through) == stream.kept_end:
                through = max(through, stream.done)
            found.is_live = through >= stream.done
            if found.is_live:
                found.after = through
                self._selections.pop(row, None)
            return Portion(chosen, through, found.is_live)

    def select(self, uint64_t link, uint32_t leg, const uint8_t[::1] packets not None, uint64_t size_max) -> Portion:
        """Select the leg's packets among these, which were read elsewhere. The leg does not become live."""
        cdef uint64_t through = 0
        with self:
            return Portion(self.choose(self.row_of(link, leg), packets, size_max, &through), through, False)

    cdef bytes past(self, const Stream *stream, uint64_t after):
        """Packets of the stream after this sequence, from a bounded part of the history."""
        cdef uint64_t begin = self.history.first_after(stream, after), end = begin, size = 0
        cdef const Kept *row
        cdef bytes found
        cdef uint8_t *out
        while end < stream.kept_end and size < SCAN_SIZE_MAX:
            row = &stream.kept[end & (stream.kept_capacity - 1)]
            size += load_u32(packet_at(self.history, row.place) + PACKET_SIZE_AT)
            end += 1
        found = PyBytes_FromStringAndSize(NULL, size)
        out = <uint8_t *>PyBytes_AS_STRING(found)
        for begin in range(begin, end):
            row = &stream.kept[begin & (stream.kept_capacity - 1)]
            size = load_u32(packet_at(self.history, row.place) + PACKET_SIZE_AT)
            memcpy(out, packet_at(self.history, row.place), size)
            out += size
        return found

    cdef bytes choose(self, uint32_t row, const uint8_t[::1] packets, uint64_t size_max, uint64_t *through):
        cdef uint32_t size = <uint32_t>packets.shape[0]
        cdef uint64_t used
        cdef Selection selection
        cdef bytes chosen
        if packets.shape[0] > INT32_MAX:
            raise LimitError(f"{packets.shape[0]} bytes of packets are too many at a time")
        if size == 0:
            return b""
        if row not in self._selections:
            self._selections[row] = Selection([(topics, each) for _, topics, each in self._leg_wants[row]])
        selection = self._selections[row]
        chosen = PyBytes_FromStringAndSize(NULL, size)
        used = selection.choose(&packets[0], size, size_max, <uint8_t *>PyBytes_AS_STRING(chosen), through)
        return chosen[:used]

    # Packets and notices

    def receive(self, uint64_t link, const uint8_t[::1] data not None, int64_t now_ns = 0) -> bool:
        """Accept bytes of the link's frames, in arbitrary pieces; notices() has the events for the core. False if
        nothing more is accepted now; the link is in ready() when it is accepted again. The intake accepts messages
        only with `now_ns`."""
        cdef uint32_t slot
        with self:
            slot = self.slot_of(link)
            self.now_ns = now_ns
            if data.shape[0]:
                with nogil:
                    self.accept_bytes(slot, &data[0], data.shape[0])
            return not is_stopped(&self.link_table[slot])

    def is_taking(self, uint64_t link) -> bool:
        """False if bytes of the link are buffered."""
        with self:
            return not is_stopped(&self.link_table[self.slot_of(link)])

    def pause(self, uint64_t link) -> None:
        """Buffer bytes of the link, and stop the lane from reading it, until resume()."""
        cdef uint32_t slot
        with self:
            slot = self.slot_of(link)
            self.link_table[slot].is_paused = True
            self.mark_ready(slot)

    def resume(self, uint64_t link) -> None:
        """Continue after pause(), LegBlock or NewerTerm. No effect if the link is not open."""
        cdef uint32_t slot
        with self:
            if link in self._slots and self.link_table[<uint32_t>self._slots[link]].is_paused:
                slot = self._slots[link]
                self.link_table[slot].is_paused = False
                self.now_ns = 0
                with nogil:
                    self.resume_link(slot)

    def absorb(self, const uint8_t[::1] packets not None, uint64_t link = 0) -> int:
        """Accept whole packets as if they had arrived live on the link (0: from this agent). Return the number of
        new packets. Packets of a newer term begin that term."""
        cdef uint32_t slot = NO_SLOT
        cdef uint32_t taken = 0
        cdef int64_t new = 0
        if packets.shape[0] > INT32_MAX:
            raise LimitError(f"{packets.shape[0]} bytes of packets are too many at a time")
        with self:
            if link:
                slot = self.slot_of(link)
            if packets.shape[0]:
                with nogil:
                    new = self.absorb_packets(slot, True, &packets[0], <uint32_t>packets.shape[0], &taken)
        if taken < <uint32_t>packets.shape[0]:
            raise PacketError(f"after {taken} bytes there is no packet of a stream", cause=Cause.LENGTH)
        return new

    def has_notices(self) -> bool:
        with self:
            return self.notes.count > 0 or (self.intake is not None and self.intake.is_told)

    def notices(self, uint64_t count_max = NOTICES_MAX) -> list:
        """The next notices. A link with many unread control frames is not read until release_held()."""
        with self:
            return notes_as_notices(&self.notes, count_max)

    def release_held(self) -> bool:
        """Resume links that waited until the core had read their notices. True if there is more to handle."""
        with self:
            self.now_ns = 0
            with nogil:
                self.resume_held()
            return self.notes.count > 0 or self.held_count > 0

    # A root's intake

    def use_intake(self, Intake intake) -> None:
        """Use this intake, closed and without publishers; None: no intake."""
        with self:
            self.close_intake()
            for slot in list(self._publishers.values()):
                self.drop_publisher(slot)
            self.intake = intake

    def open_intake(self, int64_t now_ns) -> None:
        """All sequenced messages are distributed: let the intake sequence messages from now on."""
        with self:
            self.now_ns = now_ns
            self.intake.state = INTAKE_OPEN
            with nogil:
                self.resume_waiting()
            if self.intake.due_ns:
                self.intake.is_told = True  # nothing else may arrive that would report what it took

    def hold_intake(self) -> None:
        """The intake sequences nothing now, but will soon: publishers wait for it."""
        with self:
            self.intake.state = INTAKE_WAITS

    def close_intake(self) -> None:
        """The intake sequences nothing: notices() has the publishers' blocks."""
        with self:
            if self.intake is not None:
                self.intake.state = INTAKE_CLOSED
                with nogil:
                    self.resume_waiting()

    def admit(self, uint64_t link, uint64_t publisher_id, uint64_t through, allowed = None) -> None:
        """The intake may sequence the publisher's messages after its number `through`, on this link only, on the
        topics that `allowed` matches with subscriber 0; None: on all topics."""
        cdef uint32_t slot
        cdef Matcher matcher = None if allowed is None else Matcher(allowed)
        with self:
            slot = self.slot_of(link)
            if publisher_id in self._publishers:
                self.drop_publisher(self._publishers[publisher_id])
            self.drop_publisher(slot)
            self._publishers[publisher_id] = slot
            self._allowed[slot] = matcher
            self.link_table[slot].publisher = Publisher(publisher_id, through, 0, 0, NULL)
            if matcher is not None:
                self.link_table[slot].publisher.allowed = <void *>matcher

    def dismiss(self, uint64_t link) -> None:
        """Report the link's blocks in notices(), until it is admitted again."""
        with self:
            if link in self._slots:
                self.drop_publisher(self._slots[link])

    def take_out(self, int64_t now_ns) -> Taken | None:
        """The messages that the intake has sequenced since the last call; None if there are none."""
        cdef Publisher *publisher
        cdef uint32_t slot
        cdef list sources = []
        with self:
            if self.intake is None or self.intake.due_ns == 0:
                return None
            self.intake.due_ns = 0
            self.intake.is_told = False
            self.intake.next_ns = now_ns + INTERVAL_NS
            for slot in self._publishers.values():
                publisher = &self.link_table[slot].publisher
                if publisher.untold:
                    link = self.link_table[slot].number
                    sources.append(PublisherProgress(link, publisher.id, publisher.through, publisher.untold))
                    publisher.untold = 0
            packets = self.intake.tail.take_untold()
        return Taken(packets, sources)

    cdef int drop_publisher(self, uint32_t slot) except -1:
        self._publishers.pop(self.link_table[slot].publisher.id, None)
        self._allowed.pop(slot, None)
        memset(&self.link_table[slot].publisher, 0, sizeof(Publisher))
        return 0

    # Sending

    def say(self, uint64_t link, const uint8_t[::1] frames not None, *, bint is_behind = True) -> None:
        """Queue control frames behind everything that waits. LimitError if too many wait already. `is_behind` False:
        they do not depend on waiting packets, and may overtake some; a conflating link continues to conflate."""
        cdef uint32_t slot
        cdef Link *found
        with self:
            slot = self.slot_of(link)
            found = &self.link_table[slot]
            if frames.shape[0] == 0:
                return
            if found.queue.control_end - found.queue.control_begin + frames.shape[0] > self.control_size_max:
                raise LimitError(f"link {link} does not read its control frames", hint="end it, or wait")
            if not queue_control(&found.queue, &frames[0], frames.shape[0], is_behind):
                raise MemoryError
            self.mark_ready(slot)

    def ready(self) -> list:
        """The links that got data to send since the last call."""
        cdef uint32_t position
        with self:
            found = [self.link_table[self.ready_slots[position]].number for position in range(self.ready_count)]
            for position in range(self.ready_count):
                self.link_table[self.ready_slots[position]].is_ready = False
            self.ready_count = 0
            return found

    def take(self, uint64_t link, uint64_t size_max) -> bytes:
        """Return whole frames that wait for the link, at most `size_max` bytes unless the first is larger; b"" if
        none waits. Not for a link whose socket the lane has."""
        cdef Link *found
        cdef Pieces pieces
        cdef uint8_t *out
        cdef int index
        with self:
            found = &self.link_table[self.slot_of(link)]
            if found.fd >= 0:
                raise LocalProtocolError(f"link {link} is the lane's")
            queue_take(&found.queue, self.history, size_max, &pieces)
            taken = PyBytes_FromStringAndSize(NULL, pieces.size)
            out = <uint8_t *>PyBytes_AS_STRING(taken)
            for index in range(pieces.count):
                memcpy(out, pieces.pieces[index].iov_base, pieces.pieces[index].iov_len)
                out += pieces.pieces[index].iov_len
            queue_sent(&found.queue, &pieces)
            found.packets_out += pieces.packets
            found.bytes_out += pieces.size
            return taken

    # Ready and waiting links

    cdef void release(self) noexcept:
        """Release the mutex, and wake the lane if there is data to send."""
        cdef bint is_lane_needed = self.mutex.depth == 1 and self.lane_count and self.is_lane_asleep
        is_lane_needed = is_lane_needed and not self.is_corked
        if is_lane_needed:
            self.is_lane_asleep = False
        mutex_release(&self.mutex)
        if is_lane_needed:
            os.eventfd_write(self.wakeup_fd, 1)

    cdef void mark_ready(self, uint32_t slot) noexcept nogil:
        if self.link_table[slot].is_ready:
            return
        self.link_table[slot].is_ready = True
        if self.link_table[slot].fd >= 0:
            self.lane_slots[self.lane_count] = slot
            self.lane_count += 1
        else:
            self.ready_slots[self.ready_count] = slot
            self.ready_count += 1
            self.ready_total += 1

    cdef void forget_ready(self, uint32_t slot) noexcept nogil:
        if self.link_table[slot].is_ready:
            self.link_table[slot].is_ready = False
            self.ready_count = without(self.ready_slots, self.ready_count, slot)
            self.lane_count = without(self.lane_slots, self.lane_count, slot)

    cdef void count_note(self, uint32_t slot, uint64_t size) noexcept nogil:
        cdef Link *link = &self.link_table[slot]
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

    cdef int resume_held(self) except -1 nogil:
        """Read from each held link whose notes Python has read; the link may be held again."""
        cdef uint32_t position, slot, turns = self.held_count, kept = 0
        cdef uint64_t given = self.notes.total - self.notes.count
        cdef Link *link
        for position in range(turns):
            slot = self.held_slots[position]
            link = &self.link_table[slot]
            if link.held_at > given:
                self.held_slots[kept] = slot
                kept += 1
                continue
            link.is_held = False
            link.noted = 0
            link.noted_size = 0
            self.resume_link(slot)
        self.held_count -= turns  # links that have to wait again were appended
        memmove(self.held_slots + kept, self.held_slots + turns, self.held_count * sizeof(uint32_t))
        self.held_count += kept
        return 0

    cdef void end(self, uint32_t slot, uint32_t fault) noexcept nogil:
        """Stop the link, and note the reason once."""
        cdef Note *row
        if self.link_table[slot].is_over:
            return
        self.stop_link(slot)
        row = note(&self.notes, NOTE_ENDED, self.link_table[slot].number)
        if row is not NULL:  # without memory for that, the link's owner notices the effect of stop_link()
            row.code = fault

    cdef void stop_link(self, uint32_t slot) noexcept nogil:
        """Accept nothing more from the link, and send it no packets."""
        cdef Link *link = &self.link_table[slot]
        cdef uint32_t leg = link.legs
        link.is_over = True
        link.partial_size = 0
        queue_drop_packets(&link.queue)
        while leg:
            self.legs[leg - 1].is_live = False
            leg = self.legs[leg - 1].next
        self.mark_ready(slot)

    # Frames

    cdef int accept_bytes(self, uint32_t slot, const uint8_t *data, uint64_t size) except -1 nogil:
        cdef Link *link = &self.link_table[slot]
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
                self.accept_partial(slot)
        if size and not is_stopped(link):
            self.accept_frames(slot, data, size, &taken)
        if taken == size or link.is_over:
            return 0
        if link.partial_size + size - taken > KEPT_SIZE_MAX or not keep_partial(link, data + taken, size - taken):
            self.end(slot, FAULT_MEMORY)
        return 0

    cdef int accept_partial(self, uint32_t slot) except -1 nogil:
        """The buffered frame is complete, or invalid."""
        cdef Link *link = &self.link_table[slot]
        cdef uint8_t *frame = link.partial
        cdef uint64_t size = link.partial_size, capacity = link.partial_capacity, taken = 0
        cdef bint has_to_wait
        link.partial = NULL  # so that the rest can be buffered while the frame is read
        link.partial_size = link.partial_capacity = 0
        self.accept_frames(slot, frame, size, &taken)
        has_to_wait = taken == 0 and link.is_waiting
        if has_to_wait or (link.partial is NULL and capacity <= PARTIAL_KEPT):
            link.partial = frame
            link.partial_capacity = capacity
            link.partial_size = size if has_to_wait else 0
        else:
            free(frame)
        return 0

    cdef int resume_link(self, uint32_t slot) except -1 nogil:
        """Accept the bytes that were buffered while the link was stopped, if it no longer is."""
        cdef Link *link = &self.link_table[slot]
        cdef uint8_t *data = link.partial
        cdef uint64_t size = link.partial_size, taken = 0
        if is_stopped(link):
            return 0
        link.partial = NULL
        link.partial_size = link.partial_capacity = 0
        self.accept_frames(slot, data, size, &taken)
        if taken < size and not link.is_over and not keep_partial(link, data + taken, size - taken):
            self.end(slot, FAULT_MEMORY)
        free(data)
        self.mark_ready(slot)
        return 0

    cdef int accept_frames(self, uint32_t slot, const uint8_t *data, uint64_t size, uint64_t *taken) except -1 nogil:
        """Accept whole frames, until the data ends or the link is stopped."""
        cdef Link *link = &self.link_table[slot]
        cdef uint64_t length
        while size - taken[0] >= FRAME_LENGTH_SIZE and not is_stopped(link):
            length = load_u32(data + taken[0])
            if length == 0 or length > FRAME_SIZE_MAX - FRAME_LENGTH_SIZE:
                self.end(slot, FAULT_FRAME)
                return 0
            if size - taken[0] < FRAME_LENGTH_SIZE + length or self.has_to_wait_for_intake(slot, data[taken[0] + BLOCK_KIND_AT]):
                return 0
            self.accept_frame(slot, data + taken[0], <uint32_t>(FRAME_LENGTH_SIZE + length))
            taken[0] += FRAME_LENGTH_SIZE + length
        return 0

    cdef int accept_frame(self, uint32_t slot, const uint8_t *frame, uint32_t size) except -1 nogil:
        cdef Link *link = &self.link_table[slot]
        cdef uint8_t kind = frame[BLOCK_KIND_AT]
        cdef const uint8_t *packets = frame + BLOCK_HEADER_SIZE
        cdef uint32_t leg, packets_size = size - BLOCK_HEADER_SIZE
        cdef bint is_noted = True
        if kind >= KIND_CONTROL:
            is_noted = note_data(
                &self.notes, NOTE_CONTROL, link.number, 0, frame + FRAME_LENGTH_SIZE, size - FRAME_LENGTH_SIZE
            )
            self.count_note(slot, size)
        elif size < BLOCK_HEADER_SIZE or size > BLOCK_SIZE_MAX or kind < KIND_PACKETS or kind > KIND_PUBLISHED:
            self.end(slot, FAULT_FRAME)
        elif not link.brings & (PUBLISHED if kind == KIND_PUBLISHED else PACKETS | INFO):
            self.end(slot, FAULT_UNEXPECTED)
        elif kind == KIND_PACKETS and load_u32(frame + BLOCK_LEG_AT) == 0:
            self.accept_block(slot, packets, packets_size)
        elif not are_packets(packets, packets_size):
            self.end(slot, FAULT_PACKET)
        elif kind == KIND_PUBLISHED:
            is_noted = self.accept_published(slot, packets, packets_size)
            if load_u32(frame + BLOCK_LEG_AT) & ACKNOWLEDGE:
                self.acknowledge(slot)
        else:
            leg = load_u32(frame + BLOCK_LEG_AT)
            is_noted = note_data(&self.notes, NOTE_LEG_BLOCK, link.number, leg, packets, packets_size)
            link.is_paused = True  # live packets after it must not be accepted before it
            self.mark_ready(slot)
        if not is_noted:
            self.end(slot, FAULT_MEMORY)
        return 0

    cdef bint has_to_wait_for_intake(self, uint32_t slot, uint8_t kind) noexcept nogil:
        """True for a publisher's block while the intake is about to be opened."""
        if kind != KIND_PUBLISHED or self.intake is None or self.intake.state != INTAKE_WAITS:
            return False
        self.wait_for_intake(slot)
        return True

    cdef void wait_for_intake(self, uint32_t slot) noexcept nogil:
        self.link_table[slot].is_waiting = True
        self.waiting_count += 1
        self.mark_ready(slot)

    cdef int resume_waiting(self) except -1 nogil:
        cdef uint32_t slot
        for slot in range(self.links_max if self.waiting_count else 0):
            if self.link_table[slot].is_waiting:
                self.link_table[slot].is_waiting = False
                self.waiting_count -= 1
                self.resume_link(slot)
        return 0

    cdef bint accept_published(self, uint32_t slot, const uint8_t *packets, uint32_t size) except? -1 nogil:
        """Note a block that the intake does not sequence, and stop the link until Python has handled it, because the
        intake can sequence most of the following ones. False if memory is exhausted."""
        cdef uint32_t taken = self.sequence_published(slot, packets, size)
        if taken == size:
            return True
        if self.intake is not None and self.intake.state == INTAKE_OPEN:
            self.wait_for_intake(slot)
        return note_published(&self.notes, self.link_table[slot].number, packets + taken, size - taken)

    cdef uint32_t sequence_published(self, uint32_t slot, const uint8_t *packets, uint32_t size) except? 0xFFFFFFFF nogil:
        """Let the intake sequence a publisher's messages, and distribute them. Return the number of bytes it took."""
        cdef Link *link = &self.link_table[slot]
        cdef uint32_t taken, distributed = 0
        if not link.publisher.id or not self.now_ns or self.intake is None or self.intake.state != INTAKE_OPEN:
            return 0
        taken = self.intake.take(&link.publisher, self.history, packets, size, self.now_ns)
        if self.intake.fresh_size:
            self.absorb_packets(NO_SLOT, True, self.intake.fresh, self.intake.fresh_size, &distributed)
        return taken

    cdef void acknowledge(self, uint32_t slot) noexcept nogil:
        """Tell the publisher at once what the intake has taken: it is in the tail, where it outlives this process. What
        the intake does not take, Python acknowledges."""
        cdef Link *link = &self.link_table[slot]
        cdef Publisher *publisher = &link.publisher
        cdef const uint8_t *frame
        cdef uint32_t size
        if not publisher.id or link.is_waiting or self.intake is None or self.intake.state != INTAKE_OPEN:
            return
        if publisher.acknowledged == publisher.through or self.intake.frame_size == 0:
            return
        frame = self.intake.acknowledge(publisher.through, &size)
        if link.queue.control_end - link.queue.control_begin + size > self.control_size_max:
            return
        if queue_control(&link.queue, frame, size, False):
            publisher.acknowledged = publisher.through
            self.mark_ready(slot)

    cdef int accept_block(self, uint32_t slot, const uint8_t *packets, uint32_t size) except -1 nogil:
        """Accept a live block; the part that cannot be accepted yet is buffered as a block."""
        cdef Link *link = &self.link_table[slot]
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
        while taken[0] < size and (verdict == NEW or verdict == SKIPPED):
            packet_size = packet_size_at(data + taken[0], size - taken[0])
            verdict = self.check_packet(slot, is_any_term, data, taken[0], packet_size, count) if packet_size else BAD
            if verdict == NEW:
                count += 1
                new += 1
            if count == BATCH_MAX:
                self.distribute(slot, data, size, count)
                count = 0
            if verdict == NEW or verdict == SKIPPED:
                taken[0] += packet_size
        if count:
            self.distribute(slot, data, size, count)
        return new

    cdef Verdict check_packet(
        self, uint32_t slot, bint is_any_term, const uint8_t *data, uint32_t at, uint32_t size, uint32_t row
    ) noexcept nogil:
        """Check whether a packet is valid and new; fill in the row of a new one."""
        cdef PacketView packet
        cdef Link *link = NULL if slot == NO_SLOT else &self.link_table[slot]
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
            self.count_note(slot, size)
            return SKIPPED
        if link is not NULL and not link.brings & PACKETS:
            self.end(slot, FAULT_UNEXPECTED)
            return BAD
        if link is not NULL and self.is_origin:
            link.dropped += 1
            return SKIPPED
        self._row_starts[row] = at
        self._row_sizes[row] = size
        return self.check_sequence(slot, is_any_term, &packet, row)

    cdef Verdict check_sequence(
        self, uint32_t slot, bint is_any_term, const PacketView *packet, uint32_t row
    ) noexcept nogil:
        """Check whether the packet follows the last one of its stream."""
        cdef Stream *stream = self.history.find(packet.group)
        cdef Link *link = NULL if slot == NO_SLOT else &self.link_table[slot]
        cdef Note *newer
        if packet.publisher_id != self.tree_id or stream is NULL or packet.epoch < stream.term:
            if link is not NULL:
                link.dropped += 1
            return SKIPPED
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
            return SKIPPED
        stream.last = packet.sequence
        stream.accepted += 1
        self._row_streams[row] = stream
        self._row_sequences[row] = packet.sequence
        return NEW

    cdef int distribute(self, uint32_t slot, const uint8_t *data, uint32_t size, uint32_t count) except -1 nogil:
        """Put new packets into the history, and into the queue of every link with a matching leg."""
        cdef uint32_t row
        cdef uint64_t place, found
        cdef Stream *stream
        if self._matcher.kernel.regex_count:
            with gil:
                self._view = PyMemoryView_FromMemory(<char *>data, size, PyBUF_READ)
        self._matcher.match(data, self._view, self._rows, count)
        for row in range(count):
            stream = self._row_streams[row]
            self.evict_slow_links(self._row_sizes[row])
            place = self.history.keep(
                stream, self._row_sequences[row], data + self._row_starts[row], self._row_sizes[row]
            )
            for found in range(self._matcher.results[row], self._matcher.results[row + 1]):
                self.offer_to(&self.wants[self._matcher.found.subscribers[found]], slot, data, row, place)
            stream.done = self._row_sequences[row]
        return 0

    cdef void offer_to(
        self, const Want *want, uint32_t source, const uint8_t *data, uint32_t row, uint64_t place
    ) noexcept nogil:
        cdef const Leg *leg = &self.legs[want.leg]
        cdef Queue *queue = &self.link_table[leg.slot].queue
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
        """Queue a packet for a link; if its queue is full, the class of the link decides."""
        cdef Link *link = &self.link_table[slot]
        cdef Queue *queue = &link.queue
        cdef Subject subject
        cdef int put
        if link.cls == CONFLATING and queue.packets >= self._queue_packets_max + self._topics_waiting_max:
            self.leave_live(slot)  # control frames in between prevented too many packets from being conflated
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

    cdef void evict_slow_links(self, uint32_t size) noexcept nogil:
        """Before a write to the history: links whose queued packets would soon be overwritten leave live."""
        cdef uint64_t end = next_place(self.history, size) + size
        cdef uint64_t margin, front
        cdef uint32_t slot
        if end <= self._guard:
            return
        margin = self.history.size // MARGIN_SHARE
        for slot in range(self.links_max):
            if self.link_table[slot].number == 0 or not queue_front(&self.link_table[slot].queue, &front):
                continue
            if front + self.history.size < end + margin:
                if self.link_table[slot].cls == DISCONNECT:
                    self.end(slot, FAULT_SLOW)
                else:
                    self.leave_live(slot)
        self._guard = end + margin

    cdef void leave_live(self, uint32_t slot) noexcept nogil:
        """Drop the packets that wait for the link: each of its legs has everything before the first dropped one of
        its stream. Control frames stay."""
        cdef Link *link = &self.link_table[slot]
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
        """Remember the lowest sequence of each stream."""
        cdef const uint8_t *packet = packet_at(self.history, place)
        cdef uint64_t sequence = load_u64(packet + PACKET_SEQUENCE_AT)
        cdef Stream *stream = self.history.find(load_u32(packet + PACKET_GROUP_AT))
        if stream is not NULL and (stream.mark != mark or sequence < stream.first_waiting):
            stream.mark = mark
            stream.first_waiting = sequence
