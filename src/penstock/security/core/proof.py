"""Mutual authentication of a client and the administration server without sending a secret.

The server sends a challenge: 32 random bytes, valid once and for a short time. The client answers with a nonce of 32
random bytes and a proof over the statement that names the client, challenge and nonce, and the TLS certificate it saw:

    public key      an Ed25519 signature of the statement by the client's key; the server holds the public key
    shared secret   salted = scrypt(secret, salt)
                    key    = Ed25519 key with the seed HMAC(salted, "penstock client key 2"); the proof is its signature
                    server = HMAC(salted, "penstock server key 2")

For a shared secret, the server holds the salt, the public half of `key`, and `server`. The exchange has the parts of
SCRAM (RFC 5802): nonces of both sides, a salted and slow hash, a signature of the server, binding to the TLS channel.
The proof is a signature, because with SCRAM's own proof an attacker who knows the server's data and has recorded one
login has the client's key. With a signature, this attacker can only guess the secret, and each guess is as slow as
scrypt.

The server answers with its own proof: HMAC(server, statement), or for a client with a key pair its Ed25519 signature by
the key that also signs tokens. A client with a secret, and a client that knows the server's key, accepts no session
without this proof.
"""

import hashlib
import hmac
from functools import cached_property
from typing import Annotated

import msgspec

from penstock.base.errors import ConfigurationError
from penstock.security.core.keys import PrivateKey, PublicKey, decode_text, encode_text

CHALLENGE_SIZE = 32
NONCE_SIZE = 32
BINDING_SIZE = 32
PROOF_SIZE_MAX = 64
SALT_SIZE = 16
DIGEST_SIZE = 32
SECRET_SIZE_MIN = 16
SECRET_SIZE_MAX = 4_096
UNBOUND = bytes(BINDING_SIZE)
"""Takes the place of the certificate's hash on connections without TLS."""

_PREFIX = "scrypt-ed25519"
_OLD_PREFIX = "scrypt"
COST_MIN = 16_384 * 8
"""The minimum of n * r, with which scrypt needs 16 MiB of memory per guess."""

_N_MAX, _R_MAX, _P_MAX = 131_072, 8, 4
_SCRYPT_MEMORY_MAX = 160 * 1024 * 1024


class ScryptCost(msgspec.Struct, frozen=True):
    """The cost of one guess of a secret. The server names the cost in its challenge, so a client checks both bounds: a
    low cost makes the client's proof easy to attack offline, a high cost exhausts memory (at most 128 MiB are used)."""

    n: Annotated[int, msgspec.Meta(ge=2, le=_N_MAX)] = 16_384
    r: Annotated[int, msgspec.Meta(ge=1, le=_R_MAX)] = 8
    p: Annotated[int, msgspec.Meta(ge=1, le=_P_MAX)] = 1

    @property
    def fault(self) -> str:
        """The reason why this cost is refused; empty if it is accepted."""
        cost = f"scrypt cost n={self.n}, r={self.r}, p={self.p}"
        if self.n < 2 or self.n & (self.n - 1):
            return f"{cost}: n is not a power of two"
        if not (self.n <= _N_MAX and 1 <= self.r <= _R_MAX and 1 <= self.p <= _P_MAX):
            return f"{cost}: the maximum is n={_N_MAX}, r={_R_MAX}, p={_P_MAX}"
        if self.n >= 1 << 16 * self.r:
            return f"{cost}: n must be less than {1 << 16 * self.r} with this r"
        if self.n * self.r < COST_MIN:
            return f"{cost}: n * r is {self.n * self.r}, the minimum is {COST_MIN}"
        return ""

    def check(self) -> None:
        if fault := self.fault:
            raise ConfigurationError(fault, hint="`penstock admin client secret` makes a new secret")


