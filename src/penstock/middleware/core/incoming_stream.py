"""IncomingStream: reorders the packets of one stream in one epoch and reassembles its messages."""

import heapq
from collections.abc import Iterator

from penstock.base.clock import NS_PER_MS, NS_PER_US, Randomness
from penstock.base.counters import Cause, Counters
from penstock.middleware.config import ReceiverConfig
from penstock.middleware.core._inorder import StreamCursor
from penstock.middleware.core.budget import GAP_OVERHEAD, PACKET_OVERHEAD
from penstock.middleware.core.events import Address, Deliver, Expect, LossReceipt, ReceiverInstruction, StreamKey
from penstock.middleware.core.gaps import Gap, Gaps
from penstock.middleware.core.reassembly import BrokenMessage, Reassembler
from penstock.wire import RANGES_MAX, Packet, PacketFlag, PacketMessage, decode

GOODBYE = int(PacketFlag.GOODBYE)  # a plain number: IntFlag operations cost a microsecond per packet
BACK_OFF_DOUBLINGS_MAX = 6


class IncomingStream(StreamCursor):
    """Everything below `next_sequence` is accounted for; packets that arrived early wait in the window.

    Every number from `next_sequence` to `newest_sequence` is in a gap, or is a packet in the window, or was removed
    by a filter, as the gap field of a later packet in the window shows.
    """

    messages_counter = "messages_delivered"

    def __init__(
        self,
        key: StreamKey,
        epoch: int,
        first: int,
        source: Address,
        config: ReceiverConfig,
        counters: Counters,
        randomness: Randomness,
    ) -> None:
        self.key = key
        self.publisher_id = key.publisher_id
        self.group = key.group
        self.epoch = epoch
        self.source = source
        self.repair_source = source
        self.former_source: Address | None = None
        self.first_sequence = first
        self.next_sequence = first
        self.newest_sequence = first - 1
        self.heard_ns = 0
        self.started_ns = 0
        self.is_collision_reported = False
        self.nacks = 0
        self.goodbye_sequence: int | None = None
        self.gaps = Gaps()
        self.requests_due_ns: int | None = None  # next check of the gaps by the receiver
        self._window: list[tuple[int, int, Packet]] = []  # a heap by sequence number; the second number breaks ties
        self._taken = 0
        self.window_bytes = 0
        self.held_bytes = 0  # see ReceiveBudget
        self._config = config
        self._reassembler = self.make_reassembler()
        self._counters = counters
        self._randomness = randomness

    def make_reassembler(self) -> Reassembler:
        """Create the reassembler of fragments."""
        return Reassembler(self._config.message_size_max)

    @property
    def window_packets(self) -> int:
        return len(self._window)

    @property
    def is_complete(self) -> bool:
        """True if the publisher has said goodbye and everything before it is accounted for."""
        return self.goodbye_sequence is not None and self.next_sequence > self.goodbye_sequence

    def update_fast_path(self) -> None:
        """Decide whether the next packet may take the fast path; called after every change of the stream."""
        self.is_smooth = not (
            self.gaps or self._window or self._reassembler.is_waiting or self.goodbye_sequence is not None
        )
        self.known_from = self.first_sequence

    def count_held_bytes(self) -> int:
        """Currently buffered bytes."""
        overhead = PACKET_OVERHEAD * len(self._window) + GAP_OVERHEAD * len(self.gaps)
        return self.window_bytes + overhead + self._reassembler.held_bytes

    def release(self) -> list[ReceiverInstruction]:
        """Release the buffers: missing packets and an unfinished message are given up."""
        instructions = self.give_up(self.next_sequence, self.newest_sequence, Cause.MEMORY)
        instructions += self._report(self._reassembler.abandon(Cause.MEMORY))
        return instructions

    def take(self, packet: Packet, now_ns: int) -> list[ReceiverInstruction]:
        """Handle a data packet of this stream."""
        sequence = packet.sequence
        if sequence < self.next_sequence:
            is_early = sequence < self.first_sequence
            self._counters.add("packets_dropped", cause=Cause.BEFORE_JOIN if is_early else Cause.DUPLICATE)
            return []
        if packet.flags & GOODBYE:
            self.goodbye_sequence = sequence
        if self.next_sequence >= sequence - packet.gap and not self._window and not self.gaps:
            self.newest_sequence = sequence
            return list(self._deliver(packet))
        return self._take_out_of_order(packet, now_ns)

    def lacks(self, packet: Packet) -> bool:
        """True if the packet is newer than all packets so far, or was missing; otherwise it is a duplicate."""
        first = packet.sequence - packet.gap
        return packet.sequence > self.newest_sequence or self.gaps.overlaps(first, packet.sequence)

    def may_come_from(self, source: Address, *, is_repair: bool) -> bool:
        return source == self.source or (is_repair and source == self.repair_source)

    def change_source(self, source: Address) -> None:
        self.former_source, self.source, self.source_key = self.source, source, 0
        self.repair_source = source

    def expect(self, event: Expect, now_ns: int) -> list[ReceiverInstruction]:
        """A filter forwards the stream from now on, or already does, starting with a certain packet."""
        if event.source != self.source:
            self.source, self.source_key = event.source, 0
        self.repair_source = event.repair_source or event.source
        if event.is_anew:
            # the Position came late: a later packet arrived first, so packets before the subscription seemed lost
            self.gaps.forgive(event.next_sequence - 1)
            return list(self._advance())
        if event.next_sequence < self.first_sequence:
            # the Position came late: another packet began the stream, and the ones before it are missing
            last, self.first_sequence = self.first_sequence - 1, event.next_sequence
            self._counters.add("packets_lost", last - event.next_sequence + 1, cause=Cause.BEFORE_JOIN)
            return [LossReceipt(self.key, self.epoch, event.next_sequence, last, Cause.BEFORE_JOIN)]
        return self.expect_until(event.next_sequence - 1, now_ns)

    def expect_until(self, last: int, now_ns: int) -> list[ReceiverInstruction]:
        """The packets up to `last` were sent."""
        if last <= self.newest_sequence:
            return []
        self.gaps.open(self.newest_sequence + 1, last, now_ns + self._first_nack_delay_ns())
        self.newest_sequence = last
        return self._make_room()

    def give_up(self, first: int, last: int, cause: Cause) -> list[ReceiverInstruction]:
        """The packets `first` to `last` will never arrive."""
        self.gaps.give_up(first, last, cause)
        return list(self._advance())

    def end(self, cause: Cause) -> list[ReceiverInstruction]:
        """End the stream: deliver the received packets, report the missing ones."""
        instructions = self.give_up(self.next_sequence, self.newest_sequence, cause)
        instructions += self._report(self._reassembler.abandon(Cause.FRAGMENT))
        return instructions

    def due_ranges(self, now_ns: int) -> tuple[list[tuple[int, int]], list[ReceiverInstruction]]:
        """Return the ranges to request now, and loss reports for ranges that reached `nack_attempts_max`.

        A new range that is due soon is included, so that a burst of losses needs one request.
        """
        next_nack_ns = self.gaps.next_nack_ns()
        if next_nack_ns is None or next_nack_ns > now_ns:
            return [], []
        ranges: list[tuple[int, int]] = []
        soon_ns = now_ns + self._config.nack_delay_us * NS_PER_US
        hopeful = self.gaps.hopeful()
        if not any(gap.nack_at_ns <= now_ns for gap in hopeful):
            hopeful = []
        for gap in hopeful:
            # repeated requests wait their full time for an answer
            if gap.nack_at_ns > (now_ns if gap.attempts else soon_ns) or len(ranges) == RANGES_MAX:
                continue
            if gap.attempts >= self._config.nack_attempts_max:
                self.gaps.give_up(gap.first, gap.last, Cause.NO_ANSWER)
                continue
            ranges.append((gap.first, gap.last))
            gap.attempts += 1
            gap.is_suppressed = False
            gap.nack_at_ns = now_ns + self._retry_ns(gap.attempts)
        self.gaps.find_next_nack_ns()
        return ranges, list(self._advance())

    def suppress(self, ranges: list[tuple[int, int]], now_ns: int) -> None:
        """Another receiver has requested these ranges: wait for the answer before requesting them.

        Done once per own request, so that other hosts cannot suppress requests forever.
        """
        for first, last in ranges:
            for gap in self.gaps.hopeful_within(first, last):
                if not gap.is_suppressed:
                    gap.is_suppressed = True
                    gap.nack_at_ns = max(gap.nack_at_ns, now_ns + self._retry_ns(max(gap.attempts, 1)))
                    self._counters.add("nacks_suppressed")

    def _take_out_of_order(self, packet: Packet, now_ns: int) -> list[ReceiverInstruction]:
        first = max(packet.sequence - packet.gap, self.next_sequence)
        if first > self.newest_sequence + 1:
            self.gaps.open(self.newest_sequence + 1, first - 1, now_ns + self._first_nack_delay_ns())
        elif (
            not self.gaps.fill(first, packet.sequence, now_ns + self._retry_ns(1))
            and packet.sequence <= self.newest_sequence
        ):
            self._counters.add("packets_dropped", cause=Cause.DUPLICATE)
            return []
        self.newest_sequence = max(self.newest_sequence, packet.sequence)
        self._taken += 1
        kept = decode(bytes(packet.data))  # the driver reuses the datagram's buffer
        heapq.heappush(self._window, (packet.sequence, self._taken, kept))
        self.window_bytes += packet.size
        return list(self._advance()) + self._make_room()

    def _make_room(self) -> list[ReceiverInstruction]:
        instructions: list[ReceiverInstruction] = []
        while (overflow := self._overflow()) is not None:
            instructions += self.give_up(*overflow, Cause.WINDOW)
        return instructions

    def _overflow(self) -> tuple[int, int] | None:
        """Return the missing packets to give up, because the window cannot hold more packets after them."""
        oldest = self.gaps.oldest
        if oldest is None:
            return None
        if self.window_bytes > self._config.window_bytes_max:
            return oldest.first, oldest.last
        span_first = self.newest_sequence - self._config.window_packets_max + 1
        return (oldest.first, min(oldest.last, span_first - 1)) if oldest.first < span_first else None

    def _advance(self) -> Iterator[ReceiverInstruction]:
        """Advance while the next packet has arrived or is known to be lost."""
        while True:
            oldest = self.gaps.oldest
            if self._window and (oldest is None or self._window[0][0] < oldest.first):
                _, _, packet = heapq.heappop(self._window)
                self.window_bytes -= packet.size
                if packet.sequence >= self.next_sequence:
                    yield from self._deliver(packet)
                else:
                    self._counters.add("packets_dropped", cause=Cause.DUPLICATE)
            elif oldest is not None and oldest.given_up is not None and oldest.first == self.next_sequence:
                yield from self._skip(self.gaps.pop_oldest())
            else:
                return

    def _deliver(self, packet: Packet) -> Iterator[ReceiverInstruction]:
        first, self.next_sequence = self.next_sequence, packet.sequence + 1
        messages: Packet | list[PacketMessage] = packet
        if packet.is_fragmented or self._reassembler.is_waiting:
            pieces = list(self._reassembler.messages(packet))
            messages = [piece for piece in pieces if isinstance(piece, PacketMessage)]
            yield from self._report(piece for piece in pieces if isinstance(piece, BrokenMessage))
        self._counters.add(self.messages_counter, len(messages))
        yield Deliver(self.key, self.epoch, first, packet.sequence, packet.flags, messages, packet.data)

    def _skip(self, gap: Gap) -> Iterator[ReceiverInstruction]:
        assert gap.given_up is not None
        self.next_sequence = gap.last + 1
        self._counters.add("packets_lost", gap.last - gap.first + 1, cause=gap.given_up)
        yield LossReceipt(self.key, self.epoch, gap.first, gap.last, gap.given_up)
        yield from self._report(self._reassembler.lose())

    def _report(self, broken: Iterator[BrokenMessage]) -> Iterator[ReceiverInstruction]:
        for message in broken:
            self._counters.add("messages_lost", cause=message.cause)
            yield LossReceipt(self.key, self.epoch, message.first, message.last, message.cause, message.topic)

    def _first_nack_delay_ns(self) -> int:
        half_ns = self._config.nack_delay_us * NS_PER_US // 2
        return half_ns + self._randomness.below(half_ns + 1)

    def _retry_ns(self, attempts: int) -> int:
        wait_ns = self._config.nack_retry_ms * NS_PER_MS << min(attempts - 1, BACK_OFF_DOUBLINGS_MAX)
        return wait_ns + self._randomness.below(wait_ns // 4 + 1)
