"""The messages of a handover and the checks on both sides (protocol/shared-memory.md), without I/O.

producer ──Challenge──► consumer      a nonce, and whether a secret is required
producer ◄──Request──── consumer      the segment, a nonce, and a proof of the secret
producer ──Grant──────► consumer      the producer's proof, with the file descriptors; or a Refusal
"""

import hmac
from typing import Annotated

import msgspec

from penstock.base.counters import Cause
from penstock.base.errors import HandoverError, LocalProtocolError
from penstock.net.secret import Secret

HANDSHAKE_VERSION = 1
HANDSHAKE_SIZE_MAX = 1_024
"""Maximum size of one handshake message."""
NONCE_SIZE = 32
FDS_MAX = 4
NAME_SIZE_MAX = 255

Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_SIZE, max_length=NONCE_SIZE)]
Proof = Annotated[bytes, msgspec.Meta(max_length=32)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_SIZE_MAX)]


class Challenge(msgspec.Struct, tag="challenge", tag_field="type", frozen=True):
    version: int
    nonce: Nonce
    needs_secret: bool


class Request(msgspec.Struct, tag="request", tag_field="type", frozen=True):
    name: Name
    nonce: Nonce
    proof: Proof
    """Empty if the challenge did not require a secret."""


class Grant(msgspec.Struct, tag="grant", tag_field="type", frozen=True):
    kind: Annotated[str, msgspec.Meta(max_length=32)]
    fd_count: Annotated[int, msgspec.Meta(ge=1, le=FDS_MAX)]
    proof: Proof


class Refusal(msgspec.Struct, tag="refusal", tag_field="type", frozen=True):
    cause: Annotated[str, msgspec.Meta(max_length=32)]


_REQUESTS = msgspec.json.Decoder(Request)
_ANSWERS: msgspec.json.Decoder[Challenge | Grant | Refusal] = msgspec.json.Decoder(Challenge | Grant | Refusal)


def decode_request(data: bytes) -> Request:
    """Decode a consumer's message. Anything else raises ValueError."""
    return _REQUESTS.decode(_bounded(data))


def decode_answer(data: bytes) -> Challenge | Grant | Refusal:
    """Decode a producer's message. Anything else raises ValueError."""
    return _ANSWERS.decode(_bounded(data))


def _bounded(data: bytes) -> bytes:
    if len(data) > HANDSHAKE_SIZE_MAX:
        raise ValueError(f"more than {HANDSHAKE_SIZE_MAX} bytes")
    return data


def check_name(name: str) -> None:
    if not 1 <= len(name) <= NAME_SIZE_MAX or not name.isprintable():
        raise LocalProtocolError(
            f"{name!r} is not a valid segment name", hint=f"use 1 to {NAME_SIZE_MAX} printable characters"
        )


def answer_challenge(challenge: Challenge, name: str, secret: Secret | None, nonce: bytes) -> Request:
    """Return the consumer's request."""
    if challenge.version != HANDSHAKE_VERSION:
        raise HandoverError(f"the producer has version {challenge.version}, expected {HANDSHAKE_VERSION}")
    if challenge.needs_secret != (secret is not None):
        expected = "a secret" if challenge.needs_secret else "no secret"
        raise HandoverError(f"the producer expects {expected}", hint="both sides need the same configuration")
    return Request(name, nonce, _proof(secret, b"consumer", challenge.nonce, nonce, name))


def check_grant(grant: Grant, request: Request, challenge: Challenge, secret: Secret | None) -> None:
    """Refuse a producer that does not know the secret."""
    expected = _proof(secret, b"producer", challenge.nonce, request.nonce, request.name)
    if not hmac.compare_digest(grant.proof, expected):
        raise HandoverError("the producer does not know the secret")


class Gate:
    """The producer's checks of one consumer at a time."""

    def __init__(self, uids: frozenset[int], secret: Secret | None) -> None:
        self._uids = uids
        self._secret = secret

    def challenge(self, uid: int, nonce: bytes) -> Challenge | Refusal:
        """The producer's first message to a consumer."""
        if uid not in self._uids:
            return Refusal(Cause.FOREIGN_USER)
        return Challenge(HANDSHAKE_VERSION, nonce, self._secret is not None)

    def admit(self, data: bytes, nonce: bytes) -> Request | Refusal:
        """Check the request of a consumer that got this nonce, with its proof."""
        try:
            request = decode_request(data)
        except (ValueError, RecursionError):
            return Refusal(Cause.HANDSHAKE)
        expected = _proof(self._secret, b"consumer", nonce, request.nonce, request.name)
        if not hmac.compare_digest(request.proof, expected):
            return Refusal(Cause.AUTHENTICATION)
        return request

    def grant(self, request: Request, nonce: bytes, kind: str, fd_count: int) -> Grant:
        return Grant(kind, fd_count, _proof(self._secret, b"producer", nonce, request.nonce, request.name))


def _proof(secret: Secret | None, role: bytes, producer_nonce: bytes, consumer_nonce: bytes, name: str) -> bytes:
    if secret is None:
        return b""
    text = (
        b"penstock handover 1 " + role + b"\0" + producer_nonce + consumer_nonce + name.encode("utf-8", "surrogatepass")
    )
    return secret.prove(text)