class SecretVerifier(msgspec.Struct, frozen=True, dict=True):
    """A server's verifier for a shared secret. It does not allow a login, even together with recorded logins."""

    cost: ScryptCost
    salt: bytes
    public: bytes
    """The public half of the client's key."""
    server: bytes
    """The key of the server's proof; an attacker who has it can impersonate the server on connections without TLS."""

    @staticmethod
    def make(secret: bytes, salt: bytes, cost: ScryptCost | None = None) -> "SecretVerifier":
        if not SECRET_SIZE_MIN <= len(secret) <= SECRET_SIZE_MAX:
            raise ConfigurationError(
                f"the secret has {len(secret)} bytes", hint=f"the limits are {SECRET_SIZE_MIN} and {SECRET_SIZE_MAX}"
            )
        cost = cost or ScryptCost()
        keys = SecretKeys.derive(secret, salt, cost)
        return SecretVerifier(cost, salt, keys.client.public.data, keys.server)

    @staticmethod
    def parse(text: str) -> "SecretVerifier":
        words = text.split(":")
        if words[0] == _OLD_PREFIX:
            raise ConfigurationError(
                f"has the format '{_OLD_PREFIX}:' of an older version",
                hint="`penstock admin client secret` makes new credentials",
            )
        numbers = [int(word) for word in words[1:4] if word.isascii() and word.isdigit() and len(word) < 8]
        if len(words) != 7 or words[0] != _PREFIX or len(numbers) != 3:
            raise ConfigurationError(
                "is not a verifier of a secret",
                hint=f"a verifier begins with '{_PREFIX}:'; `penstock admin client secret` makes it",
            )
        try:
            cost = msgspec.convert(dict(zip("nrp", numbers, strict=True)), ScryptCost)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"has an invalid cost: {error}") from None
        cost.check()
        salt, public, server = (decode_text(word) for word in words[4:])
        if len(salt) != SALT_SIZE or len(public) != DIGEST_SIZE or len(server) != DIGEST_SIZE:
            raise ConfigurationError(f"needs a salt of {SALT_SIZE} bytes and keys of {DIGEST_SIZE} bytes")
        return SecretVerifier(cost, salt, public, server)

    @property
    def text(self) -> str:
        cost = self.cost
        parts = ":".join(encode_text(each) for each in (self.salt, self.public, self.server))
        return f"{_PREFIX}:{cost.n}:{cost.r}:{cost.p}:{parts}"

    def is_proof(self, proof: bytes, statement: bytes) -> bool:
        return self._client_key.is_signature(proof, statement)

    def server_proof(self, statement: bytes) -> bytes:
        return _server_proof(self.server, statement)

    @cached_property
    def _client_key(self) -> PublicKey:
        return PublicKey(self.public)


class SecretKeys(msgspec.Struct, frozen=True):
    """The keys that a client derives from its secret."""

    client: PrivateKey
    server: bytes

    @staticmethod
    def derive(secret: bytes, salt: bytes, cost: ScryptCost) -> "SecretKeys":
        cost.check()
        salted = hashlib.scrypt(
            secret, salt=salt, n=cost.n, r=cost.r, p=cost.p, maxmem=_SCRYPT_MEMORY_MAX, dklen=DIGEST_SIZE
        )
        seed = hmac.digest(salted, b"penstock client key 2", hashlib.sha256)
        return SecretKeys(PrivateKey(seed), hmac.digest(salted, b"penstock server key 2", hashlib.sha256))

    def prove(self, statement: bytes) -> bytes:
        return self.client.sign(statement)

    def is_server_proof(self, proof: bytes, statement: bytes) -> bool:
        return hmac.compare_digest(proof, _server_proof(self.server, statement))

    def __repr__(self) -> str:
        return "SecretKeys(hidden)"


def login_statement(client: str, challenge: bytes, nonce: bytes, binding: bytes = UNBOUND) -> bytes:
    """The statement that the client's proof signs. `binding` is the SHA-256 of the server's certificate."""
    return b"penstock login 2\0" + client.encode() + b"\0" + challenge + nonce + binding


def server_statement(statement: bytes) -> bytes:
    """The statement that the server signs for a client with a key pair. Clients never sign a statement with this
    prefix."""
    return b"penstock server 2\0" + statement


def _server_proof(key: bytes, statement: bytes) -> bytes:
    return hmac.digest(key, server_statement(statement), hashlib.sha256)
