"""Packets that a root's intake has sequenced and distributed, and that the journal must get."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy
import numpy.typing as npt

from penstock.tree.core.kernel._frame import packet_rows

Rows = npt.NDArray[numpy.uint32]


class PublisherProgress(NamedTuple):
    """A publisher and its position."""

    link: int
    publisher_id: int
    through: int
    """Its last accepted number."""
    messages: int
    """Accepted since the last call."""


class Taken(NamedTuple):
    packets: bytes
    """Of all streams, in the order of acceptance."""
    sources: list[PublisherProgress]

    def streams(self) -> Iterator[tuple[int, Rows, Rows]]:
        """Yield each stream with the offsets and sizes of its packets."""
        offsets, sizes, streams = packet_rows(self.packets)
        for stream in numpy.unique(streams).tolist():
            rows = streams == stream
            yield stream, offsets[rows], sizes[rows]
