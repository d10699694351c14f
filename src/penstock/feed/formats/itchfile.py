"""Files of messages with their sizes before them, as NASDAQ publishes days of ITCH."""

from collections.abc import Iterator

from penstock.convert import SourceBatch
from penstock.feed.formats._framing import Blocks
from penstock.feed.formats.stream import CHUNK_SIZE, ByteStream, Damage, Damages, excerpt

MESSAGES_MAX = 512
"""Messages per batch, so that the converted messages fit into the second-level cache."""

BLOCK_SIZE_MAX = 2 + 65_535
"""Maximum size of a message with its size field."""


class ItchFile:
    """The messages of a file in batches, numbered from 1. Afterwards `damages` lists what could not be read.

    A batch is valid until the next one.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._blocks = Blocks()
        self.damages = Damages()
        self.next_sequence = 1

    def __iter__(self) -> Iterator[SourceBatch]:
        room = memoryview(bytearray(BLOCK_SIZE_MAX + CHUNK_SIZE))
        held = 0  # bytes at the start that are an incomplete message
        while size := self._stream.read_into(room[held : held + CHUNK_SIZE]):
            at, end = 0, held + size
            while len(batch := self._blocks.batch(room[at:end], self.next_sequence, count_max=MESSAGES_MAX)):
                at += self._blocks.consumed
                self.next_sequence += len(batch)
                yield batch
            held = end - at
            room[:held] = room[at:end]
        rest = bytes(room[:held])
        if rest:
            offset = self._stream.offset - len(rest)
            wanted = int.from_bytes(rest[:2], "big") if len(rest) > 1 else 0
            what = f"a message is truncated after {max(len(rest) - 2, 0)} of {wanted} bytes"
            self.damages.note(Damage(what, offset, excerpt(rest)))
        self.damages.note(self._stream.damage)
