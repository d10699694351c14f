"""What Numbering makes of a publisher's packets."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy
import numpy.typing as npt


class StreamRun(msgspec.Struct, frozen=True):
    """Packets of one stream, in a row."""

    stream: int
    first: int
    """Sequence of the first."""

    start: int
    """Its row in `offsets` and `sizes`."""

    count: int


class Numbered(NamedTuple):
    packets: bytes
    offsets: npt.NDArray[numpy.uint32]
    sizes: npt.NDArray[numpy.uint32]
    runs: list[StreamRun]
    through: int
    """The last number of the publisher that was taken; what follows it was not."""

    duplicates: int
    refused: str
    """Why the message after `through` was not taken; empty if all were."""

    def pieces(self) -> Iterator[tuple[StreamRun, bytes, npt.NDArray[numpy.uint32], npt.NDArray[numpy.uint32]]]:
        """Of each run: its packets, and where each of them is and how large."""
        if len(self.runs) == 1:
            yield self.runs[0], self.packets, self.offsets, self.sizes
            return
        for run in self.runs:
            end = run.start + run.count
            begin, stop = int(self.offsets[run.start]), int(self.offsets[end - 1] + self.sizes[end - 1])
            yield run, self.packets[begin:stop], self.offsets[run.start : end] - begin, self.sizes[run.start : end]
