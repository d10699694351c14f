"""Where in a stream's packets the messages begin that are cut over several of them."""

from penstock.wire import MessageFlag, Packet, PacketStore, decode

FRAGMENTS_MAX = 16_384
"""Packets that are gone back over for the first fragment of a message; the longest message has fewer."""


class Beginnings:
    """Of the messages in the packets that are kept. The last answer is remembered, so that requests for many fragments
    of one message go over its packets once."""

    def __init__(self, kept: PacketStore) -> None:
        self._kept = kept
        self._first = self._last = 0  # packets in which one message goes on
        self._begun = 0  # the packet in which it begins; 0 is none that is here

    def of(self, sequence: int) -> int | None:
        """The packet in which the message begins that goes on in this one, if it is still here."""
        if not self._first <= sequence <= self._last:
            if not _goes_on(decode(self._kept.get(sequence))):
                return None
            self._first, self._begun = self._find(sequence)
            self._last = sequence
        return self._begun if self._begun >= self._kept.oldest else None

    def _find(self, sequence: int) -> tuple[int, int]:
        """The first packet known in which it goes on, and where it begins."""
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
