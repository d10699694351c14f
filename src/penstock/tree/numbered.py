"""What Numbering makes of a publisher's packets."""

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
