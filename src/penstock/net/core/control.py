"""Control messages: msgpack maps with a `type`, one in each frame. A ControlProtocol has the messages of a subsystem.

    class Subscribe(msgspec.Struct, tag="subscribe", frozen=True):
        topic: str

    JOURNAL = ControlProtocol("journal", Version(1, 0), Subscribe | Unsubscribe)

Every protocol also has the session messages below, which open, keep and end a connection (control_session.py). Unknown
fields are ignored and missing fields have their default, so that a minor version may add fields and messages.
docs/reference/protocol/control.md describes the bytes.
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
"""Maximum size of a message before the peer is authenticated."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=NAME_PATTERN)]
TEXT_SIZE_MAX = 256
Text = Annotated[str, msgspec.Meta(max_length=TEXT_SIZE_MAX)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
U64 = Annotated[int, msgspec.Meta(ge=0)]
"""msgpack's largest number is 2**64 - 1."""

Number = U32
"""Number of a request, which its answer repeats."""

Host = Annotated[str, msgspec.Meta(max_length=64)]
Token = Annotated[str, msgspec.Meta(max_length=65_536)]
Interest = Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]
Path = Annotated[str, msgspec.Meta(max_length=107)]
"""The limit of Linux for the path of a Unix socket."""

SegmentName = Annotated[str, msgspec.Meta(max_length=255)]
Small = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Version(NamedTuple):
    """Different major versions are incompatible; a minor version adds to earlier ones."""

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
    """The sender's name, for logs."""

    nonce: Annotated[bytes, msgspec.Meta(min_length=NONCE_SIZE, max_length=NONCE_SIZE)]
    """Never used before, so that the proofs of this connection are invalid on any other."""

    wants_proof: bool
    """True if this side has a secret and requires the peer to prove it."""


class Proof(msgspec.Struct, tag="proof", frozen=True):
    """Proves knowledge of the secret: the client's proof comes first, then the server's."""

    proof: Annotated[bytes, msgspec.Meta(min_length=PROOF_SIZE, max_length=PROOF_SIZE)]


class Ping(msgspec.Struct, tag="ping", frozen=True):
    """Sent at t1 of the sender's wall clock."""

    t1: Nanoseconds


class Pong(msgspec.Struct, tag="pong", frozen=True):
    """The answer to a ping that arrived at t2, sent at t3, both by this side's wall clock."""

    t1: Nanoseconds
    t2: Nanoseconds
    t3: Nanoseconds


class ErrorMessage(msgspec.Struct, tag="error", frozen=True):
    """The reason why this side ends the connection."""

    code: Text
    what: Text
    hint: Text = ""


class Goodbye(msgspec.Struct, tag="goodbye", frozen=True):
    """The last message of a connection that is closed in order."""

    reason: Text = ""


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """A server refuses the request of this number; with number 0 it ends the connection. Protocols with refusals
    have this message, or one with additional fields. `code` is one of the protocol's codes."""

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
            raise LocalProtocolError(f"{name!r} is not a valid protocol name", hint="use letters a-z, digits and -")
        self.name = name
        self.version = version
        self._kinds = _kinds_of(messages)
        self._tags = {_tag_of(kind) for kind in (*self._kinds, *_kinds_of(SessionMessage))}
        try:
            self._decoder = msgspec.msgpack.Decoder(SessionMessage | messages)
        except (TypeError, ValueError) as error:
            raise LocalProtocolError(f"the messages of {name} are ambiguous: {error}") from None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def encode(self, message: M, size_max: int) -> bytes:
        if type(message) not in self._kinds:
            raise LocalProtocolError(f"{type(message).__name__} is not a message of {self}")
        data = _ENCODER.encode(message)
        if len(data) > size_max:
            raise LocalProtocolError(
                f"the {type(message).__name__} has {len(data)} bytes", hint=f"the limit is {size_max}"
            )
        return data

    def decode(self, payload: bytes) -> M | SessionMessage:
        """Decode a message of this protocol or of the session. UnknownMessageError means that a later version may
        know it."""
        try:
            return cast("M | SessionMessage", self._decoder.decode(payload))
        except DECODE_ERRORS as error:
            if (kind := _type_of(payload)) is not None and kind not in self._tags:
                raise UnknownMessageError(f"{self} has no message {kind[:64]!r}") from None
            raise RemoteProtocolError(f"not a message of {self}: {error}") from None


def encode_session(message: SessionMessage) -> bytes:
    return _ENCODER.encode(message)


def decode_session(payload: bytes) -> SessionMessage:
    """Decode a session message: other messages are not allowed before the handshake is complete."""
    try:
        return cast("SessionMessage", _SESSION_DECODER.decode(payload))
    except DECODE_ERRORS as error:
        raise RemoteProtocolError(f"not a handshake message: {error}") from None


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
            raise LocalProtocolError(f"{messages} is not a union of messages", hint='msgspec.Struct with tag="name"')
    return tuple(kind.cls for kind in kinds if isinstance(kind, msgspec.inspect.StructType))


def _tag_of(kind: type[msgspec.Struct]) -> str | int | None:
    return kind.__struct_config__.tag
