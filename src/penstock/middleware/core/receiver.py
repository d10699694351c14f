"""Receiver: takes packets of any number of publishers, and returns each stream's messages once and in order."""

import heapq

import msgspec

from penstock.base.clock import NS_PER_MS, Randomness
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause, Counters
from penstock.base.errors import PacketError
from penstock.middleware.config import ReceiverConfig
from penstock.middleware.core._inorder import SEQUENCE_MAX, InOrder
from penstock.middleware.core.authentication import authentic_packet, watch_refused
from penstock.middleware.core.budget import ReceiveBudget
from penstock.middleware.core.events import (
    Address,
    Collision,
    DatagramReceived,
    DatagramsReceived,
    DeliverBatch,
    Expect,
    ExpectEnd,
    Multicast,
    ReceiverEvent,
    ReceiverInstruction,
    StreamEnded,
    StreamKey,
    StreamStarted,
    Unicast,
)
from penstock.middleware.core.gaps import merged
from penstock.middleware.core.incoming_stream import IncomingStream
from penstock.wire import (
    RANGES_MAX,
    Authenticator,
    DatagramBatch,
    Kind,
    MessageBatch,
    Packet,
    PacketFlag,
    decode,
    encode_nack,
)

REPAIR = int(PacketFlag.REPAIR)  # plain numbers: IntFlag operations cost a microsecond per packet
REPLAY = int(PacketFlag.REPLAY)
STALE_GRACE_NS = 1_000 * NS_PER_MS
"""Time after the begin of a new epoch from which packets of an older epoch are no longer stragglers: a host sends
them."""


REQUEST_NUMBER_MAX = 2**32 - 1

OUTDATED_MAX = 1_024
"""Number of outdated entries, beyond one per stream, at which the heap of due requests is built anew."""

NEWCOMERS_LOOKED_AT = 64
"""Number of unproven streams examined to find one to evict."""


class EndedStream(msgspec.Struct, frozen=True):
    """The remembered position of a stream that ended, so that nothing is repeated or skipped if the stream returns."""

    epoch: int
    next_sequence: int
    was_left: bool = False
    """True if the receiver left the group afterwards: packets sent since then do not count as lost."""


