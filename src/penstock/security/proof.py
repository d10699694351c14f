"""How a client shows who it is without sending what it knows.

The server sends a challenge: 32 random bytes, good once and for a short time. The client answers with a proof over
the statement that names the challenge and itself:

    public key      an Ed25519 signature of the statement; the server holds the public key
    shared secret   salted = scrypt(secret, salt)          key = HMAC(salted, "penstock client key")
                    stored = SHA-256(key)                  proof = key XOR HMAC(stored, statement)

With the secret the server holds only `stored` and the salt (as SCRAM, RFC 5802, does): it takes `key` out of the proof
and looks whether its SHA-256 is `stored`. So neither the policy document nor a proof that somebody saw lets anybody log
in, or try guesses quicker than scrypt runs.
"""

import hashlib
import hmac
from typing import Annotated

import msgspec

from penstock.base.errors import ConfigurationError
from penstock.security.keys import decode_text, encode_text

CHALLENGE_SIZE = 32
PROOF_SIZE_MAX = 64
SALT_SIZE = 16
DIGEST_SIZE = 32
SECRET_SIZE_MIN = 16
SECRET_SIZE_MAX = 4_096

_PREFIX = "scrypt"
_SCRYPT_MEMORY_MAX = 160 * 1024 * 1024


class ScryptCost(msgspec.Struct, frozen=True):
    """What a guess costs; the bounds keep a hostile server from wearing a client out."""

    n: Annotated[int, msgspec.Meta(ge=2, le=131_072)] = 16_384
    r: Annotated[int, msgspec.Meta(ge=1, le=8)] = 8
    p: Annotated[int, msgspec.Meta(ge=1, le=4)] = 1


class SecretVerifier(msgspec.Struct, frozen=True):
    """What a server keeps of a shared secret."""

    cost: ScryptCost
    salt: bytes
    stored: bytes

    @staticmethod
    def make(secret: bytes, salt: bytes, cost: ScryptCost | None = None) -> "SecretVerifier":
        if not SECRET_SIZE_MIN <= len(secret) <= SECRET_SIZE_MAX:
            raise ConfigurationError(
                f"a secret of {len(secret)} bytes", hint=f"{SECRET_SIZE_MIN} to {SECRET_SIZE_MAX} are taken"
            )
        cost = cost or ScryptCost()
        return SecretVerifier(cost, salt, hashlib.sha256(_client_key(secret, salt, cost)).digest())

    @staticmethod
    def parse(text: str) -> "SecretVerifier":
        words = text.split(":")
        numbers = [int(word) for word in words[1:4] if word.isascii() and word.isdigit() and len(word) < 8]
        if len(words) != 6 or words[0] != _PREFIX or len(numbers) != 3:
            raise ConfigurationError(
                "is not what a server keeps of a secret",
                hint=f"it begins with '{_PREFIX}:'; `penstock admin client secret` makes it",
            )
        try:
            cost = msgspec.convert(dict(zip("nrp", numbers, strict=True)), ScryptCost)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"has an impossible cost: {error}") from None
        if cost.n & (cost.n - 1):
            raise ConfigurationError("has an impossible cost: n is no power of two")
        salt, stored = decode_text(words[4]), decode_text(words[5])
        if len(salt) != SALT_SIZE or len(stored) != DIGEST_SIZE:
            raise ConfigurationError(f"its salt has not {SALT_SIZE} bytes, or its key not {DIGEST_SIZE}")
        return SecretVerifier(cost, salt, stored)

    @property
    def text(self) -> str:
        cost = self.cost
        return f"{_PREFIX}:{cost.n}:{cost.r}:{cost.p}:{encode_text(self.salt)}:{encode_text(self.stored)}"

    def is_proof(self, proof: bytes, statement: bytes) -> bool:
        if len(proof) != DIGEST_SIZE:
            return False
        key = _exclusive_or(proof, hmac.digest(self.stored, statement, hashlib.sha256))
        return hmac.compare_digest(hashlib.sha256(key).digest(), self.stored)


def prove_secret(secret: bytes, salt: bytes, cost: ScryptCost, statement: bytes) -> bytes:
    key = _client_key(secret, salt, cost)
    stored = hashlib.sha256(key).digest()
    return _exclusive_or(key, hmac.digest(stored, statement, hashlib.sha256))


def login_statement(client: str, challenge: bytes) -> bytes:
    """What a proof is made over."""
    return b"penstock login 1\0" + client.encode() + b"\0" + challenge


def _client_key(secret: bytes, salt: bytes, cost: ScryptCost) -> bytes:
    try:
        salted = hashlib.scrypt(
            secret, salt=salt, n=cost.n, r=cost.r, p=cost.p, maxmem=_SCRYPT_MEMORY_MAX, dklen=DIGEST_SIZE
        )
    except ValueError as error:
        raise ConfigurationError(f"has an impossible cost: {error}") from None
    return hmac.digest(salted, b"penstock client key", hashlib.sha256)


def _exclusive_or(one: bytes, other: bytes) -> bytes:
    return bytes(left ^ right for left, right in zip(one, other, strict=True))
