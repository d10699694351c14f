"""Ed25519 keys: a private key in a PEM file that only its owner can access, a public key as a short text.

key = PrivateKey(random_bytes(32))
key.write(Path("alice.pem"))             # mode 600
key.public.text                          # "ed25519:" and 43 characters, for the policy document
"""

import base64
import binascii
import hashlib
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from penstock.base.errors import ConfigurationError
from penstock.net.secret import read_private, write_private

KEY_SIZE = 32
SIGNATURE_SIZE = 64
PEM_SIZE_MAX = 4_096
PREFIX = "ed25519:"


class PublicKey:
    """Verifies signatures; `id` identifies the key in tokens, `text` in documents."""

    def __init__(self, data: bytes) -> None:
        if len(data) != KEY_SIZE:
            raise ConfigurationError(f"a public key has {KEY_SIZE} bytes, not {len(data)}")
        self.data = data
        self._key = Ed25519PublicKey.from_public_bytes(data)

    @staticmethod
    def parse(text: str) -> "PublicKey":
        if not text.startswith(PREFIX):
            raise ConfigurationError("is not a public key", hint=f"it begins with {PREFIX!r}")
        return PublicKey(decode_text(text.removeprefix(PREFIX)))

    @property
    def text(self) -> str:
        return PREFIX + encode_text(self.data)

    @cached_property
    def id(self) -> str:
        """The first eight hexadecimal digits of the key's SHA-256."""
        return hashlib.sha256(self.data).hexdigest()[:8]

    def is_signature(self, signature: bytes, statement: bytes) -> bool:
        try:
            self._key.verify(signature, statement)
        except InvalidSignature:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and other.data == self.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"PublicKey.parse({self.text!r})"


class PrivateKey:
    """Signs; made from 32 random bytes or read from a file, never printed."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != KEY_SIZE:
            raise ConfigurationError(f"a private key is made from {KEY_SIZE} bytes, not {len(seed)}")
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = PublicKey(self._key.public_key().public_bytes_raw())

    @staticmethod
    def read(path: Path) -> "PrivateKey":
        """Read a key from a PEM file (PKCS 8, without a password) that only its owner can access."""
        try:
            key = serialization.load_pem_private_key(read_private(path, PEM_SIZE_MAX), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise ConfigurationError(
                "is not a private key in PEM format without a password",
                where=str(path),
                hint="penstock admin client key",
            ) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigurationError(
                "is not an Ed25519 key", where=str(path), hint="create one with `penstock admin client key`"
            )
        return PrivateKey(key.private_bytes_raw())

    def write(self, path: Path) -> None:
        """Write the key to a new file of mode 600."""
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        write_private(path, self._key.private_bytes(encoding, form, serialization.NoEncryption()))

    def sign(self, statement: bytes) -> bytes:
        return self._key.sign(statement)

    def __repr__(self) -> str:
        return f"PrivateKey(hidden, public {self.public.id})"

    def __reduce__(self) -> str:
        raise TypeError("a private key cannot be pickled")


def encode_text(data: bytes) -> str:
    """Base64 for addresses and documents, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_text(text: str) -> bytes:
    """Decode the output of encode_text(). Any other text is refused, so that each value has exactly one encoding."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ConfigurationError("is not base64url text") from None
    if encode_text(data) != text:
        raise ConfigurationError("is not canonical base64url text")
    return data
