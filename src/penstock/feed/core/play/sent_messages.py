"""Messages that a player has sent, kept for repair requests and late clients; bounded, the oldest are dropped first."""

from bisect import bisect_right

from penstock.feed.formats._framing import skip


class SentMessages:
    """Messages with their sizes before them, in the chunks in which they were sent, without a gap."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._size = 0
        self._chunks: list[bytes] = []
        self._firsts: list[int] = []
        self.next_sequence = 1

    @property
    def first_sequence(self) -> int:
        """The oldest message that is kept, or the next one."""
        return self._firsts[0] if self._firsts else self.next_sequence

    def add(self, blocks: bytes, count: int) -> None:
        """Add the next `count` messages."""
        self._chunks.append(blocks)
        self._firsts.append(self.next_sequence)
        self.next_sequence += count
        self._size += len(blocks)
        dropped = 0
        while self._size > self._size_max and dropped < len(self._chunks):
            self._size -= len(self._chunks[dropped])
            dropped += 1
        del self._chunks[:dropped], self._firsts[:dropped]

    def find(self, sequence: int, count_max: int) -> tuple[bytes, int]:
        """Return messages from this one on, at most `count_max` and up to the end of their chunk: their bytes, and
        the number after them. Empty if the message is not kept."""
        if not self.first_sequence <= sequence < self.next_sequence:
            return b"", sequence
        number = bisect_right(self._firsts, sequence) - 1
        chunk = self._chunks[number]
        start = skip(chunk, sequence - self._firsts[number])
        is_last = number + 1 == len(self._firsts)
        end_sequence = self.next_sequence if is_last else self._firsts[number + 1]
        count = min(count_max, end_sequence - sequence)
        return chunk[start : start + skip(memoryview(chunk)[start:], count)], sequence + count
