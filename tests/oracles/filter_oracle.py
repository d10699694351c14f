"""Reference for the filter: every consumer's interests are tried on every message.

It shares with the product only the decoding of packets; interests are those of oracles.interests.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from oracles.interests import OracleTable
from penstock.wire import Packet, PacketMessage

KEEP_ALIVE, GOODBYE = 1, 16
CONTINUATION, MORE, SEALED, DIRECT = 1, 2, 4, 8
INTEREST_MASK, DESTINATION, TAGS = 4, 5, 6
SIZE_MAX = 65_507

Content = Callable[[int, int, bytes], bool]
"""True if a message of this model and version with this payload matches."""


@dataclass
class OracleStream:
    expected: dict[int, int] = field(default_factory=dict)
    """By listening consumer: the first number that was not reported to it."""
    position: int = 0
    begun: int | None = None
    ended: int | None = None
    topic: str = ""
    takers: dict[int, set[int]] = field(default_factory=dict)
    """For the last fragmented message: consumers, and the bits of their applications."""

    def leave(self, consumer: int) -> None:
        self.expected.pop(consumer, None)
        self.takers.pop(consumer, None)


@dataclass
class Sent:
    """A packet that a consumer should get; each message with the bits of its applications."""

    sequence: int
    gap: int
    flags: int
    messages: list[tuple[PacketMessage, set[int]]]


class FilterOracle:
    def __init__(self) -> None:
        self.table = OracleTable()
        self.is_masked: dict[int, bool] = {}
        self.slots: dict[int, tuple[int, int, Content | None]] = {}
        self.homes: dict[int, tuple[int, int]] = {}

    def forward(
        self,
        packet: Packet,
        stream: OracleStream,
        *,
        gap: int | None = None,
        to_all: bool = False,
        only: int | None = None,
        flags: int = 0,
    ) -> dict[int, Sent]:
        takers = [self._takers(message, packet.sequence, stream) for message in packet]
        is_for_all = to_all or bool(packet.flags & (KEEP_ALIVE | GOODBYE))
        sent: dict[int, Sent] = {}
        for consumer, expected in stream.expected.items():
            if (only is not None and consumer != only) or (gap is None and packet.sequence < expected):
                continue
            messages = [
                (message, takers[index][consumer]) for index, message in enumerate(packet) if consumer in takers[index]
            ]
            if messages or is_for_all:
                is_news = expected <= packet.sequence < stream.position
                said = gap if gap is not None and not is_news else min(packet.sequence - expected, 2**32 - 1)
                sent[consumer] = Sent(packet.sequence, said, packet.flags | flags, messages)
        if packet.sequence >= stream.position and only is None:
            # a consumer that must not get the packet does not get the message that begins in it
            self._remember(packet, stream, {c: bits for c, bits in takers[-1].items() if c in sent} if takers else {})
            stream.position = packet.sequence + 1
        for consumer in sent:
            stream.expected[consumer] = max(stream.expected[consumer], packet.sequence + 1)
        return sent

    def catch_up(self, stream: OracleStream, sequence: int) -> dict[int, int]:
        """The consumers that need a report of a gap, and the size of the gap."""
        told = {consumer: sequence - expected for consumer, expected in stream.expected.items() if expected <= sequence}
        for consumer in told:
            stream.expected[consumer] = sequence + 1
        return told

    def clear_consumer(self, consumer: int) -> None:
        del self.is_masked[consumer]
        self.slots = {slot: place for slot, place in self.slots.items() if place[0] != consumer}
        self.homes = {application: place for application, place in self.homes.items() if place[0] != consumer}

    def _takers(self, message: PacketMessage, sequence: int, stream: OracleStream) -> dict[int, set[int]]:
        is_known = (
            stream.begun is not None
            and stream.begun < sequence
            and (stream.ended is None or sequence <= stream.ended)
            and stream.topic == message.topic
        )
        if message.flags & CONTINUATION and is_known:
            return stream.takers
        if message.flags & DIRECT:
            body = message.extensions.get(DESTINATION, b"")
            home = self.homes.get(int.from_bytes(body, "little")) if len(body) == 8 else None
            return {} if home is None else {home[0]: {home[1]}}
        body = message.extensions.get(TAGS, b"")
        tags = tuple(tag.decode() for tag in body.split(b"\0")) if body else ()
        takers: dict[int, set[int]] = {}
        for slot in self.table.match(message.topic, tags):
            if slot not in self.slots:
                continue
            consumer, bit, content = self.slots[slot]
            cannot_be_judged = content is None or message.flags & (CONTINUATION | SEALED)
            if cannot_be_judged or content(message.model_id, message.model_version, bytes(message.payload)):
                takers.setdefault(consumer, set()).add(bit)
        return takers

    def _remember(self, packet: Packet, stream: OracleStream, takers: dict[int, set[int]]) -> None:
        messages = list(packet)
        if stream.begun is not None and stream.ended is None:
            if not messages or not messages[0].flags & CONTINUATION:
                stream.ended = packet.sequence - 1
            elif not messages[0].flags & MORE:
                stream.ended = packet.sequence
        if messages and messages[-1].flags & (MORE | CONTINUATION) == MORE:
            stream.begun, stream.ended = packet.sequence, None
            stream.topic, stream.takers = messages[-1].topic, takers
