"""The result of Numbering for a publisher's packets."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy
import numpy.typing as npt


class StreamRun(msgspec.Struct, frozen=True):
    """Consecutive packets of one stream."""

    stream: int
    first: int
    """Sequence of the first packet."""

    start: int
    """Its row in `offsets` and `sizes`."""

    count: int


class Numbered(NamedTuple):
    packets: bytes
    offsets: npt.NDArray[numpy.uint32]
    sizes: npt.NDArray[numpy.uint32]
    runs: list[StreamRun]
    through: int
    """The publisher's last accepted number; later ones were not accepted."""

    duplicates: int
    refused: str
    """The reason why the message after `through` was refused; empty if all were accepted."""

    def pieces(self) -> Iterator[tuple[StreamRun, bytes, npt.NDArray[numpy.uint32], npt.NDArray[numpy.uint32]]]:
        """Yield each run with its packets, their offsets and sizes."""
        if len(self.runs) == 1:
            yield self.runs[0], self.packets, self.offsets, self.sizes
            return
        for run in self.runs:
            end = run.start + run.count
            begin, stop = int(self.offsets[run.start]), int(self.offsets[end - 1] + self.sizes[end - 1])
            yield run, self.packets[begin:stop], self.offsets[run.start : end] - begin, self.sizes[run.start : end]
