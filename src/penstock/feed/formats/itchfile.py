"""Files of messages with their sizes before them, as NASDAQ publishes days of ITCH."""

from collections.abc import Iterator

from penstock.convert import SourceBatch
from penstock.feed.formats._framing import Blocks
from penstock.feed.formats.stream import CHUNK_SIZE, ByteStream, Damage, Damages, excerpt

MESSAGES_MAX = 512
"""Of a batch: what they are converted into then fits the processor's second cache."""


class ItchFile:
    """The messages of a file in batches, numbered from 1. Afterwards `damages` says what could not be read.

    A batch is good until the next one.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._blocks = Blocks()
        self.damages = Damages()
        self.next_sequence = 1

    def __iter__(self) -> Iterator[SourceBatch]:
        rest = b""
        while data := self._stream.read(CHUNK_SIZE):
            data = rest + data
            at = 0
            while len(batch := self._blocks.batch(memoryview(data)[at:], self.next_sequence, count_max=MESSAGES_MAX)):
                at += self._blocks.consumed
                self.next_sequence += len(batch)
                yield batch
            rest = data[at:]
        if rest:
            offset = self._stream.offset - len(rest)
            wanted = int.from_bytes(rest[:2], "big") if len(rest) > 1 else 0
            what = f"a message is cut off after {max(len(rest) - 2, 0)} of {wanted} bytes"
            self.damages.note(Damage(what, offset, excerpt(rest)))
        self.damages.note(self._stream.damage)
