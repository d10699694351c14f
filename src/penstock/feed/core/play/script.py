"""The messages to play, in chunks with sizes before the messages, from a file or generated."""

from collections.abc import Iterator
from typing import Protocol

from penstock.feed.core.play.generator import ItchGenerator
from penstock.feed.formats._framing import Blocks

CHUNK_SIZE = 1024 * 1024
SIZE_SIZE = 2
TIME_AT, TIME_SIZE = 5, 6


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Script:
    """Takes blocks from a source as needed, and can peek at the next message."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._blocks = b""
        self._at = 0
        self._cutter = Blocks()

    @staticmethod
    def made_up(generator: ItchGenerator) -> "Script":
        return Script(_generated(generator))

    @staticmethod
    def of_file(file: Readable) -> "Script":
        return Script(iter(lambda: file.read(CHUNK_SIZE), b""))

    def next_time_ns(self) -> int | None:
        """The next message's nanoseconds since midnight, which every ITCH message has; None at the end."""
        if not self._is_filled():
            return None
        start = self._at + SIZE_SIZE + TIME_AT
        return int.from_bytes(self._blocks[start : start + TIME_SIZE], "big")

    def take(self, messages: int) -> bytes:
        """Take complete messages, at most `messages`, fewer at a chunk's end; none at the end of the script."""
        if not self._is_filled():
            return b""
        rest = memoryview(self._blocks)[self._at :]
        self._cutter.batch(rest, 1, 0, messages)
        taken = bytes(rest[: self._cutter.consumed])
        self._at += len(taken)
        return taken

    def take_until(self, time_ns: int, messages_max: int) -> bytes:
        """Take the messages up to this time of day."""
        parts: list[bytes] = []
        while len(parts) < messages_max:
            next_ns = self.next_time_ns()
            if next_ns is None or next_ns > time_ns:
                break
            parts.append(self.take(1))
        return b"".join(parts)

    def _is_filled(self) -> bool:
        """True if the next message is completely loaded."""
        while not self._has_message():
            chunk = next(self._chunks, b"")
            if not chunk:
                return False
            self._blocks = self._blocks[self._at :] + chunk
            self._at = 0
        return True

    def _has_message(self) -> bool:
        left = len(self._blocks) - self._at
        if left < SIZE_SIZE:
            return False
        return left >= SIZE_SIZE + int.from_bytes(self._blocks[self._at : self._at + SIZE_SIZE], "big")


def _generated(generator: ItchGenerator) -> Iterator[bytes]:
    while len(blocks := generator.blocks()):
        yield bytes(blocks)
