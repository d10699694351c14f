"""What an agent knows of its streams, links and legs, and changes from Python; what it does with packets is in _flow.pyx.

Everything happens under one mutex, which is taken without the GIL, so that code which has it may take the GIL.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from penstock.filter.core.kernel._condition cimport Condition
from penstock.filter.core.kernel._matching cimport Matcher
from penstock.tree.core.kernel._flow cimport NO_SLOT, Flow, Leg, mutex_acquire
from penstock.tree.core.kernel._history cimport Kept, Stream, packet_at
from penstock.tree.core.kernel._intake cimport INTAKE_CLOSED, INTAKE_OPEN, INTAKE_WAITS, INTERVAL_NS, Intake, Publisher
from penstock.tree.core.kernel._link cimport Link, free_link, is_stopped, without
from penstock.tree.core.kernel._notes cimport notes_as_notices
from penstock.tree.core.kernel._queue cimport Pieces, queue_init, queue_say, queue_sent, queue_take
from penstock.tree.core.kernel._selection cimport Selection
from penstock.wire._codec cimport PACKET_SIZE_AT, load_u32

from penstock.base.counters import Cause
from penstock.base.errors import LimitError, LocalProtocolError, PacketError
from penstock.topics import Interest
from penstock.tree.core.kernel._flow import Brings, LinkClass
from penstock.tree.core.kernel.notices import LinkState, Portion, StreamState
from penstock.tree.core.kernel.taken import Source, Taken

__all__ = ["Brings", "Fanout", "LinkClass"]

cdef enum:
    SCAN_SIZE_MAX = 4_194_304  # bytes of history that one fetch() looks at
    NOTICES_MAX = 65_536


@cython.no_gc_clear
cdef class Fanout(Flow):
    """One agent's data path. Its methods may be called by any thread; `with fanout:` keeps all others out, the lane
    too, so that what is done and said in between takes place at one point of every stream."""

    def __init__(self, tree_id, **bounds) -> None:
        self._free_slots = list(range(self.links_max - 1, -1, -1))
        self._free_legs = list(range(self.legs_max - 1, -1, -1))
        self._free_wants = list(range(self.wants_max - 1, -1, -1))
        self._slots = {}
        self._leg_rows = {}
        self._leg_wants = {}
        self._selections = {}
        self._publishers = {}
        self._allowed = {}

    def __enter__(self):
        with nogil:
            mutex_acquire(&self.mutex)
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.release()

    # Streams

    def open_stream(self, uint32_t stream, *, uint32_t term = 0, uint64_t last = 0) -> None:
        """Packets of this stream after `last` are accepted from now on. 0 is the infostream's and never opened."""
        cdef Stream *opened
        if stream == 0:
            raise LocalProtocolError("stream 0 is the infostream", hint="it is not opened")
        with self:
            self.history.add(stream)
            opened = self.history.find(stream)
            opened.term = term
            opened.last = opened.done = opened.kept_after = last

    def be_origin(self) -> None:
        """From now on packets of streams come from here alone: those that links bring are dropped."""
        with self:
            self.is_origin = True

    def close_stream(self, uint32_t stream) -> None:
        """Its legs are closed, too; packets of it that wait still come."""
        cdef Stream *closed
        with self:
            closed = self.stream_of(stream)
            for link, leg in [key for key, row in self._leg_rows.items() if self.legs[<uint32_t>row].stream is closed]:
                self.drop_leg(link, leg)
            self.history.remove(stream)

    def set_stream(self, uint32_t stream, *, uint32_t term, uint64_t last) -> None:
        """Go on after `last` in that term. What is in the history after it is forgotten; legs stay as they are."""
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
        """Everything that is wanted of the stream up to here is there; nothing happens if more is."""
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
        """`link` is a number of the caller's, above 0."""
        cdef Link *opened
        cdef uint32_t slot
        with self:
            if link == 0 or link in self._slots:
                raise LocalProtocolError(f"link {link} cannot be opened", hint="numbers are above 0 and used once")
            if not self._free_slots:
                raise LimitError(f"{self.links_max} links are open already", hint="raise links_max")
            slot = self._free_slots.pop()
            opened = &self.linked[slot]
            memset(opened, 0, sizeof(Link))
            queue_init(&opened.queue)
            opened.number = link
            opened.brings = <uint8_t>int(brings)
            opened.cls = <uint8_t>int(cls)
            opened.fd = -1
            self._slots[link] = slot

    def close_link(self, uint64_t link) -> None:
        """Its legs are closed and what waits is thrown away. Nothing happens if it is not open. A socket of it must
        have been taken from the lane before."""
        cdef uint32_t slot
        with self:
            if link not in self._slots:
                return
            slot = self._slots[link]
            if self.linked[slot].fd >= 0:
                raise LocalProtocolError(f"link {link} is the lane's", hint="close it there")
            for each, leg in [key for key in self._leg_rows if key[0] == link]:
                self.drop_leg(each, leg)
            self.forget_ready(slot)
            self.held_count = without(self.held_slots, self.held_count, slot)
            self.drop_publisher(slot)
            self.waiting_count -= self.linked[slot].is_waiting
            free_link(&self.linked[slot])
            del self._slots[link]
            self._free_slots.append(slot)

    def stop(self, uint64_t link) -> None:
        """Nothing more is taken from the link and no packets are sent; what was said is. Without a notice."""
        cdef uint32_t slot
        with self:
            if link in self._slots:
                slot = self._slots[link]
                self.silence(slot)

    def take_back(self, uint64_t link) -> None:
        """What waits for the link is not sent, as if it were too slow: its legs leave live. Not if nothing waits."""
        cdef uint32_t slot
        with self:
            slot = self.slot_of(link)
            if self.linked[slot].queue.packets or self.linked[slot].queue.newest.count:
                self.leave_live(slot)

    def link(self, uint64_t link) -> LinkState:
        cdef Link *found
        with self:
            found = &self.linked[self.slot_of(link)]
            return LinkState(
                found.queue.bytes + found.queue.newest.bytes + found.left_end - found.left_begin,
                found.queue.words_end - found.queue.words_begin,
                found.packets_in, found.bytes_in, found.packets_out, found.bytes_out,
                found.conflated, found.duplicates, found.dropped,
            )

    def links(self) -> list:
        """Their numbers."""
        with self:
            return list(self._slots)

    cdef uint32_t slot_of(self, link) except? 0xFFFFFFFF:
        slot = self._slots.get(link)
        if slot is None:
            raise LocalProtocolError(f"link {link} is not open")
        return slot

    # Legs

    def open_leg(self, uint64_t link, uint32_t leg, uint32_t stream, wants not None, *, bint is_live) -> int:
        """What a child wants of a stream; it gets what comes from now on if the leg is live, and else nothing before
        fetch() has brought it there. Returns the stream's last sequence."""
        cdef uint32_t slot, row
        cdef Stream *found
        with self:
            slot = self.slot_of(link)
            found = self.stream_of(stream)
            if leg == 0 or (link, leg) in self._leg_rows:
                raise LocalProtocolError(f"leg {leg} cannot be opened", hint="numbers are above 0 and used once")
            if not self._free_legs:
                raise LimitError(f"{self.legs_max} legs are open already", hint="raise legs_max")
            row = self._free_legs.pop()
            try:
                self._leg_wants[row] = self.add_wants(row, wants)
            except BaseException:
                self._free_legs.append(row)
                raise
            self.legs[row] = Leg(leg, slot, self.linked[slot].legs, is_live, found, found.done)
            self.linked[slot].legs = row + 1
            self._leg_rows[link, leg] = row
            return found.done

    def close_leg(self, uint64_t link, uint32_t leg) -> None:
        """What waits of it still comes. Nothing happens if it is not open."""
        with self:
            if (link, leg) in self._leg_rows:
                self.drop_leg(link, leg)

    def change_leg(self, uint64_t link, uint32_t leg, wants not None) -> int:
        """From now on it wants this. Returns the stream's last sequence."""
        cdef uint32_t row
        with self:
            row = self.row_of(link, leg)
            added = self.add_wants(row, wants)
            self.drop_wants(self._leg_wants[row])
            self._leg_wants[row] = added
            self._selections.pop(row, None)
            return self.legs[row].stream.done

    def is_live(self, uint64_t link, uint32_t leg) -> bool:
        """Also while the core has yet to see that it is not any more."""
        with self:
            return self.legs[self.row_of(link, leg)].is_live

    cdef uint32_t row_of(self, link, leg) except? 0xFFFFFFFF:
        row = self._leg_rows.get((link, leg))
        if row is None:
            raise LocalProtocolError(f"link {link} has no leg {leg}")
        return row

    cdef int drop_leg(self, link, leg) except -1:
        cdef uint32_t row = self._leg_rows.pop((link, leg))
        cdef uint32_t *at = &self.linked[self.legs[row].slot].legs
        self.drop_wants(self._leg_wants.pop(row))
        self._selections.pop(row, None)
        while at[0] != row + 1:
            at = &self.legs[at[0] - 1].next
        at[0] = self.legs[row].next
        memset(&self.legs[row], 0, sizeof(Leg))
        self._free_legs.append(row)
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
                subscriber = self._free_wants.pop()
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
            self._free_wants.append(subscriber)
        return 0

    # The past of a leg

    def fetch(self, uint64_t link, uint32_t leg, uint64_t after, uint64_t size_max) -> Portion | None:
        """What the leg wants of the stream after this sequence, out of the history; None if that does not reach back so
        far. With everything through the stream's last, the leg is live from there on."""
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
        """What the leg wants of these packets of its stream, which were read elsewhere. It does not become live."""
        cdef uint64_t through = 0
        with self:
            return Portion(self.choose(self.row_of(link, leg), packets, size_max, &through), through, False)

    cdef bytes past(self, const Stream *stream, uint64_t after):
        """Packets of the stream after this sequence, of a bounded piece of the history."""
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

    # What comes and what is sent

    def receive(self, uint64_t link, const uint8_t[::1] data not None, int64_t now_ns = 0) -> bool:
        """Bytes of the link's stream of frames, however cut. What the core has to know is in notices(). Whether more
        can be taken now; if not, the link is ready() when it can. An intake takes messages only if it is told what time
        it is."""
        cdef uint32_t slot
        with self:
            slot = self.slot_of(link)
            self.now_ns = now_ns
            if data.shape[0]:
                with nogil:
                    self.take_in(slot, &data[0], data.shape[0])
            return not is_stopped(&self.linked[slot])

    def is_taking(self, uint64_t link) -> bool:
        """Whether what comes on the link is taken now, and not kept for later."""
        with self:
            return not is_stopped(&self.linked[self.slot_of(link)])

    def pause(self, uint64_t link) -> None:
        """What comes on the link is kept, and the lane reads no more from it, until resume()."""
        cdef uint32_t slot
        with self:
            slot = self.slot_of(link)
            self.linked[slot].is_paused = True
            self.mark_ready(slot)

    def resume(self, uint64_t link) -> None:
        """Go on after pause(), LegBlock or NewerTerm. Nothing happens if the link is not open."""
        cdef uint32_t slot
        with self:
            if link in self._slots and self.linked[<uint32_t>self._slots[link]].is_paused:
                slot = self._slots[link]
                self.linked[slot].is_paused = False
                self.now_ns = 0
                with nogil:
                    self.go_on(slot)

    def absorb(self, const uint8_t[::1] packets not None, uint64_t link = 0) -> int:
        """Take whole packets as if they had come live on the link (0: from here); how many were new. Those of a term
        that their stream is not in yet are taken, and begin it."""
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
        """The next ones, at most so many. A link that has sent many control frames waits until all are seen."""
        with self:
            return notes_as_notices(&self.notes, count_max)

    def release_held(self) -> bool:
        """Let links go on that had to wait, as far as what they sent has been in notices(), which were seen to. Whether
        there is more to see to: then or now."""
        with self:
            self.now_ns = 0
            with nogil:
                self.go_on_held()
            return self.notes.count > 0 or self.held_count > 0

    # A root's intake

    def use_intake(self, Intake intake) -> None:
        """From now on this takes what admitted publishers send, while it is open; None: nobody does. It is closed, and
        nobody is admitted."""
        with self:
            self.close_intake()
            for slot in list(self._publishers.values()):
                self.drop_publisher(slot)
            self.intake = intake

    def open_intake(self, int64_t now_ns) -> None:
        """Every message that has a place is distributed: from now on it gives places."""
        with self:
            self.now_ns = now_ns
            self.intake.state = INTAKE_OPEN
            with nogil:
                self.go_on_waiting()
            if self.intake.due_ns:
                self.intake.is_told = True # nothing else may come that would have what it took noted

    def hold_intake(self) -> None:
        """It gives no places, but will soon: what publishers send from now on waits for it."""
        with self:
            self.intake.state = INTAKE_WAITS

    def close_intake(self) -> None:
        """It gives no places: what publishers send is in notices()."""
        with self:
            if self.intake is not None:
                self.intake.state = INTAKE_CLOSED
                with nogil:
                    self.go_on_waiting()

    def admit(self, uint64_t link, uint64_t publisher_id, uint64_t through, allowed = None) -> None:
        """The intake may take the publisher's messages after its number `through`, on this link and no other, on the
        topics that `allowed`, an interest table, has with subscriber 0; None: on all."""
        cdef uint32_t slot
        cdef Matcher matcher = None if allowed is None else Matcher(allowed)
        with self:
            slot = self.slot_of(link)
            if publisher_id in self._publishers:
                self.drop_publisher(self._publishers[publisher_id])
            self.drop_publisher(slot)
            self._publishers[publisher_id] = slot
            self._allowed[slot] = matcher
            self.linked[slot].publisher = Publisher(publisher_id, through, 0, NULL)
            if matcher is not None:
                self.linked[slot].publisher.allowed = <void *>matcher

    def dismiss(self, uint64_t link) -> None:
        """What comes on the link is Python's to judge, until it is admitted again."""
        with self:
            if link in self._slots:
                self.drop_publisher(self._slots[link])

    def take_out(self, int64_t now_ns) -> Taken | None:
        """What the intake has taken since the last time; None: nothing."""
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
                publisher = &self.linked[slot].publisher
                if publisher.untold:
                    sources.append(Source(self.linked[slot].number, publisher.id, publisher.through, publisher.untold))
                    publisher.untold = 0
            packets = self.intake.tail.take_untold()
        return Taken(packets, sources)

    cdef int drop_publisher(self, uint32_t slot) except -1:
        self._publishers.pop(self.linked[slot].publisher.id, None)
        self._allowed.pop(slot, None)
        memset(&self.linked[slot].publisher, 0, sizeof(Publisher))
        return 0

    # What is sent

    def say(self, uint64_t link, const uint8_t[::1] frames not None, *, bint is_behind = True) -> None:
        """Send these frames, behind what waits for the link already. LimitError if it does not take what was said.

        `is_behind` False: they have nothing to do with the packets that wait, and may come before some. (A conflating
        link goes on to conflate these.)"""
        cdef uint32_t slot
        cdef Link *found
        with self:
            slot = self.slot_of(link)
            found = &self.linked[slot]
            if frames.shape[0] == 0:
                return
            if found.queue.words_end - found.queue.words_begin + frames.shape[0] > self.words_size_max:
                raise LimitError(f"link {link} does not take what it is told", hint="end it, or wait")
            if not queue_say(&found.queue, &frames[0], frames.shape[0], is_behind):
                raise MemoryError
            self.mark_ready(slot)

    def ready(self) -> list:
        """The links for which something came to wait since the last call."""
        cdef uint32_t position
        with self:
            found = [self.linked[self.ready_slots[position]].number for position in range(self.ready_count)]
            for position in range(self.ready_count):
                self.linked[self.ready_slots[position]].is_ready = False
            self.ready_count = 0
            return found

    def take(self, uint64_t link, uint64_t size_max) -> bytes:
        """Whole frames that wait for the link, of at most `size_max` bytes if the first is not larger; b"" if none.
        Not of a link whose socket the lane has."""
        cdef Link *found
        cdef Pieces pieces
        cdef uint8_t *out
        cdef int index
        with self:
            found = &self.linked[self.slot_of(link)]
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
