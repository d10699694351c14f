"""The optional parts of a packet or message: extensions by type, and the body of each type.

    extensions = encode_extensions({Extension.DESTINATION: encode_destination(7)})
    packer.add("", payload, flags=MessageFlag.DIRECT, extensions=extensions)
    ...
    decode_destination(message.extensions[Extension.DESTINATION])

Decoding an invalid body raises PacketError; encoding a value that does not fit raises LocalProtocolError.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.base.counters import Cause
from penstock.base.errors import LocalProtocolError, PacketError
from penstock.wire._codec import ALIGNMENT
from penstock.wire.packet import Extension

_HEADER = struct.Struct("<HH")
_ORIGIN = struct.Struct("<IIHHQQ")
_HOP = struct.Struct("<Qq")
_SEAL = struct.Struct("<I12s")
_WORD = struct.Struct("<Q")

NONCE_SIZE = 12


class Origin(NamedTuple):
    """The source of a message before its publication here, and the term of its number."""

    stream_id: int
    term: int
    """Term of the feed's active adapter; the higher one counts."""
    message_index: int
    """Index among the messages made from one source message."""
    flags: int
    """OriginFlag."""
    source_sequence: int
    message_sequence: int


class Hop(NamedTuple):
    """The time when a message passed a stage of its path."""

    stage: int
    time_ns: int


class Seal(NamedTuple):
    """The parameters for decrypting a sealed message."""

    key_id: int
    nonce: bytes


def encode_extensions(bodies: Mapping[int, bytes]) -> bytes:
    """Encode extensions for Packer.add(), in the mapping's order."""
    parts = []
    for kind, body in bodies.items():
        extension = _pack(_HEADER, "extension", kind, len(body)) + body
        parts.append(extension + bytes(-len(extension) % ALIGNMENT))
    return b"".join(parts)


def encode_origin(origin: Origin) -> bytes:
    return _pack(_ORIGIN, "origin", *origin)


def decode_origin(body: bytes) -> Origin:
    _check_size(body, Extension.ORIGIN, len(body) == _ORIGIN.size)
    return Origin(*_ORIGIN.unpack(body))


def decode_extensions(data: bytes) -> dict[int, bytes]:
    """Return the bodies by type, from the extensions of a decoded message; of several with the same type, the last."""
    bodies: dict[int, bytes] = {}
    at = 0
    while at + _HEADER.size <= len(data):
        kind, size = _HEADER.unpack_from(data, at)
        body_at = at + _HEADER.size
        if body_at + size > len(data):
            raise LocalProtocolError(f"the extension at byte {at} of {len(data)} declares a body of {size} bytes")
        bodies[kind] = data[body_at : body_at + size]
        at = body_at + size + -(_HEADER.size + size) % ALIGNMENT
    return bodies


def find_origin(extensions: Mapping[int, bytes]) -> Origin | None:
    """Return the ORIGIN of a message's extensions; None if there is none or it is invalid."""
    body = extensions.get(int(Extension.ORIGIN))
    return Origin(*_ORIGIN.unpack(body)) if body is not None and len(body) == _ORIGIN.size else None


def encode_hops(hops: Iterable[Hop]) -> bytes:
    return b"".join(_pack(_HOP, "hop", *hop) for hop in hops)


def decode_hops(body: bytes) -> list[Hop]:
    _check_size(body, Extension.HOPS, len(body) % _HOP.size == 0)
    return [Hop(*hop) for hop in _HOP.iter_unpack(body)]


def encode_seal(seal: Seal) -> bytes:
    if len(seal.nonce) != NONCE_SIZE:
        raise LocalProtocolError(f"a nonce must have {NONCE_SIZE} bytes, not {len(seal.nonce)}")
    return _pack(_SEAL, "seal", *seal)


def decode_seal(body: bytes) -> Seal:
    _check_size(body, Extension.SEAL, len(body) == _SEAL.size)
    return Seal(*_SEAL.unpack(body))


def encode_interest_mask(mask: int) -> bytes:
    """Encode a mask whose bit n is the host's application n, in as many 64-bit words as needed, at least one."""
    if mask < 0:
        raise LocalProtocolError("an interest mask cannot be negative")
    word_count = max(1, -(-mask.bit_length() // 64))
    return mask.to_bytes(word_count * _WORD.size, "little")


def decode_interest_mask(body: bytes) -> int:
    _check_size(body, Extension.INTEREST_MASK, len(body) > 0 and len(body) % _WORD.size == 0)
    return int.from_bytes(body, "little")


def encode_destination(application: int) -> bytes:
    return _pack(_WORD, "destination", application)


def decode_destination(body: bytes) -> int:
    _check_size(body, Extension.DESTINATION, len(body) == _WORD.size)
    (application,) = _WORD.unpack(body)
    return int(application)


def encode_tags(tags: Iterable[str]) -> bytes:
    tags = list(tags)
    if any(not tag or "\0" in tag for tag in tags):
        raise LocalProtocolError("a tag must be a text of one or more characters without NUL")
    try:
        return "\0".join(tags).encode()
    except UnicodeEncodeError:
        raise LocalProtocolError("a tag is not Unicode text") from None


def decode_tags(body: bytes) -> list[str]:
    try:
        tags = body.decode().split("\0") if body else []
    except UnicodeDecodeError:
        raise PacketError("the tags are not UTF-8 text", cause=Cause.LENGTH, where="extension TAGS") from None
    _check_size(body, Extension.TAGS, all(tags))
    return tags


def _pack(layout: struct.Struct, name: str, *values: object) -> bytes:
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise LocalProtocolError(f"invalid {name} {values}: {error}") from None


def _check_size(body: bytes, kind: Extension, is_right: bool) -> None:
    if not is_right:
        raise PacketError(f"invalid body of {len(body)} bytes", cause=Cause.LENGTH, where=f"extension {kind.name}")
