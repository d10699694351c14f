"""Ticks as text: one message per line. The converter table interprets the columns."""

from collections.abc import Iterator

from penstock.convert import SourceBatch
from penstock.feed.formats.stream import ByteStream, Damage, Damages, excerpt

READ_SIZE = 256 * 1024
LINE_SIZE_MAX = 16 * 1024


class CsvTicks:
    """The lines of a file in batches, numbered from 1 without empty lines. `damages` lists errors.

    With `has_header` the first line has the column names (`columns`) and is not a message. A line that is too long
    is dropped and reported, but keeps its number.
    """

    def __init__(self, stream: ByteStream, *, has_header: bool = False) -> None:
        self._stream = stream
        self._has_header = has_header
        self.columns: list[str] = []
        self.damages = Damages()
        self.next_sequence = 1

    def __iter__(self) -> Iterator[SourceBatch]:
        pending, offset = b"", self._stream.offset
        is_skipping = False
        while data := self._stream.read(READ_SIZE):
            *lines, rest = (pending + data).split(b"\n")
            batch = SourceBatch()
            batch.point_at(pending + data)
            at = 0
            for line in lines:
                if is_skipping:
                    is_skipping = False  # this is the end of a line that was too long
                else:
                    self._take(batch, line, at, offset + at)
                at += len(line) + 1
            offset += at
            pending = rest
            if len(pending) > LINE_SIZE_MAX:
                if not is_skipping:
                    self._refuse(pending, offset)
                is_skipping, offset, pending = True, offset + len(pending), b""
            if len(batch):
                yield batch
        if pending and not is_skipping:
            batch = SourceBatch()
            batch.point_at(pending)
            self._take(batch, pending, 0, offset)
            if len(batch):
                yield batch
        self.damages.note(self._stream.damage)

    def _take(self, batch: SourceBatch, line: bytes, at: int, offset: int) -> None:
        line = line.removesuffix(b"\r")
        if not line.strip():
            return
        if self._has_header:
            self._has_header = False
            self.columns = [name.strip() for name in line.decode("utf-8", errors="replace").split(",")]
        elif len(line) > LINE_SIZE_MAX:
            self._refuse(line, offset)
        else:
            batch.append(self.next_sequence, at, len(line))
            self.next_sequence += 1

    def _refuse(self, line: bytes, offset: int) -> None:
        self.damages.note(Damage(f"a line is longer than {LINE_SIZE_MAX} bytes", offset, excerpt(line)))
        self.next_sequence += 1
