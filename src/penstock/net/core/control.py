"""Control messages: msgpack maps with a `type`, one in each frame. What a subsystem says is a ControlProtocol.

    class Subscribe(msgspec.Struct, tag="subscribe", frozen=True):
        topic: str

    JOURNAL = ControlProtocol("journal", Version(1, 0), Subscribe | Unsubscribe)

Every protocol also has the messages of the session (below): they open, keep and end a connection (session.py). Unknown
fields are ignored and missing fields take their default, so that a minor version may add both.
docs/reference/protocol/control.md has the bytes.
"""

import re
from typing import Annotated, Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

import msgspec

from penstock.base.config import NAME_PATTERN
from penstock.base.decoding import DECODE_ERRORS
from penstock.base.errors import LocalProtocolError, RemoteProtocolError

NONCE_SIZE = 32
PROOF_SIZE = 32
HANDSHAKE_SIZE_MAX = 1_024
"""Bytes of a message before the peer is known."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=NAME_PATTERN)]
TEXT_SIZE_MAX = 256
Text = Annotated[str, msgspec.Meta(max_length=TEXT_SIZE_MAX)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
U64 = Annotated[int, msgspec.Meta(ge=0)]
"""msgpack has no larger number than 2**64 - 1."""

Number = U32
"""Of a request, which its answer names."""

Host = Annotated[str, msgspec.Meta(max_length=64)]
Token = Annotated[str, msgspec.Meta(max_length=65_536)]
Interest = Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]
Path = Annotated[str, msgspec.Meta(max_length=107)]
"""Linux takes no more bytes for the name of a Unix socket."""

SegmentName = Annotated[str, msgspec.Meta(max_length=255)]
Small = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Version(NamedTuple):
    """Other majors do not understand each other; a minor adds to the ones before it."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The first message of each side."""

    protocol: Name
    major: Small
    minor: Small
    node: Name
    """Who speaks, for logs."""

    nonce: Annotated[bytes, msgspec.Meta(min_length=NONCE_SIZE, max_length=NONCE_SIZE)]
    """Never used before: makes the proofs of this connection good for no other."""

    wants_proof: bool
    """Whether this side has a secret, and talks only to those who have it too."""


class Proof(msgspec.Struct, tag="proof", frozen=True):
    """Shows that this side knows the secret: the client's first, then the server's."""

    proof: Annotated[bytes, msgspec.Meta(min_length=PROOF_SIZE, max_length=PROOF_SIZE)]


class Ping(msgspec.Struct, tag="ping", frozen=True):
    """Sent at t1 of the sender's wall clock."""

    t1: Nanoseconds


class Pong(msgspec.Struct, tag="pong", frozen=True):
    """Answers a ping that came at t2 and is answered at t3 of this side's wall clock."""

    t1: Nanoseconds
    t2: Nanoseconds
    t3: Nanoseconds


class ErrorMessage(msgspec.Struct, tag="error", frozen=True):
    """Why this side ends the connection."""

    code: Text
    what: Text
    hint: Text = ""


class Goodbye(msgspec.Struct, tag="goodbye", frozen=True):
    """The last message of a connection that ends in order."""

    reason: Text = ""


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """A server does not do what was asked for under this number; with number 0 it ends the connection. Protocols in
    which a server refuses have this message, or one that adds fields. `code` is one of the protocol's."""

    code: Text
    reason: Text
    number: Number = 0


SessionMessage: TypeAlias = Hello | Proof | Ping | Pong | ErrorMessage | Goodbye


class _AnyMessage(msgspec.Struct, frozen=True):
    type: str


_ENCODER = msgspec.msgpack.Encoder()
_SESSION_DECODER = msgspec.msgpack.Decoder(SessionMessage)
_TYPE_DECODER = msgspec.msgpack.Decoder(_AnyMessage)


class UnknownMessageError(RemoteProtocolError):
    """A well-formed message of a type that this side does not know."""


M = TypeVar("M")


class ControlProtocol(Generic[M]):
    """A subsystem's protocol: its name, its version, and the union of its messages (tagged msgspec structs)."""

    def __init__(self, name: str, version: Version, messages: Any) -> None:
        if re.fullmatch(r"[a-z][a-z0-9-]{0,63}", name) is None:
            raise LocalProtocolError(f"{name!r} is no name for a protocol", hint="letters a-z, digits, -")
        self.name = name
        self.version = version
        self._kinds = _kinds_of(messages)
        self._tags = {_tag_of(kind) for kind in (*self._kinds, *_kinds_of(SessionMessage))}
        try:
            self._decoder = msgspec.msgpack.Decoder(SessionMessage | messages)
        except (TypeError, ValueError) as error:
            raise LocalProtocolError(f"the messages of {name} do not go together: {error}") from None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def encode(self, message: M, size_max: int) -> bytes:
        if type(message) not in self._kinds:
            raise LocalProtocolError(f"{type(message).__name__} is no message of {self}")
        data = _ENCODER.encode(message)
        if len(data) > size_max:
            raise LocalProtocolError(f"a {type(message).__name__} of {len(data)} bytes", hint=f"at most {size_max}")
        return data

    def decode(self, payload: bytes) -> M | SessionMessage:
        """A message of this protocol or of the session; UnknownMessageError when a later version could know it."""
        try:
            return cast("M | SessionMessage", self._decoder.decode(payload))
        except DECODE_ERRORS as error:
            if (kind := _type_of(payload)) is not None and kind not in self._tags:
                raise UnknownMessageError(f"{self} has no message {kind[:64]!r}") from None
            raise RemoteProtocolError(f"no message of {self}: {error}") from None


def encode_session(message: SessionMessage) -> bytes:
    return _ENCODER.encode(message)


def decode_session(payload: bytes) -> SessionMessage:
    """One of Penstock's own messages: before the handshake is done there are no others."""
    try:
        return cast("SessionMessage", _SESSION_DECODER.decode(payload))
    except DECODE_ERRORS as error:
        raise RemoteProtocolError(f"no message of a handshake: {error}") from None


def _type_of(payload: bytes) -> str | None:
    try:
        return _TYPE_DECODER.decode(payload).type
    except DECODE_ERRORS:
        return None


def _kinds_of(messages: Any) -> tuple[type[msgspec.Struct], ...]:
    info = msgspec.inspect.type_info(messages)
    kinds = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    for kind in kinds:
        is_good = isinstance(kind, msgspec.inspect.StructType) and kind.tag_field == "type" and not kind.array_like
        if not is_good:
            raise LocalProtocolError(f"{messages} is not made of messages", hint='msgspec.Struct with tag="name"')
    return tuple(kind.cls for kind in kinds if isinstance(kind, msgspec.inspect.StructType))


def _tag_of(kind: type[msgspec.Struct]) -> str | int | None:
    return kind.__struct_config__.tag
