"""What a publisher keeps of the past, so that it can be sent again."""

from collections import deque


class RetransmissionBuffer:
    """The newest packets of one stream, bounded in number and bytes; sequence numbers follow each other."""

    def __init__(self, packets_max: int, bytes_max: int) -> None:
        self._packets_max = packets_max
        self._bytes_max = bytes_max
        self._packets: deque[bytes] = deque()
        self._next_sequence = 1
        self.bytes_kept = 0

    def __len__(self) -> int:
        return len(self._packets)

    def keep(self, packet: bytes) -> None:
        """Keep the stream's next packet."""
        self._packets.append(packet)
        self._next_sequence += 1
        self.bytes_kept += len(packet)
        while len(self._packets) > self._packets_max or self.bytes_kept > self._bytes_max:
            self.bytes_kept -= len(self._packets.popleft())

    def get(self, sequence: int) -> bytes:
        """A packet that split() said is here."""
        return self._packets[sequence - self.oldest]

    def split(self, first: int, last: int) -> tuple[tuple[int, int] | None, range]:
        """Which of the packets `first` to `last` are gone (first and last), and which are still here.

        Those that have not been sent yet are neither.
        """
        first, last = max(first, 1), min(last, self._next_sequence - 1)
        gone_last = min(last, self.oldest - 1)
        gone = (first, gone_last) if first <= gone_last else None
        return gone, range(max(first, self.oldest), last + 1)

    @property
    def oldest(self) -> int:
        """The number of the oldest packet kept, or of the next one if none is."""
        return self._next_sequence - len(self._packets)
