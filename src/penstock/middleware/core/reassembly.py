"""Reassembles messages from fragments in consecutive packets of a stream."""

from collections.abc import Iterator

import msgspec

from penstock.base.counters import Cause
from penstock.wire import MessageFlag, Packet, PacketMessage

CONTINUATION = int(MessageFlag.CONTINUATION)
MORE = int(MessageFlag.MORE)


class BrokenMessage(msgspec.Struct, frozen=True):
    """A message that cannot be reassembled; its fragments were in packets `first` to `last`."""

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
        self._is_skipping = True  # a message that began before this receiver joined cannot be reported

    @property
    def held_bytes(self) -> int:
        """Size of the unfinished message."""
        return self._size

    @property
    def is_waiting(self) -> bool:
        """True if the reassembler needs the stream's next packet, even one without fragments."""
        return self._head is not None or self._is_skipping

    def messages(self, packet: Packet) -> Iterator[PacketMessage | BrokenMessage]:
        """Yield the messages that this packet completes, and those that it proves incomplete."""
        if self._head is not None and packet.sequence != self._last + 1:
            yield from self.lose()  # a filter removed the packets in between
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
                # the first fragment was lost: reported at the first fragment that arrived
                yield from self.abandon(Cause.FRAGMENT)
                yield BrokenMessage(packet.sequence, packet.sequence, Cause.FRAGMENT, message.topic)
                self._is_skipping = bool(message.flags & MORE)
                continue
            yield from self._take(message, packet.sequence)

    def abandon(self, cause: Cause) -> Iterator[BrokenMessage]:
        """Give up the unfinished message, if there is one."""
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
    """For modules that forward packets: leaves fragments as they are."""

    def __init__(self) -> None:
        super().__init__(0)
        self._is_skipping = False

    def messages(self, packet: Packet) -> Iterator[PacketMessage | BrokenMessage]:
        yield from packet