class Receiver:
    """The core of one receiver. Streams are learned from their packets, or, with `only_expected`, announced by a
    filter.

    With an `authenticator` a datagram that is not authentic only changes a counter. The tag then identifies the
    publisher, and the source address does not: anybody can record an authentic datagram and send it again. A stream
    follows the address of its newest packet, and duplicates change nothing. With `only_expected` the filter's address
    identifies a stream as before.

    A module that forwards packets (a filter module) passes its own `in_order` and overrides make_stream(), admits(),
    note_source() and hear().
    """

    messages_counter = "messages_delivered"

    def __init__(
        self,
        config: ReceiverConfig,
        randomness: Randomness,
        counters: Counters | None = None,
        *,
        only_expected: bool = False,
        in_order: InOrder | None = None,
        authenticator: Authenticator | None = None,
    ) -> None:
        self.config = config
        self._only_expected = only_expected
        self.counters = counters or Counters("receiver")
        self._randomness = randomness
        self._refuses = {"live": True, "replay": False, "both": None}[config.accept]  # packets with this REPLAY flag
        self._streams: dict[StreamKey, IncomingStream] = {}
        fast_path = in_order or InOrder(randomness.below(2**64), authenticator=authenticator)
        self.in_order = fast_path
        self._authenticator = fast_path.authenticator
        self._is_known_by_tag = fast_path.authenticator is not None and not only_expected
        if self._authenticator is not None:
            watch_refused(self.counters, self._authenticator)
        self.counters.watch("packets_received", lambda: fast_path.packets_taken)
        self.counters.watch(self.messages_counter, lambda: fast_path.messages_taken)
        self._budget: ReceiveBudget[IncomingStream] = ReceiveBudget(config.buffer_bytes_max)
        self._evicted: list[ReceiverInstruction] = []  # events of streams that were evicted
        self._newcomers: dict[StreamKey, int] = {}  # unproven streams, with the time of their last check
        self._positions: dict[StreamKey, EndedStream] = {}  # oldest first
        self._expected: dict[StreamKey, Expect] = {}  # oldest first; streams without packets so far
        self._requester = 0  # the id in requests; replaced when its numbers are used up
        self._request_number = REQUEST_NUMBER_MAX
        self._requests_due: list[tuple[int, int, StreamKey]] = []  # a heap by time; entries may be outdated
        self._requests_scheduled = 0
        self._expiry_check_ns: int | None = None

    def handle(self, event: ReceiverEvent, now_ns: int) -> list[ReceiverInstruction]:
        match event:
            case DatagramsReceived():
                return self.receive_batch(event.batch, now_ns)
            case DatagramReceived():
                return self._receive_one(event, now_ns)
            case Expect():
                return self._expect(event, now_ns)
            case ExpectEnd():
                return self._expect_end(event, now_ns)
            case Tick():
                return self._request_repairs(now_ns) + self._expire(now_ns)
            case _:
                refuse(self, event)

    def next_deadline_ns(self) -> int | None:
        nack_ns = self._requests_due[0][0] if self._requests_due else None  # possibly early, never late
        if nack_ns is None or (self._expiry_check_ns is not None and self._expiry_check_ns < nack_ns):
            return self._expiry_check_ns
        return nack_ns

    def streams(self) -> list[IncomingStream]:
        """The current streams."""
        return list(self._streams.values())

    def make_stream(self, key: StreamKey, epoch: int, first: int, source: Address) -> IncomingStream:
        """Create a stream that begins with packet `first`."""
        return IncomingStream(key, epoch, first, source, self.config, self.counters, self._randomness)

    def admits(self, key: StreamKey) -> bool:
        """True if an unknown stream may begin."""
        return True

    def note_source(self, stream: IncomingStream) -> None:
        """The stream's packets have another source address now."""

    def forget(self, group: int) -> list[ReceiverInstruction]:
        """The group was left: its streams end without losses, and begin as new ones if they return."""
        instructions: list[ReceiverInstruction] = []
        for stream in [each for each in self._streams.values() if each.key.group == group]:
            self._drop(stream)
            self.counters.add("streams_ended", cause=Cause.CLOSED)
            instructions.append(StreamEnded(stream.key, stream.epoch, stream.next_sequence, Cause.CLOSED))
        for known in (self._positions, self._expected):
            for key in [key for key in known if key.group == group]:
                del known[key]
        return instructions

    def note_absence(self, group: int) -> None:
        """The receiver joins a group that it did not receive before. Streams that ended in the meantime return like
        new ones, but repeat nothing; current streams are repaired."""
        for key in [key for key in self._positions if key.group == group]:
            self._positions[key] = msgspec.structs.replace(self._positions[key], was_left=True)

    def is_expected(self, key: StreamKey, source: Address) -> bool:
        """True if packets of this stream from this address are already expected: the stream is known or announced."""
        stream, expected = self._streams.get(key), self._expected.get(key)
        if stream is not None and stream.may_come_from(source, is_repair=True):
            return True
        return expected is not None and expected.source == source

    def receive_batch(self, batch: DatagramBatch, now_ns: int) -> list[ReceiverInstruction]:
        """Equals handle(DatagramsReceived), without an event."""
        return self.receive_rest(batch, self.in_order.begin(batch, now_ns), now_ns)

    def receive_rest(
        self, batch: DatagramBatch, messages: MessageBatch | None, now_ns: int, *, start: int = 0
    ) -> list[ReceiverInstruction]:
        """Continue with a batch after in_order.begin() took `messages` from its beginning, or after the caller took and
        delivered the datagrams before `start` from in_order.

        Packets in order take the fast path, others are handled one by one; the order of all is kept.
        """
        instructions: list[ReceiverInstruction] = []
        index, count = start, len(batch)
        while True:
            if messages is not None:
                instructions.append(DeliverBatch(messages))
                index += messages.packet_count
            if self._refuses is not None and (passed := self.in_order.pass_over(batch, index, self._refuses)):
                self.counters.add("packets_dropped", passed, cause=Cause.REPLAY)
                index += passed
            if passed := self.in_order.pass_known(batch, index):
                self.counters.add("packets_received", passed)
                self.counters.add("packets_dropped", passed, cause=Cause.DUPLICATE)
                index += passed
                messages = self.in_order.take(batch, index, now_ns)
                continue
            if index == count:
                return instructions
            data = bytes(batch.datagram(index))  # packets off the fast path may outlive the batch
            event = DatagramReceived(data, batch.source(index), batch.source_key(index))
            instructions += self._receive(event, now_ns)
            index += 1
            messages = self.in_order.take(batch, index, now_ns)

    def _receive_one(self, event: DatagramReceived, now_ns: int) -> list[ReceiverInstruction]:
        """Handle a single datagram: in a batch, in_order has checked the trailers."""
        packet = authentic_packet(self._authenticator, event)
        if packet is None:
            return []
        return self._receive(DatagramReceived(packet, event.source, event.source_key), now_ns)

    def _receive(self, event: DatagramReceived, now_ns: int) -> list[ReceiverInstruction]:
        try:
            packet = decode(event.data)
        except PacketError as error:
            self.counters.add("packets_dropped", cause=error.cause)
            return []
        self.counters.add("packets_received")
        key = StreamKey(packet.publisher_id, packet.group)
        if packet.kind == Kind.DATA:
            return self._take(key, packet, event, now_ns)
        return self.hear(key, packet, event, now_ns)

    def hear(self, key: StreamKey, packet: Packet, event: DatagramReceived, now_ns: int) -> list[ReceiverInstruction]:
        """Handle a repair request, or a report that packets are gone."""
        stream = self._streams.get(key)
        if stream is None or stream.epoch != packet.epoch:
            self.counters.add("packets_dropped", cause=Cause.UNKNOWN_STREAM)
            return []
        ranges = merged(packet.ranges[:RANGES_MAX])
        instructions: list[ReceiverInstruction] = []
        if packet.kind == Kind.NACK and self.config.nack == "multicast":
            stream.suppress(ranges, now_ns)
        elif packet.kind == Kind.GONE and (self._is_known_by_tag or stream.may_come_from(event.source, is_repair=True)):
            for first, last in ranges:
                instructions += stream.give_up(first, last, Cause.GONE)
        else:
            self.counters.add("packets_dropped", cause=Cause.UNEXPECTED)
        return instructions + self._settle(stream)

    def _expect(self, event: Expect, now_ns: int) -> list[ReceiverInstruction]:
        instructions: list[ReceiverInstruction] = []
        stream = self._streams.get(event.stream)
        if stream is not None and event.epoch < stream.epoch:
            return []
        if stream is not None and event.is_anew and event.next_sequence > stream.newest_sequence:
            instructions += self._end(stream, Cause.CLOSED)
        elif stream is not None and event.epoch == stream.epoch:
            return stream.expect(event, now_ns) + self._settle(stream)
        before = self._expected.pop(event.stream, None)
        if event.is_anew:
            self._positions.pop(event.stream, None)
        elif before is not None and before.epoch == event.epoch and before.next_sequence < event.next_sequence:
            event = msgspec.structs.replace(event, next_sequence=before.next_sequence)  # no packets arrived since
        self._expected[event.stream] = event
        if len(self._expected) > self.config.streams_max:
            self._expected.pop(next(iter(self._expected)))
        return instructions

    def _expect_end(self, event: ExpectEnd, now_ns: int) -> list[ReceiverInstruction]:
        instructions: list[ReceiverInstruction] = []
        stream = self._streams.get(event.stream)
        if stream is None and (expected := self._expectation(event.stream, event.epoch)) is not None:
            known = self._positions.get(event.stream)
            is_over = known is not None and event.epoch < known.epoch
            first = self._first_sequence(event.stream, event.epoch, expected.next_sequence)
            if not is_over and first < event.next_sequence and len(self._streams) < self.config.streams_max:
                stream = self._begin(event.stream, event.epoch, first, expected.source, now_ns)  # with its gaps
                instructions.append(StreamStarted(event.stream, event.epoch, first))
        if stream is None or stream.epoch != event.epoch or stream.newest_sequence + 1 >= event.next_sequence:
            return instructions
        stream.heard_ns = now_ns  # so that it does not expire before the answer
        return instructions + stream.expect_until(event.next_sequence - 1, now_ns) + self._settle(stream)

    def _take(self, key: StreamKey, packet: Packet, event: DatagramReceived, now_ns: int) -> list[ReceiverInstruction]:
        source = event.source
        if packet.gap >= packet.sequence or packet.sequence > SEQUENCE_MAX:
            self.counters.add("packets_dropped", cause=Cause.LENGTH)
            return []
        is_replay = bool(packet.flags & REPLAY)
        if is_replay is self._refuses:
            self.counters.add("packets_dropped", cause=Cause.REPLAY)
            return []
        is_repair = bool(packet.flags & REPAIR)
        if is_repair:
            self.counters.add("repairs_received")
        instructions: list[ReceiverInstruction] = []
        stream = self._streams.get(key)
        if stream is None or packet.epoch > stream.epoch:
            if is_repair:
                # foreign packets: a publisher becomes known by its data packets
                self.counters.add("packets_dropped", cause=Cause.UNKNOWN_STREAM)
                return []
            if not self._may_start(key, packet.epoch, source):
                return []
            if stream is not None:
                instructions += self._end(stream, Cause.RESTARTED)
            stream = self._start(key, packet, source, now_ns)
            evicted, self._evicted = self._evicted, []
            instructions += evicted
            if stream is None:
                return instructions
            instructions.append(StreamStarted(key, stream.epoch, stream.next_sequence, is_replay))
        is_foreign = not stream.may_come_from(source, is_repair=is_repair)
        if packet.epoch < stream.epoch or (is_foreign and not self._is_known_by_tag):
            return self._refuse(stream, packet, source, now_ns)
        if is_replay != stream.is_replay:
            self.counters.add("packets_dropped", cause=Cause.REPLAY)
            return []
        if stream.lacks(packet):
            stream.heard_ns = now_ns
            if is_foreign and not is_repair and packet.sequence > stream.newest_sequence:
                instructions += self._follow(stream, source)
        elif is_foreign:
            self.counters.add("packets_dropped", cause=Cause.DUPLICATE)
            return []
        if source == stream.source:
            stream.source_key = event.source_key
        instructions += stream.take(packet, now_ns)
        return instructions + self._settle(stream)

    def _follow(self, stream: IncomingStream, source: Address) -> list[ReceiverInstruction]:
        """The newest packet is authentic and came from another address: request repairs there from now on.

        A stream that returns to its former address has two senders: a host that sends recorded packets, or another
        publisher with the same id, epoch and key. This is reported once.
        """
        former = stream.former_source
        stream.change_source(source)
        self.counters.add("stream_sources_changed")
        self.note_source(stream)
        if source != former or stream.is_collision_reported:
            return []
        stream.is_collision_reported = True
        assert stream.former_source is not None
        return [Collision(stream.key, stream.epoch, source, stream.former_source)]

    def _expectation(self, key: StreamKey, epoch: int) -> Expect | None:
        expected = self._expected.get(key)
        return expected if expected is not None and expected.epoch == epoch else None

    def _may_start(self, key: StreamKey, epoch: int, source: Address) -> bool:
        """False if the stream is expected from another address, or not at all."""
        expected = self._expectation(key, epoch)
        if expected is None and self._only_expected:
            self.counters.add("packets_dropped", cause=Cause.UNKNOWN_STREAM)
        elif expected is not None and expected.source != source:
            self.counters.add("packets_dropped", cause=Cause.ID_COLLISION)
        else:
            return True
        return False

    def _start(self, key: StreamKey, packet: Packet, source: Address, now_ns: int) -> IncomingStream | None:
        """Begin a stream at its last position, at the epoch's start, or at this packet."""
        known = self._positions.get(key)
        if known is not None and packet.epoch < known.epoch:
            self.counters.add("packets_dropped", cause=Cause.STALE_EPOCH)
            return None
        if not self.admits(key):
            self.counters.add("packets_dropped", cause=Cause.UNEXPECTED)
            return None
        if len(self._streams) >= self.config.streams_max and not self._evict_newcomer(now_ns):
            self.counters.add("packets_dropped", cause=Cause.STREAM_LIMIT)
            return None
        if known is not None and packet.epoch == known.epoch and packet.sequence < known.next_sequence:
            self.counters.add("packets_dropped", cause=Cause.DUPLICATE)
            return None
        expected = self._expectation(key, packet.epoch)
        joined = packet.sequence - packet.gap if expected is None else expected.next_sequence
        first = self._first_sequence(key, packet.epoch, joined)
        stream = self._begin(key, packet.epoch, first, source, now_ns)
        stream.is_replay = bool(packet.flags & REPLAY)
        return stream

    def _first_sequence(self, key: StreamKey, epoch: int, joined: int) -> int:
        """The number that a stream begins with: `joined` if it is new here; else the start of a newer epoch, or the
        number where the stream ended, because everything since then is received or reported."""
        known = self._positions.get(key)
        first = 1 if self.config.join == "start" or (known is not None and not known.was_left) else joined
        return max(first, known.next_sequence) if known is not None and known.epoch == epoch else first

    def _begin(self, key: StreamKey, epoch: int, first: int, source: Address, now_ns: int) -> IncomingStream:
        expected = self._expectation(key, epoch)
        self._positions.pop(key, None)
        self._expected.pop(key, None)
        stream = self.make_stream(key, epoch, first, source)
        if expected is not None and expected.repair_source is not None:
            stream.repair_source = expected.repair_source
        stream.started_ns = stream.heard_ns = now_ns
        self._streams[key] = stream
        self._newcomers[key] = now_ns
        self.in_order.add(stream)
        if self._expiry_check_ns is None:
            self._expiry_check_ns = now_ns + self._expiry_ns() // 4
        self.counters.add("streams_started")
        return stream

    def _refuse(
        self, stream: IncomingStream, packet: Packet, source: Address, now_ns: int
    ) -> list[ReceiverInstruction]:
        """The packet is of an older epoch, or of another publisher with the same id."""
        is_stale = packet.epoch < stream.epoch
        self.counters.add("packets_dropped", cause=Cause.STALE_EPOCH if is_stale else Cause.ID_COLLISION)
        is_straggler = is_stale and (self._is_known_by_tag or now_ns - stream.started_ns < STALE_GRACE_NS)
        if is_straggler or stream.is_collision_reported or packet.flags & REPAIR:
            return []
        stream.is_collision_reported = True
        return [Collision(stream.key, stream.epoch, stream.source, source)]

    def _settle(self, stream: IncomingStream) -> list[ReceiverInstruction]:
        """Schedule the stream's requests, account for its memory, and end a stream that is complete."""
        instructions = self._account_for(stream)
        if stream.gaps:
            self._schedule_requests(stream)
        elif stream.is_complete:
            return instructions + self._end(stream, Cause.GOODBYE)
        stream.update_fast_path()
        return instructions

    def _account_for(self, stream: IncomingStream) -> list[ReceiverInstruction]:
        """Account for the stream's buffer. If all buffers together exceed the limit, unproven streams release theirs
        first, then the streams with the largest buffers, until one eighth of the limit is free."""
        held_bytes = stream.count_held_bytes()
        if held_bytes == stream.held_bytes:
            return []
        self._budget.change(stream, held_bytes)
        instructions: list[ReceiverInstruction] = []
        for victim in self._budget.victims(lambda each: (not self._is_proven(each), each.held_bytes)):
            instructions += victim.release()
            self._budget.change(victim, victim.count_held_bytes())
            if victim is not stream:
                instructions += self._settle(victim)
        return instructions

    def _is_proven(self, stream: IncomingStream) -> bool:
        """True if the stream has been received for longer than a single forged packet keeps it alive."""
        return stream.heard_ns - stream.started_ns >= self._expiry_ns()

    def _evict_newcomer(self, now_ns: int) -> bool:
        """Evict an unproven stream, preferably the one heard longest ago: forged publishers then displace each other,
        and not streams that keep sending. No state of an evicted stream is kept."""
        for _ in range(min(NEWCOMERS_LOOKED_AT, len(self._newcomers))):
            key, looked_ns = next(iter(self._newcomers.items()))
            del self._newcomers[key]
            stream = self._streams[key]
            if self._is_proven(stream):
                continue
            if stream.heard_ns > looked_ns:
                self._newcomers[key] = now_ns  # it is alive: try others first
                continue
            self._evict(stream)
            return True
        while self._newcomers:  # each turn drops a proven stream from the list, or is the last one
            key = next(iter(self._newcomers))
            if not self._is_proven(self._streams[key]):
                self._evict(self._streams[key])
                return True
            del self._newcomers[key]
        return False

    def _evict(self, stream: IncomingStream) -> None:
        self._evicted += self._end(stream, Cause.STREAM_LIMIT)
        self._positions.pop(stream.key, None)

    def _schedule_requests(self, stream: IncomingStream) -> None:
        """Streams wait in a heap: a scan of all streams per request would let many forged streams cause quadratic
        time."""
        due_ns = stream.gaps.next_nack_ns()
        if due_ns is None or (stream.requests_due_ns is not None and stream.requests_due_ns <= due_ns):
            return
        stream.requests_due_ns = due_ns
        self._requests_scheduled += 1
        heapq.heappush(self._requests_due, (due_ns, self._requests_scheduled, stream.key))
        if len(self._requests_due) > 2 * len(self._streams) + OUTDATED_MAX:
            self._requests_due = [
                (each.requests_due_ns, number, key)
                for number, (key, each) in enumerate(self._streams.items())
                if each.requests_due_ns is not None
            ]
            heapq.heapify(self._requests_due)

    def _streams_with_requests(self, now_ns: int) -> list[IncomingStream]:
        """Remove and return the streams with due requests from the heap."""
        due: list[IncomingStream] = []
        while self._requests_due and self._requests_due[0][0] <= now_ns:
            due_ns, _, key = heapq.heappop(self._requests_due)
            stream = self._streams.get(key)
            if stream is not None and stream.requests_due_ns == due_ns:
                stream.requests_due_ns = None
                due.append(stream)
        return due

    def _request_repairs(self, now_ns: int) -> list[ReceiverInstruction]:
        instructions: list[ReceiverInstruction] = []
        for stream in self._streams_with_requests(now_ns):
            if self._streams.get(stream.key) is not stream:
                continue  # the stream has ended: it released its buffers for an earlier stream
            ranges, reports = stream.due_ranges(now_ns)
            instructions += reports
            if ranges:
                request = self._encode_request(stream, ranges)
                if self.config.nack == "unicast":
                    instructions.append(Unicast(stream.repair_source, request))
                else:
                    instructions.append(Multicast(stream.key.group, request))
                self.counters.add("nacks_sent")
                stream.nacks += 1
            instructions += self._settle(stream)
        return instructions

    def _encode_request(self, stream: IncomingStream, ranges: list[tuple[int, int]]) -> bytes:
        """Return a numbered request, with a trailer if there are keys: a publisher answers each number once."""
        if self._request_number == REQUEST_NUMBER_MAX:
            self._requester, self._request_number = 1 + self._randomness.below(2**64 - 1), 0
        self._request_number += 1
        key = stream.key
        request = encode_nack(
            key.publisher_id,
            key.group,
            stream.epoch,
            ranges,
            requester=self._requester,
            number=self._request_number,
        )
        if self._authenticator is None:
            return request
        destination = stream.repair_source if self.config.nack == "unicast" else None
        return request + self._authenticator.trailer(request, destination)

    def _expire(self, now_ns: int) -> list[ReceiverInstruction]:
        if self._expiry_check_ns is None or now_ns < self._expiry_check_ns:
            return []
        instructions: list[ReceiverInstruction] = []
        # a receiver that did not read (a busy application, a stopped process) cannot judge the silence of others
        was_listening = now_ns - self._expiry_check_ns < self._expiry_ns() // 4
        for stream in list(self._streams.values()):
            if was_listening and now_ns - stream.heard_ns >= self._expiry_ns():
                instructions += self._end(stream, Cause.EXPIRED)
        self._expiry_check_ns = now_ns + self._expiry_ns() // 4 if self._streams else None
        return instructions

    def _end(self, stream: IncomingStream, cause: Cause) -> list[ReceiverInstruction]:
        instructions = stream.end(cause)
        self._drop(stream)
        self._positions[stream.key] = EndedStream(stream.epoch, stream.next_sequence)
        if len(self._positions) > self.config.streams_max:
            self._positions.pop(next(iter(self._positions)))
        newer = self._expected.get(stream.key)  # the publisher's next epoch may be expected already
        if cause == Cause.EXPIRED and self._only_expected and (newer is None or newer.epoch <= stream.epoch):
            # if the stream continues, the filter does not announce it again
            self._expected[stream.key] = Expect(
                stream.key, stream.epoch, stream.next_sequence, stream.source, stream.repair_source
            )
        self.counters.add("streams_ended", cause=cause)
        return [*instructions, StreamEnded(stream.key, stream.epoch, stream.next_sequence, cause)]

    def _drop(self, stream: IncomingStream) -> None:
        self._streams.pop(stream.key, None)
        self._newcomers.pop(stream.key, None)
        self._budget.change(stream, 0)
        self.in_order.remove(stream)

    def _expiry_ns(self) -> int:
        return self.config.publisher_expiry_ms * NS_PER_MS
