"""What every feed over datagrams has: sessions, numbered messages, heartbeats, and a way to ask for what is missing."""

from typing import Protocol

import msgspec


class Segment(msgspec.Struct, frozen=True):
    """What one datagram says. Without messages it is a heartbeat: `first_sequence` is the number of the next one."""

    session: str
    first_sequence: int
    messages: list[bytes] = []
    is_end: bool = False
    """The session is over, and `first_sequence` would have been next."""

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + len(self.messages)


class DatagramFormat(Protocol):
    """How a feed frames and numbers its messages; docs/how-to/write-your-own-feed.md makes one."""

    name: str
    kind: int
    """The number by which compiled code knows the format, or 0."""

    def decode(self, data: bytes) -> Segment:
        """The datagram's content; a PacketError says what is wrong with it. The bytes may be anybody's."""
        ...

    def encode_request(self, session: str, first_sequence: int, count: int) -> bytes:
        """What to send to a request server to have messages sent again; empty where there is no such thing."""
        ...
