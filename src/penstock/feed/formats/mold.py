"""MoldUDP64: numbered messages in datagrams, the format of NASDAQ and others.

docs/reference/protocol/feeds.md has a drawing.
"""

import struct
from collections.abc import Sequence

import msgspec

from penstock.base.counters import Cause
from penstock.base.errors import LocalProtocolError, PacketError
from penstock.feed.formats import _framing as layout
from penstock.feed.formats.datagram import Segment

HEADER = struct.Struct(">10sQH")
assert HEADER.size == layout.MOLD_HEADER_SIZE

PACKET_SIZE_DEFAULT = 1_400
"""Default size of a datagram, below the limit of an Ethernet frame."""

COUNT_MAX = layout.MOLD_COUNT_END - 1
MESSAGE_SIZE_MAX = 0xFFFF


class MoldRequest(msgspec.Struct, frozen=True):
    """A request for messages."""

    session: str
    first_sequence: int
    count: int


class MoldUDP64:
    """The datagram format."""

    name = "moldudp64"
    kind = layout.MOLD

    def decode(self, data: bytes) -> Segment:
        session, first, messages, is_end = layout.decode_datagram(layout.MOLD, data)
        return Segment(session_name(session[: layout.MOLD_SESSION_SIZE]), first, messages, is_end)

    def encode_request(self, session: str, first_sequence: int, count: int) -> bytes:
        return encode_header(session, first_sequence, min(count, COUNT_MAX))


def encode_header(session: str, sequence: int, count: int) -> bytes:
    """Encode a packet header; alone, a count of 0 is a heartbeat, 0xFFFF the end of the session, any other count a
    request."""
    name = session.encode("ascii", errors="replace")
    if len(name) > layout.MOLD_SESSION_SIZE:
        raise LocalProtocolError(f"session name {session!r} exceeds {layout.MOLD_SESSION_SIZE} letters")
    return HEADER.pack(name.ljust(layout.MOLD_SESSION_SIZE), sequence, count)


def encode_packet(session: str, first_sequence: int, messages: Sequence[bytes]) -> bytes:
    """Encode a packet with these messages; without messages it is a heartbeat."""
    if len(messages) > COUNT_MAX or any(len(message) > MESSAGE_SIZE_MAX for message in messages):
        raise LocalProtocolError(f"a packet has at most {COUNT_MAX} messages of {MESSAGE_SIZE_MAX} bytes")
    blocks = [len(message).to_bytes(2, "big") + message for message in messages]
    return b"".join([encode_header(session, first_sequence, len(messages)), *blocks])


def encode_end(session: str, next_sequence: int) -> bytes:
    """Encode the end of the session; `next_sequence` would have been next."""
    return encode_header(session, next_sequence, layout.MOLD_COUNT_END)


def decode_request(data: bytes) -> MoldRequest:
    """Decode a request, which may be hostile."""
    if len(data) != layout.MOLD_HEADER_SIZE:
        cause = Cause.TRUNCATED if len(data) < layout.MOLD_HEADER_SIZE else Cause.LENGTH
        raise PacketError(f"the request has {len(data)} bytes, expected {layout.MOLD_HEADER_SIZE}", cause=cause)
    session, first, count = HEADER.unpack(data)
    if first == 0 or count == 0:
        raise PacketError("the request has a count of 0", cause=Cause.LENGTH)
    return MoldRequest(session_name(session), first, count)


def session_name(raw: bytes) -> str:
    """Strip the padding of a name: spaces or zeros, on either side."""
    return raw.decode("ascii", errors="replace").strip(" \0")
