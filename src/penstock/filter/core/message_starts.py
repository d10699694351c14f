"""In which packet a fragmented message starts."""

from penstock.wire import MessageFlag, Packet, PacketStore, decode

FRAGMENTS_MAX = 16_384
"""Packets that are searched backwards for the first fragment; the longest message has fewer."""


class MessageStarts:
    """For the packets that are kept for repairs. The last answer is cached, so that requests for many fragments of one
    message search its packets once."""

    def __init__(self, kept: PacketStore) -> None:
        self._kept = kept
        self._first = self._last = 0  # packets in which one message continues
        self._begun = 0  # the packet in which the message starts; 0: not kept

    def of(self, sequence: int) -> int | None:
        """The packet in which the message starts that continues in this packet, if it is still kept."""
        if not self._first <= sequence <= self._last:
            if not _goes_on(decode(self._kept.get(sequence))):
                return None
            self._first, self._begun = self._find(sequence)
            self._last = sequence
        return self._begun if self._begun >= self._kept.oldest else None

    def _find(self, sequence: int) -> tuple[int, int]:
        """The first known packet in which the message continues, and the packet in which it starts; 0: not kept."""
        kept, first = self._kept, sequence
        for earlier in range(sequence - 1, max(kept.oldest, sequence - FRAGMENTS_MAX) - 1, -1):
            data = kept.get(earlier)
            packet = decode(data) if data else None
            if not packet or not packet[len(packet) - 1].flags & MessageFlag.MORE:
                return first, 0
            if len(packet) > 1 or not _goes_on(packet):
                return first, earlier
            if earlier == self._last:
                return self._first, self._begun
            first = earlier
        return first, 0


def _goes_on(packet: Packet) -> bool:
    return len(packet) > 0 and bool(packet[0].flags & MessageFlag.CONTINUATION)
