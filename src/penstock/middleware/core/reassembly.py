"""Whole messages out of fragments that were spread over a stream's consecutive packets."""

from collections.abc import Iterator

import msgspec

from penstock.base.counters import Cause
from penstock.wire import MessageFlag, Packet, PacketMessage

CONTINUATION = int(MessageFlag.CONTINUATION)
MORE = int(MessageFlag.MORE)


class BrokenMessage(msgspec.Struct, frozen=True):
    """A message that cannot be put together; the fragments at hand were in packets `first` to `last`."""

    first: int
    last: int
    cause: Cause
    topic: str


class Reassembler:
    """Takes the packets of one stream in order; holds at most one unfinished message."""

    def __init__(self, message_size_max: int) -> None:
        self._message_size_max = message_size_max
        self._head: PacketMessage | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._first = 0
        self._last = 0
        self._is_skipping = True  # of a message that began before we joined nothing can be said

    @property
    def held_bytes(self) -> int:
        """Bytes of the unfinished message."""
        return self._size

    @property
    def is_waiting(self) -> bool:
        """Whether it must see the stream's next packet, even one without fragments."""
        return self._head is not None or self._is_skipping

    def messages(self, packet: Packet) -> Iterator[PacketMessage | BrokenMessage]:
        """The messages that this packet completes, and those it shows to be beyond completion."""
        if self._head is not None and packet.sequence != self._last + 1:
            yield from self.lose()  # a filter removed what lay between
        for message in packet:
            if not message.flags & CONTINUATION:
                yield from self.abandon(Cause.FRAGMENT)
                self._is_skipping = False
                if not message.flags & MORE:
                    yield message
                    continue
                # independent of the packet's buffer
                self._head, self._first = message.with_payload(b"", message.flags & ~MORE), packet.sequence
            elif self._is_skipping:
                self._is_skipping = bool(message.flags & MORE)
                continue
            elif self._head is None or self._head.topic != message.topic:
                # its beginning was lost: say so at the first piece that did arrive
                yield from self.abandon(Cause.FRAGMENT)
                yield BrokenMessage(packet.sequence, packet.sequence, Cause.FRAGMENT, message.topic)
                self._is_skipping = bool(message.flags & MORE)
                continue
            yield from self._take(message, packet.sequence)

    def abandon(self, cause: Cause) -> Iterator[BrokenMessage]:
        """Nothing more can come of the unfinished message, if there is one."""
        if self._head is not None:
            yield BrokenMessage(self._first, self._last, cause, self._head.topic)
            self._reset()

    def lose(self) -> Iterator[BrokenMessage]:
        """Packets of the stream were lost here."""
        yield from self.abandon(Cause.FRAGMENT)
        self._is_skipping = False

    def _take(self, message: PacketMessage, sequence: int) -> Iterator[PacketMessage | BrokenMessage]:
        self._pieces.append(bytes(message.payload))
        self._size += len(message.payload)
        self._last = sequence
        if self._size > self._message_size_max:
            yield from self.abandon(Cause.LENGTH)
            self._is_skipping = bool(message.flags & MORE)
        elif not message.flags & MORE and self._head is not None:
            head, payload = self._head, b"".join(self._pieces)
            self._reset()
            yield head.with_payload(payload)

    def _reset(self) -> None:
        self._head = None
        self._pieces = []
        self._size = 0


class Unassembled(Reassembler):
    """For who only passes packets on: fragments stay as they are."""

    def __init__(self) -> None:
        super().__init__(0)
        self._is_skipping = False

    def messages(self, packet: Packet) -> Iterator[PacketMessage | BrokenMessage]:
        yield from packet
