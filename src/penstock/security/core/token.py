"""Tokens: signed by the administration server, verified offline by any holder of its public key.

    text      "ps1." key id "." base64url(payload) "." base64url(signature)
    payload   MessagePack array of the fields of Token, in their order
    signature Ed25519 over "penstock token 1\\0" and everything before the last dot

A client gets a *session* token at login and presents it to the administration server. A *stream* token has the receive
and send grants of one subscription; the client presents it to adapters. Times are nanoseconds since 1970, passed in.
"""

from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.decoding import msgpack_decoder
from penstock.base.errors import ConfigurationError, LimitError, RevokedError, TokenError, TokenExpiredError
from penstock.security.core.keys import SIGNATURE_SIZE, PrivateKey, PublicKey, decode_text, encode_text

TOKEN_SIZE_MAX = 65_536
SKEW_S = 30
"""Tolerated difference between the clocks of two hosts, unless a verifier has its own value."""

_VERSION = "ps1"
_LABEL = b"penstock token 1\0"

Action: TypeAlias = Literal["receive", "send"]
Purpose: TypeAlias = Literal["session", "stream"]
U63 = Annotated[int, msgspec.Meta(ge=0)]


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """A right on the topics of a pattern. A pattern with a leading ! denies its topics, whatever other grants allow."""

    pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]
    action: Action
    delay_s: U63 = 0
    """Minimum age of a message before it may be received."""


class Token(msgspec.Struct, frozen=True, array_like=True):
    purpose: Purpose
    subject: str
    """The client's name."""
    subscription_id: str
    """Id of the subscription of a stream token. In a session token: the id that ties the session to its credentials."""
    grants: tuple[Grant, ...]
    issued_ns: U63
    expires_ns: U63
    generation: U63
    """Number of takeovers among the administration servers. The server with the highest generation is authoritative."""


def token_needed() -> TokenError:
    """The error for a party without a token where one is required."""
    return TokenError(
        "a token of the administration server is required", hint="commands get one with --connect and --credentials"
    )


class TokenSigner:
    def __init__(self, key: PrivateKey) -> None:
        self._key = key

    @property
    def public(self) -> PublicKey:
        return self._key.public

    def sign(self, token: Token) -> str:
        """Return the token's text. Raise LimitError if it exceeds the size that verifiers accept."""
        signed = f"{_VERSION}.{self.public.id}.{encode_text(msgspec.msgpack.encode(token))}"
        text = f"{signed}.{encode_text(self._key.sign(_LABEL + signed.encode()))}"
        if len(text) > TOKEN_SIZE_MAX:
            raise LimitError(
                f"the token would have {len(text)} characters, the limit is {TOKEN_SIZE_MAX}",
                hint="ask for fewer topics, or for wider patterns",
            )
        return text


class TokenVerifier:
    """Verifies tokens of one purpose, offline: the caller passes on revocations and new generations."""

    def __init__(self, keys: Iterable[PublicKey], *, purpose: Purpose = "stream", skew_s: int = SKEW_S) -> None:
        self._keys = {key.id: key for key in keys}
        self._purpose = purpose
        self._skew_ns = skew_s * NS_PER_SECOND
        self._decoder = msgpack_decoder(Token)
        self._revoked: dict[str, tuple[str, int]] = {}
        self.generation = 0
        self._generation_since_ns = 0
        self._refused_through_ns = 0

    def verify(self, text: str, now_ns: int) -> Token:
        """Return the token, or raise an error with the reason. The error does not contain the token."""
        token = self._decode(text)
        if token.purpose != self._purpose:
            raise TokenError(f"this is a {token.purpose} token", hint=f"a {self._purpose} token is required")
        if token.issued_ns > now_ns + self._skew_ns:
            ahead_s = (token.issued_ns - now_ns) // NS_PER_SECOND
            raise TokenError(f"the token will be issued in {ahead_s} s", hint="compare the clocks of the two hosts")
        if now_ns >= token.expires_ns:
            ago_s = (now_ns - token.expires_ns) // NS_PER_SECOND
            raise TokenExpiredError(
                f"the token expired {ago_s} s ago", hint="renew the token at the administration server"
            )
        if token.generation < self.generation and token.issued_ns > self._generation_since_ns:
            raise TokenError(
                f"the token has generation {token.generation}, but the servers are at generation {self.generation}",
                hint="get a token from the administration server that took over",
            )
        if token.subscription_id in self._revoked:
            raise RevokedError(f"the subscription was revoked: {self._revoked[token.subscription_id][0]}")
        if token.expires_ns <= self._refused_through_ns:
            raise TokenError(
                "the token may have been revoked: the list of revocations exceeded its limit",
                hint="renew the token at the administration server",
            )
        return token

    def revoke(self, subscription_id: str, reason: str, until_ns: int) -> None:
        """Refuse a subscription's tokens from now on. `until_ns` is the expiry of the last one."""
        self._revoked[subscription_id] = (reason, until_ns)

    def refuse_through(self, expires_ns: int) -> None:
        """Refuse all tokens that expire by this time, because some of them were revoked and their revocations
        dropped."""
        self._refused_through_ns = expires_ns

    def note_generation(self, generation: int, since_ns: int) -> None:
        """Record that a server of this generation took over at this time. Tokens that older generations issued since
        then are invalid."""
        if generation > self.generation:
            self.generation, self._generation_since_ns = generation, since_ns

    def forget_expired(self, now_ns: int) -> None:
        """Drop revocations of tokens that have expired."""
        margin_ns = now_ns - self._skew_ns
        self._revoked = {name: each for name, each in self._revoked.items() if each[1] >= margin_ns}

    @property
    def revoked_count(self) -> int:
        return len(self._revoked)

    def _decode(self, text: str) -> Token:
        if len(text) > TOKEN_SIZE_MAX:
            raise TokenError(f"a token has at most {TOKEN_SIZE_MAX} characters")
        words = text.split(".")
        if len(words) != 4 or words[0] != _VERSION or not text.isascii():
            raise TokenError("is not a token", hint=f"a token has four parts and begins with {_VERSION!r}")
        key = self._keys.get(words[1])
        if key is None:
            raise TokenError(
                "the token was signed with an unknown key", hint="check that this is the right administration server"
            )
        try:
            payload, signature = decode_text(words[2]), decode_text(words[3])
        except ConfigurationError:
            raise TokenError("the token is damaged: it is not base64url text") from None
        signed = _LABEL + ".".join(words[:3]).encode()
        if len(signature) != SIGNATURE_SIZE or not key.is_signature(signature, signed):
            raise TokenError("the token is damaged: its signature is wrong")
        try:
            return self._decoder.decode(payload)
        except msgspec.MsgspecError:
            raise TokenError("the token has an unknown format", hint="its server may have a newer version") from None
