"""What a player has sent, kept for those who ask for it again or come late; bounded, the oldest goes first."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ConfigurationError
from penstock.feed.formats._framing import SIZE_SIZE, cut, skip

TIME_AT = SIZE_SIZE + 5
TIME_SIZE = 6


class Piece(msgspec.Struct, frozen=True):
    """Some messages that are sent together, each with its size before it."""

    first_sequence: int
    count: int
    blocks: bytes

    @property
    def time_ns(self) -> int:
        """When the first of them happened, in nanoseconds since midnight (ITCH)."""
        return int.from_bytes(self.blocks[TIME_AT : TIME_AT + TIME_SIZE], "big")


class History:
    """Pieces in the order of their numbers, without a gap."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._size = 0
        self._pieces: deque[Piece] = deque()
        self.next_sequence = 1

    @property
    def first_sequence(self) -> int:
        """The oldest message that is kept, or the next."""
        return self._pieces[0].first_sequence if self._pieces else self.next_sequence

    def add(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._size += len(piece.blocks)
        self.next_sequence = piece.first_sequence + piece.count
        while self._size > self._size_max:
            self._size -= len(self._pieces.popleft().blocks)

    def find(self, sequence: int) -> Piece | None:
        """The rest of the piece that this message is in, from it on."""
        if not self.first_sequence <= sequence < self.next_sequence:
            return None
        index = bisect_right(self._pieces, sequence, key=lambda piece: piece.first_sequence) - 1
        piece = self._pieces[index]
        before = sequence - piece.first_sequence
        if before == 0:
            return piece
        return Piece(sequence, piece.count - before, piece.blocks[skip(piece.blocks, before) :])

    def find_some(self, sequence: int, count: int) -> Piece | None:
        """The same, at most so many messages."""
        piece = self.find(sequence)
        if piece is None or piece.count <= count:
            return piece
        return Piece(sequence, count, piece.blocks[: skip(piece.blocks, count)])


def pieces(blocks: Iterable[bytes | memoryview], size_max: int) -> Iterator[Piece]:
    """Messages with their sizes before them, in pieces of at most so many bytes."""
    sequence, rest = 1, b""
    for data in blocks:
        data = rest + bytes(data)
        end = 0
        for offset, size, count in cut(data, size_max):
            end = offset + size
            yield Piece(sequence, count, data[offset:end])
            sequence += count
        rest = data[end:]


class Pace:
    """When a piece is due: by the times in its messages at `speed` times their rhythm, at a rate, or at once."""

    def __init__(self, *, speed: float = 0.0, rate: float = 0.0) -> None:
        if speed < 0 or rate < 0 or (speed and rate):
            raise ConfigurationError("a pace is a speed or a rate, or neither", hint="both are positive numbers")
        self._speed = speed
        self._rate = rate
        self._start: tuple[int, Piece] | None = None

    def due_ns(self, piece: Piece, now_ns: int) -> int:
        """By the clock of `now_ns`; the first piece is due at once."""
        if self._start is None:
            self._start = now_ns, piece
        start_ns, first = self._start
        if self._rate:
            sent = piece.first_sequence - first.first_sequence
            return start_ns + round(sent / self._rate * NS_PER_SECOND)
        if self._speed:
            return start_ns + round((piece.time_ns - first.time_ns) / self._speed)
        return now_ns
