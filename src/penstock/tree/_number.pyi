"""At the root: a publisher's packets become the streams' packets."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy
import numpy.typing as npt
from penstock.topics import InterestTable
from typing_extensions import Buffer

class StreamRun(NamedTuple):
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
    """Why the packet after `through` was not taken; empty if all were."""

class Numbering:
    """Gives each message its place in its stream. A packet of a publisher has one message; its group is the stream, its
    sequence the publisher's own number, which is dense."""

    def __init__(self, tree_id: int, term: int) -> None: ...
    def open_stream(self, stream: int, last: int) -> None: ...
    def close_stream(self, stream: int) -> None: ...
    def last(self, stream: int) -> int: ...
    def number(
        self,
        packets: Buffer,
        publisher_id: int,
        through: int,
        time_ns: int,
        *,
        topics: InterestTable,
        allowed: InterestTable | None = None,
    ) -> Numbered:
        """`topics` has each stream's topics, with the stream as subscriber; `allowed` what this publisher may publish,
        with subscriber 0. Messages with numbers up to `through` were taken before."""

def published_through(packets: Buffer) -> Mapping[int, int]:
    """By publisher id the highest of its numbers in these packets of the tree's streams."""

def encode_published(publisher_id: int, number: int, stream: int, topic: str, payload: Buffer, *, model_id: int = 0,
                     model_version: int = 0, extensions: bytes = b"") -> bytes:
    """A publisher's packet."""
