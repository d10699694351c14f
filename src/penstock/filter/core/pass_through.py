"""The receiver of a filter module: it passes packets on instead of reassembling messages.

Epochs, collisions, expiry and limits are the middleware's. Streams differ in the handling of missing packets:
RepairedStream requests repairs and waits, PassThroughStream reports the loss and continues. Instructions are those of
the middleware; a Deliver whose number is below the stream's position is a late packet.
"""

from collections.abc import Iterator
from typing import Protocol

from penstock.base.clock import Randomness
from penstock.base.counters import Cause, Counters
from penstock.filter.config import FilterConfig
from penstock.middleware import Address, DatagramReceived, Deliver, LossReceipt, Receiver, ReceiverConfig, StreamKey
from penstock.middleware.core._inorder import InOrder
from penstock.middleware.core.budget import GAP_OVERHEAD
from penstock.middleware.core.events import ReceiverInstruction
from penstock.middleware.core.gaps import Gaps
from penstock.middleware.core.incoming_stream import GOODBYE, IncomingStream
from penstock.middleware.core.reassembly import Reassembler, Unassembled
from penstock.wire import Authenticator, Kind, Packet, PacketFlag

REPAIR = int(PacketFlag.REPAIR)


class WholePacketStream(IncomingStream):
    """Passes packets on without reassembling their messages."""

    messages_counter = "messages_judged"

    def make_reassembler(self) -> Reassembler:
        return Unassembled()


class RepairedStream(WholePacketStream):
    """Requests repairs of lost packets; later packets wait."""


class PassThroughStream(WholePacketStream):
    """Applications request repairs of lost packets, and no packet waits. `gaps` therefore stays empty."""

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
        super().__init__(key, epoch, first, source, config, counters, randomness)
        self.missing = Gaps()

    @property
    def is_complete(self) -> bool:
        return super().is_complete and not self.missing

    def update_fast_path(self) -> None:
        super().update_fast_path()
        if self.missing:
            self.known_from = self.next_sequence  # later packets from here on are useful even if late

    def lacks(self, packet: Packet) -> bool:
        return super().lacks(packet) or self.missing.overlaps(packet.sequence, packet.sequence)

    def count_held_bytes(self) -> int:
        return super().count_held_bytes() + GAP_OVERHEAD * len(self.missing)

    def release(self) -> list[ReceiverInstruction]:
        """Forget missing packets. Their loss was reported already, and their repairs are still passed on."""
        self.missing = Gaps()
        return super().release()

    def take(self, packet: Packet, now_ns: int) -> list[ReceiverInstruction]:
        if packet.flags & GOODBYE:
            self.goodbye_sequence = packet.sequence
        if packet.sequence < self.next_sequence:
            return self._take_late(packet)
        return list(self._pass_on(packet))

    def give_up(self, first: int, last: int, cause: Cause) -> list[ReceiverInstruction]:
        """Drop a range: applications that lack these packets get the same message."""
        self.missing.fill(first, last)
        return []

    def _pass_on(self, packet: Packet) -> Iterator[ReceiverInstruction]:
        first = packet.sequence - packet.gap
        if first > self.next_sequence:
            missing = (self.next_sequence, first - 1)
            self.missing.open(*missing, nack_at_ns=0)
            self._counters.add("packets_left", first - self.next_sequence)
            self.next_sequence = first
            yield LossReceipt(self.key, self.epoch, *missing, Cause.UNREPAIRED)
        self.newest_sequence = packet.sequence
        yield from self._deliver(packet)
        oldest_sequence = self.newest_sequence - self._config.window_packets_max
        if self.missing.oldest is not None and self.missing.oldest.first <= oldest_sequence:
            self.missing.fill(self.missing.oldest.first, oldest_sequence)  # no application can expect these any more

    def _take_late(self, packet: Packet) -> list[ReceiverInstruction]:
        """Pass on a packet that was missing here, or that another receiver requested: an application may lack it."""
        was_missing = self.missing.fill(packet.sequence, packet.sequence)
        if packet.sequence < self.first_sequence:
            self._counters.add("packets_dropped", cause=Cause.BEFORE_JOIN)
            return []
        if not was_missing and not packet.flags & (REPAIR | GOODBYE):
            self._counters.add("packets_dropped", cause=Cause.DUPLICATE)
            return []
        return [late(self.key, packet)]


class Host(Protocol):
    """The module, as its receiver uses it."""

    def listens(self, group: int) -> bool:
        """True if an application needs the group."""
        ...

    def starts(self, stream: IncomingStream) -> None:
        """A stream begins, or continues after its end, before its StreamStarted."""
        ...

    def changes_source(self, stream: IncomingStream) -> None:
        """The stream's packets have another source address."""
        ...

    def source_of_ended(self, key: StreamKey, epoch: int) -> Address | None:
        """The source of a stream that has ended but may still need repairs."""
        ...

    def hear(
        self, key: StreamKey, packet: Packet, event: DatagramReceived, now_ns: int
    ) -> list[ReceiverInstruction] | None:
        """Handle a NACK or a GONE; None leaves it to the receiver."""
        ...


class PassThroughReceiver(Receiver):
    """Receives the groups that the module's applications need."""

    messages_counter = "messages_judged"

    def __init__(
        self,
        config: FilterConfig,
        host: Host,
        randomness: Randomness,
        counters: Counters,
        authenticator: Authenticator | None = None,
    ) -> None:
        in_order = InOrder(randomness.below(2**64), takes_fragments=True, authenticator=authenticator)
        super().__init__(config.receiver, randomness, counters, in_order=in_order)
        self._host = host
        self._kind: type[WholePacketStream] = RepairedStream if config.repair == "filter" else PassThroughStream

    def make_stream(self, key: StreamKey, epoch: int, first: int, source: Address) -> IncomingStream:
        stream = self._kind(key, epoch, first, source, self.config, self.counters, self._randomness)
        self._host.starts(stream)
        return stream

    def admits(self, key: StreamKey) -> bool:
        return self._host.listens(key.group)

    def note_source(self, stream: IncomingStream) -> None:
        self._host.changes_source(stream)

    def hear(self, key: StreamKey, packet: Packet, event: DatagramReceived, now_ns: int) -> list[ReceiverInstruction]:
        answers = self._host.hear(key, packet, event, now_ns)
        if answers is None or (packet.kind == Kind.GONE and key in self._streams):
            return [*super().hear(key, packet, event, now_ns), *(answers or ())]
        return answers

    def _take(self, key: StreamKey, packet: Packet, event: DatagramReceived, now_ns: int) -> list[ReceiverInstruction]:
        """Pass on repeated goodbyes and repairs of a stream that has ended: an application may lack them."""
        if packet.flags & (GOODBYE | REPAIR) and key not in self._streams:
            ended = self._positions.get(key)
            is_known = ended is not None and packet.epoch == ended.epoch and packet.sequence < ended.next_sequence
            if is_known and event.source == self._host.source_of_ended(key, packet.epoch):
                return [late(key, packet)]
        return super()._take(key, packet, event, now_ns)


def late(key: StreamKey, packet: Packet) -> Deliver:
    return Deliver(key, packet.epoch, packet.sequence, packet.sequence, packet.flags, packet, packet.data)
