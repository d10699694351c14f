"""What a publisher keeps of the past, so that it can be sent again."""

from collections import deque


class RetransmissionBuffer:
    """The newest packets of one stream, bounded in number and bytes; sequence numbers follow each other."""

    def __init__(self, packets_max: int, bytes_max: int) -> None:
        self._packets_max = packets_max
        self._bytes_max = bytes_max
        self._packets: deque[bytes] = deque()
        self._oldest = 0
        self.bytes_kept = 0

    def __len__(self) -> int:
        return len(self._packets)

    def keep(self, sequence: int, packet: bytes) -> None:
        if not self._packets:
            self._oldest = sequence
        self._packets.append(packet)
        self.bytes_kept += len(packet)
        while len(self._packets) > self._packets_max or self.bytes_kept > self._bytes_max:
            self.bytes_kept -= len(self._packets.popleft())
            self._oldest += 1

    def get(self, sequence: int) -> bytes | None:
        index = sequence - self._oldest
        return self._packets[index] if 0 <= index < len(self._packets) else None

    def split(self, first: int, last: int) -> tuple[range, range]:
        """Which of the packets `first` to `last` are gone, and which are still here."""
        oldest = self._oldest if self._packets else last + 1
        newest = self._oldest + len(self._packets) - 1
        return range(first, min(last + 1, oldest)), range(max(first, oldest), min(last, newest) + 1)
