"""IEX-TP: the segments in which IEX sends DEEP and TOPS. docs/reference/protocol/feeds.md has a drawing."""

import struct
from collections.abc import Sequence

import msgspec

from penstock.feed.formats import _framing as layout
from penstock.feed.formats.datagram import Segment

HEADER = struct.Struct("<BxHIIHHqqq")
assert HEADER.size == layout.IEXTP_HEADER_SIZE
STREAM = struct.Struct("<HII")

TOPS_1_6 = 0x8003
DEEP_1_0 = 0x8004
PROTOCOLS = {TOPS_1_6: "TOPS 1.6", DEEP_1_0: "DEEP 1.0"}


class IexStream(msgspec.Struct, frozen=True):
    """The stream of a segment; its text is the session's name."""

    protocol: int
    channel: int
    session: int

    def __str__(self) -> str:
        return f"{self.protocol:04x}-{self.channel}-{self.session}"


class IexTp:
    """The datagram format. Missing messages are requested over another protocol, which is not implemented here."""

    name = "iextp"
    kind = layout.IEXTP

    def decode(self, data: bytes) -> Segment:
        session, first, messages, is_end = layout.decode_datagram(layout.IEXTP, data)
        stream = IexStream(*STREAM.unpack_from(session))
        return Segment(str(stream), first, messages, is_end)

    def encode_request(self, session: str, first_sequence: int, count: int) -> bytes:
        return b""


def encode_segment(
    stream: IexStream, first_sequence: int, messages: Sequence[bytes], *, offset: int = 0, time_ns: int = 0
) -> bytes:
    """Encode a segment with these messages; without messages it is a heartbeat."""
    payload = b"".join(len(message).to_bytes(2, "little") + message for message in messages)
    protocol, channel, session = stream.protocol, stream.channel, stream.session
    sizes = len(payload), len(messages)
    return (
        HEADER.pack(layout.IEXTP_VERSION, protocol, channel, session, *sizes, offset, first_sequence, time_ns) + payload
    )
