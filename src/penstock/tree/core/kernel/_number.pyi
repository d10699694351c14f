"""At the root: converts a publisher's packets to packets of streams."""

from typing_extensions import Buffer

from penstock.topics import InterestTable
from penstock.tree.core.kernel.numbered import Numbered as Numbered
from penstock.tree.core.kernel.numbered import StreamRun as StreamRun

class Numbering:
    """Assigns each message the next sequence of its stream. A publisher's packet has one message; its group is the
    stream, or 0 for the first stream with the topic; its sequence is the publisher's own number, which is dense."""

    def __init__(self, tree_id: int, term: int) -> None: ...
    @property
    def term(self) -> int: ...
    def open_stream(self, stream: int, last: int) -> None: ...
    def set_last(self, stream: int, last: int) -> None:
        """Other code has assigned the sequences up to this one."""

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
        """`topics` has each stream's topics, with the stream as subscriber; `allowed` has the topics that this
        publisher may publish on, with subscriber 0. Messages with numbers up to `through` were taken before."""

def published_through(packets: Buffer) -> dict[int, int]:
    """By publisher id: the highest of its numbers in these packets of the tree's streams."""

def encode_published(
    publisher_id: int,
    number: int,
    stream: int,
    topic: str,
    payload: Buffer,
    *,
    model_id: int = 0,
    model_version: int = 0,
    extensions: bytes = b"",
) -> bytes:
    """Encode a publisher's packet; LimitError if the message does not fit into one."""
