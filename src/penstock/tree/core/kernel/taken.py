"""What a root's intake has taken and distributed already; the journal is still to get it."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy
import numpy.typing as npt

from penstock.tree.core.kernel._frame import packet_rows

Rows = npt.NDArray[numpy.uint32]


class PublisherProgress(NamedTuple):
    """A publisher, and how far it is."""

    link: int
    publisher_id: int
    through: int
    """Its last number that was taken."""
    messages: int
    """Taken since the last time."""


class Taken(NamedTuple):
    packets: bytes
    """Of all streams, in the order in which they were taken."""
    sources: list[PublisherProgress]

    def streams(self) -> Iterator[tuple[int, Rows, Rows]]:
        """Of each stream: where its packets are, and how large."""
        offsets, sizes, streams = packet_rows(self.packets)
        for stream in numpy.unique(streams).tolist():
            rows = streams == stream
            yield stream, offsets[rows], sizes[rows]
