"""The common interface of datagram feeds: sessions, numbered messages, heartbeats, and requests for missing
messages."""

from typing import Protocol

import msgspec


class Segment(msgspec.Struct, frozen=True):
    """The content of one datagram. Without messages it is a heartbeat, and `first_sequence` is the number of the
    next message."""

    session: str
    first_sequence: int
    messages: list[bytes] = []
    is_end: bool = False
    """The session has ended, and `first_sequence` would have been next."""

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + len(self.messages)


class DatagramFormat(Protocol):
    """The framing and numbering of a feed; docs/how-to/write-your-own-feed.md explains how to write one."""

    name: str
    kind: int
    """The number of the format in compiled code, or 0."""

    def decode(self, data: bytes) -> Segment:
        """Decode the datagram, which may be hostile. Raise PacketError if it is invalid."""
        ...

    def encode_request(self, session: str, first_sequence: int, count: int) -> bytes:
        """Encode a repair request; empty if the format has none."""
        ...
