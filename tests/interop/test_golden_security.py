"""Tokens, proofs and sealed payloads as they were published, read by code that shares nothing with the product."""

import base64
import hashlib
import hmac
import struct
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.security import Credentials, Grant, PrivateKey, Sealer, StreamKey, Token, TokenSigner
from penstock.security.brokering import Challenge
from penstock.security.proof import ScryptCost, SecretVerifier
from penstock.wire import Origin

TOKEN = (
    "ps1.56475aa7.l6ZzdHJlYW2lYWxpY2WkNWYxY5OTqm1kLnVzLmVxLj6ncmVjZWl2Zc0DhJOvIW1kLnVzLmVxLlpaKi4-p3JlY2VpdmUAk6lkZXJpdm"
    "VkLj6kc2VuZADPF5ec_jYqAADPF5ediejzcAAC.TFz_Tq32P3kDUEDZfkwIn3Hl0YWgWMUUkMEpYvPlyBhvH5DQuMqHfVDT_7JDKGh7d-QLpaJqmo"
    "CDn0L8dNcPCQ"
)
PUBLIC_KEY = "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg"
SEALED = "3038817821b777551b0ae4b45a3d4e07215c5cdf48fcfb"
SECRET = b"an example, never to be used"
VERIFIER = "scrypt:16384:8:1:AAECAwQFBgcICQoLDA0ODw:dtQED5P5ZWJ_JgfnwqLMix37wXbcOXSKtVmAh9MwP_o"
PROOF = "2c5113f4cd95c76beb2605b2b99fcd8de8a1a55764477d1aaee10fa170031854"
SIGNED = (
    "dcd55e2a649952776c207612aff0f44e09582e7e40d91f6f7d0302982638ba0670224658a1439223b07136fe10b60079ea426017faf3a4812e03"
    "6abe4027e906"
)
KEY = PrivateKey(bytes(range(32)))


def unbase64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def unpack(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The part of MessagePack that tokens use."""
    head = data[at]
    if head < 0x80:
        return head, at + 1
    if head & 0xF0 == 0x90:
        values, at = [], at + 1
        for _ in range(head & 0x0F):
            value, at = unpack(data, at)
            values.append(value)
        return values, at
    if head & 0xE0 == 0xA0:
        end = at + 1 + (head & 0x1F)
        return data[at + 1 : end].decode(), end
    size = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}[head]
    return int.from_bytes(data[at + 1 : at + 1 + size], "big"), at + 1 + size


@pytest.mark.spec("ADM-3")
def test_the_token() -> None:
    head, _, signature = TOKEN.rpartition(".")
    key = Ed25519PublicKey.from_public_bytes(unbase64(PUBLIC_KEY))
    key.verify(unbase64(signature), b"penstock token 1\0" + head.encode())
    version, key_id, payload = head.split(".")
    assert (version, key_id) == ("ps1", hashlib.sha256(unbase64(PUBLIC_KEY)).hexdigest()[:8])
    grants = [["md.us.eq.>", "receive", 900], ["!md.us.eq.ZZ*.>", "receive", 0], ["derived.>", "send", 0]]
    expected = ["stream", "alice", "5f1c", grants, 1_700_000_000_000_000_000, 1_700_000_600_000_000_000, 2]
    assert unpack(unbase64(payload)) == (expected, len(unbase64(payload)))
    made = Token(
        "stream",
        "alice",
        "5f1c",
        tuple(Grant(*each) for each in grants),
        expected[4],
        expected[5],
        2,  # type: ignore[arg-type]
    )
    assert TokenSigner(KEY).sign(made) == TOKEN


@pytest.mark.spec("ADM-7")
def test_the_sealed_payload() -> None:
    stream_key = bytes(range(32, 64))
    info = b"penstock seal 1" + struct.pack("<QI", 0x1122334455667788, 5)
    extracted = hmac.digest(bytes(32), stream_key, "sha256")  # HKDF by hand (RFC 5869), one block
    subkey = hmac.digest(extracted, info + b"\1", "sha256")
    topic = b"md.us.eq.AAPL.quote"
    bound = struct.pack("<H", len(topic)) + topic + struct.pack("<HHBIIHQQ", 1, 2, 1, 9, 0x0102, 3, 100, 200)
    nonce = bytes.fromhex("a1a2a3a4a5a6 010000000000")
    assert AESGCM(subkey).decrypt(nonce, bytes.fromhex(SEALED), bound) == b"payload"
    sealer = Sealer(StreamKey("itch", 7, stream_key), 0x1122334455667788, 5, salt=nonce[:6])
    sealer.seal(b"first", topic=b"x")
    origin = Origin(9, 0x0102, 3, 1, 100, 200)
    sealed = sealer.seal(b"payload", topic=topic, model_id=1, model_version=2, origin=origin)
    assert (sealed.seal, sealed.payload.hex()) == ((7, nonce), SEALED)


@pytest.mark.spec("ADM-1")
def test_the_proofs() -> None:
    challenge = bytes(range(32))
    statement = b"penstock login 1\0alice\0" + challenge
    salted = hashlib.scrypt(SECRET, salt=bytes(range(16)), n=16_384, r=8, p=1, dklen=32)
    key = hmac.digest(salted, b"penstock client key", "sha256")
    stored = hashlib.sha256(key).digest()
    assert VERIFIER.endswith(base64.urlsafe_b64encode(stored).decode().rstrip("="))
    mask = hmac.digest(stored, statement, "sha256")
    assert bytes(left ^ right for left, right in zip(key, mask, strict=True)).hex() == PROOF
    Ed25519PublicKey.from_public_bytes(unbase64(PUBLIC_KEY)).verify(bytes.fromhex(SIGNED), statement)
    asked = Challenge(challenge=challenge, salt=bytes(range(16)), cost=ScryptCost(), expires_ns=0)
    assert Credentials("alice", secret=SECRET).prove(asked).hex() == PROOF
    assert Credentials("alice", key=KEY).prove(asked).hex() == SIGNED
    assert SecretVerifier.make(SECRET, bytes(range(16))).text == VERIFIER
