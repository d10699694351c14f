"""SoupBinTCP: numbered messages over TCP, with login, heartbeats and replay. protocol/feeds.md draws it."""

import struct
from collections.abc import Iterator

import msgspec

from penstock.base.errors import FrameError, LocalProtocolError, RemoteProtocolError
from penstock.feed.formats import _framing as layout

# what a server sends
ACCEPTED, REJECTED, SEQUENCED, HEARTBEAT, END = b"A", b"J", b"S", b"H", b"Z"
# what a client sends
LOGIN, CLIENT_HEARTBEAT, LOGOUT = b"L", b"R", b"O"
# either
UNSEQUENCED, DEBUG = b"U", b"+"

NOT_AUTHORISED, NOT_AVAILABLE = "A", "S"

LOGIN_FIELDS = struct.Struct("6s10s10s20s")
ACCEPTED_FIELDS = struct.Struct("10s20s")


class SoupLogin(msgspec.Struct, frozen=True):
    """Who wants what: a blank session is the current one, sequence 0 only what is new, 1 everything."""

    user: str
    password: str
    session: str = ""
    sequence: int = 1

    def __repr__(self) -> str:
        return f"SoupLogin({self.user!r}, session={self.session!r}, sequence={self.sequence})"


class SoupAccepted(msgspec.Struct, frozen=True):
    """The server's answer: messages of this session come, from this number on."""

    session: str
    sequence: int


class SoupFrames:
    """Splits the bytes of a connection into packets; sequenced data comes in batches (formats/_framing.pyx)."""

    def __init__(self) -> None:
        self._pending = b""

    def packets(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(type, content) of every whole packet; a FrameError when it is no SoupBinTCP."""
        data = self._pending + data
        at = 0
        while len(data) - at >= layout.SOUP_HEADER_SIZE:
            size = int.from_bytes(data[at : at + 2], "big")
            if size == 0:
                raise FrameError("a packet without a type")
            if at + 2 + size > len(data):
                break
            yield data[at + 2 : at + 3], data[at + 3 : at + 2 + size]
            at += 2 + size
        self._pending = data[at:]


def encode_soup(kind: bytes, content: bytes = b"") -> bytes:
    if len(content) > 0xFFFE:
        raise LocalProtocolError(f"a packet carries at most {0xFFFE} bytes, not {len(content)}")
    return (len(content) + 1).to_bytes(2, "big") + kind + content


def encode_login(login: SoupLogin) -> bytes:
    fields = (login.user, 6), (login.password, 10), (login.session.rjust(10), 10), (str(login.sequence).rjust(20), 20)
    for text, size in fields:
        if len(text) > size or not text.isascii():
            raise LocalProtocolError(f"a login's field has at most {size} ASCII letters", hint="user 6, password 10")
    return encode_soup(LOGIN, b"".join(text.encode("ascii").ljust(size) for text, size in fields))


def decode_login(content: bytes) -> SoupLogin:
    """Implementations differ in which side they pad."""
    if len(content) != LOGIN_FIELDS.size:
        raise RemoteProtocolError(f"a login has {LOGIN_FIELDS.size} bytes, not {len(content)}")
    user, password, session, sequence = LOGIN_FIELDS.unpack(content)
    return SoupLogin(_text(user), _text(password), _text(session), _number(sequence))


def encode_accepted(accepted: SoupAccepted) -> bytes:
    session, sequence = accepted.session.rjust(10), str(accepted.sequence).rjust(20)
    return encode_soup(ACCEPTED, session.encode("ascii") + sequence.encode("ascii"))


def decode_accepted(content: bytes) -> SoupAccepted:
    if len(content) != ACCEPTED_FIELDS.size:
        raise RemoteProtocolError(f"an acceptance has {ACCEPTED_FIELDS.size} bytes, not {len(content)}")
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
        raise RemoteProtocolError("a sequence number is no number")
    return min(int(text or b"0"), 2**63 - 1)
