"""SoupBinTCP: numbered messages over TCP, with login, heartbeats and replay. protocol/feeds.md has a drawing."""

import struct
from collections.abc import Iterator

import msgspec

from penstock.base.errors import FrameError, LocalProtocolError, RemoteProtocolError
from penstock.feed.formats import _framing as layout

# packet types of servers
ACCEPTED, REJECTED, SEQUENCED, HEARTBEAT, END = b"A", b"J", b"S", b"H", b"Z"
# packet types of clients
LOGIN, CLIENT_HEARTBEAT, LOGOUT = b"L", b"R", b"O"
# packet types of both
UNSEQUENCED, DEBUG = b"U", b"+"

NOT_AUTHORISED, NOT_AVAILABLE = "A", "S"

LOGIN_FIELDS = struct.Struct("6s10s10s20s")
ACCEPTED_FIELDS = struct.Struct("10s20s")


class SoupLogin(msgspec.Struct, frozen=True):
    """A login: a blank session is the current one; sequence 0 requests only new messages, 1 all messages."""

    user: str
    password: str
    session: str = ""
    sequence: int = 1

    def __repr__(self) -> str:
        return f"SoupLogin({self.user!r}, session={self.session!r}, sequence={self.sequence})"


class SoupAccepted(msgspec.Struct, frozen=True):
    """The server's answer: messages of this session follow, beginning with this number."""

    session: str
    sequence: int


class SoupFrames:
    """Splits the bytes of a connection into packets; sequenced data comes in batches (formats/_framing.pyx)."""

    def __init__(self) -> None:
        self._pending = b""

    def packets(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return (type, content) of every complete packet. Raise FrameError if the data is not SoupBinTCP."""
        data = self._pending + data
        at = 0
        while len(data) - at >= layout.SOUP_HEADER_SIZE:
            size = int.from_bytes(data[at : at + 2], "big")
            if size == 0:
                raise FrameError("a packet has no type")
            if at + 2 + size > len(data):
                break
            yield data[at + 2 : at + 3], data[at + 3 : at + 2 + size]
            at += 2 + size
        self._pending = data[at:]


def encode_soup(kind: bytes, content: bytes = b"") -> bytes:
    if len(content) > 0xFFFE:
        raise LocalProtocolError(f"the packet has {len(content)} bytes, the limit is {0xFFFE}")
    return (len(content) + 1).to_bytes(2, "big") + kind + content


def encode_login(login: SoupLogin) -> bytes:
    fields = (login.user, 6), (login.password, 10), (login.session.rjust(10), 10), (str(login.sequence).rjust(20), 20)
    for text, size in fields:
        if len(text) > size or not text.isascii():
            raise LocalProtocolError(f"a login's field has at most {size} ASCII letters", hint="user 6, password 10")
    return encode_soup(LOGIN, b"".join(text.encode("ascii").ljust(size) for text, size in fields))


def decode_login(content: bytes) -> SoupLogin:
    """Decode a login. Implementations pad its fields on either side."""
    if len(content) != LOGIN_FIELDS.size:
        raise RemoteProtocolError(f"the login has {len(content)} bytes, expected {LOGIN_FIELDS.size}")
    user, password, session, sequence = LOGIN_FIELDS.unpack(content)
    return SoupLogin(_text(user), _text(password), _text(session), _number(sequence))


def encode_accepted(accepted: SoupAccepted) -> bytes:
    session, sequence = accepted.session.rjust(10), str(accepted.sequence).rjust(20)
    return encode_soup(ACCEPTED, session.encode("ascii") + sequence.encode("ascii"))


def decode_accepted(content: bytes) -> SoupAccepted:
    if len(content) != ACCEPTED_FIELDS.size:
        raise RemoteProtocolError(f"the acceptance has {len(content)} bytes, expected {ACCEPTED_FIELDS.size}")
    session, sequence = ACCEPTED_FIELDS.unpack(content)
    return SoupAccepted(_text(session), _number(sequence))


def _text(field: bytes) -> str:
    try:
        return field.decode("ascii").strip(" \0")
    except UnicodeDecodeError:
        raise RemoteProtocolError("a field of a login is not ASCII") from None


def _number(field: bytes) -> int:
    text = field.strip(b" \0")
    if text and not text.isdigit():
        raise RemoteProtocolError("a sequence number is not numeric")
    return min(int(text or b"0"), 2**63 - 1)
