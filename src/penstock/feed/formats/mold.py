"""MoldUDP64: numbered messages in datagrams, as NASDAQ and others send them.

docs/reference/protocol/feeds.md draws it.
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
"""Bytes of a datagram; senders keep below what an Ethernet frame carries."""

COUNT_MAX = layout.MOLD_COUNT_END - 1
MESSAGE_SIZE_MAX = 0xFFFF


class MoldRequest(msgspec.Struct, frozen=True):
    """Somebody asks for messages to be sent again."""

    session: str
    first_sequence: int
    count: int


class MoldUDP64:
    """The format of the datagrams."""

    name = "moldudp64"
    kind = layout.MOLD

    def decode(self, data: bytes) -> Segment:
        session, first, messages, is_end = layout.decode_datagram(layout.MOLD, data)
        return Segment(session_name(session[: layout.MOLD_SESSION_SIZE]), first, messages, is_end)

    def encode_request(self, session: str, first_sequence: int, count: int) -> bytes:
        return encode_header(session, first_sequence, min(count, COUNT_MAX))


def encode_header(session: str, sequence: int, count: int) -> bytes:
    """The head of a packet; alone, with a count of 0 or 0xFFFF, a heartbeat or the end; else a request."""
    name = session.encode("ascii", errors="replace")
    if len(name) > layout.MOLD_SESSION_SIZE:
        raise LocalProtocolError(f"a session's name has at most {layout.MOLD_SESSION_SIZE} letters, not {session!r}")
    return HEADER.pack(name.ljust(layout.MOLD_SESSION_SIZE), sequence, count)


def encode_packet(session: str, first_sequence: int, messages: Sequence[bytes]) -> bytes:
    """A packet with these messages; without any it is a heartbeat."""
    if len(messages) > COUNT_MAX or any(len(message) > MESSAGE_SIZE_MAX for message in messages):
        raise LocalProtocolError(f"a packet has at most {COUNT_MAX} messages of {MESSAGE_SIZE_MAX} bytes")
    blocks = [len(message).to_bytes(2, "big") + message for message in messages]
    return b"".join([encode_header(session, first_sequence, len(messages)), *blocks])


def encode_end(session: str, next_sequence: int) -> bytes:
    """The session is over; `next_sequence` would have been next."""
    return encode_header(session, next_sequence, layout.MOLD_COUNT_END)


def decode_request(data: bytes) -> MoldRequest:
    """What somebody asks for; the bytes may be anybody's."""
    if len(data) != layout.MOLD_HEADER_SIZE:
        cause = Cause.TRUNCATED if len(data) < layout.MOLD_HEADER_SIZE else Cause.LENGTH
        raise PacketError(f"a request has {layout.MOLD_HEADER_SIZE} bytes, not {len(data)}", cause=cause)
    session, first, count = HEADER.unpack(data)
    if first == 0 or count == 0:
        raise PacketError("it asks for nothing", cause=Cause.LENGTH)
    return MoldRequest(session_name(session), first, count)


def session_name(raw: bytes) -> str:
    """Names are padded with spaces (or zeros) on either side, as the sender likes."""
    return raw.decode("ascii", errors="replace").strip(" \0")
