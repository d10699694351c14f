"""Tokens, proofs and sealed payloads in their published form, decoded without code of the product."""

import base64
import hashlib
import hmac
import struct
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.security import Credentials, Grant, PrivateKey, Sealer, StreamKey, Token, TokenSigner
from penstock.security.core.brokering import Challenge
from penstock.security.core.proof import ScryptCost, SecretVerifier
from penstock.wire import Origin

TOKEN = (
    "ps1.56475aa7.l6ZzdHJlYW2lYWxpY2WkNWYxY5OTqm1kLnVzLmVxLj6ncmVjZWl2Zc0DhJOvIW1kLnVzLmVxLlpaKi4-p3JlY2VpdmUAk6lkZXJpdm"
    "VkLj6kc2VuZADPF5ec_jYqAADPF5ediejzcAAC.TFz_Tq32P3kDUEDZfkwIn3Hl0YWgWMUUkMEpYvPlyBhvH5DQuMqHfVDT_7JDKGh7d-QLpaJqmo"
    "CDn0L8dNcPCQ"
)
PUBLIC_KEY = "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg"
SEALED = "3038817821b777551b0ae4b45a3d4e07215c5cdf48fcfb"
SECRET = b"an example, never to be used"
VERIFIER = (
    "scrypt-ed25519:16384:8:1:AAECAwQFBgcICQoLDA0ODw:N8jLSXB5Qe-zm1o09wGOAv1Lb_O4duozhxgtBWj_hLg:"
    "zOd2Ud1CH3_VzXrbZd96hq5EWP-bER_Vvop68lXRdU8"
)
PROOF = (
    "4b57f3a51fa1acc71a1194d07531e55e6a20f4df779d2d2dbf6fe3744864acb96e58b1005f68b16b8947bf0550c545e3a188a7ef8f9c6ac27d68"
    "498636f30d04"
)
SERVER_PROOF = "cf723ba421bc0ff08644ebdd0aa880a00dae26bbdd7314656f719e0d0aefde59"
SIGNED = (
    "6c9ca886b78777eecbd35ccd7ebd49c3e42936b0c1d61ca97c69912647660ef8fad984ab2ec8fb78a6bedba4905379b57d04b58a6c03186c66f1"
    "c8f28433e101"
)
SERVER_SIGNED = (
    "d3e54b5b52cced96db96f2d81366d7e982ec94afb1f6ad05205d2f5c5889b5b9cd9981796b856eace007ef07fd9a503d21fed14a0012dd62f65c"
    "5eb9ceab9800"
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
    challenge, nonce, binding = bytes(range(32)), bytes(range(32, 64)), bytes(range(64, 96))
    statement = b"penstock login 2\0alice\0" + challenge + nonce + binding
    of_server = b"penstock server 2\0" + statement
    salted = hashlib.scrypt(SECRET, salt=bytes(range(16)), n=16_384, r=8, p=1, dklen=32)
    key = Ed25519PrivateKey.from_private_bytes(hmac.digest(salted, b"penstock client key 2", "sha256"))
    server = hmac.digest(salted, b"penstock server key 2", "sha256")
    public = key.public_key().public_bytes_raw()
    assert [unbase64(each) for each in VERIFIER.split(":")[4:]] == [bytes(range(16)), public, server]
    assert key.sign(statement).hex() == PROOF
    assert hmac.digest(server, of_server, "sha256").hex() == SERVER_PROOF
    Ed25519PublicKey.from_public_bytes(unbase64(PUBLIC_KEY)).verify(bytes.fromhex(SIGNED), statement)
    Ed25519PublicKey.from_public_bytes(unbase64(PUBLIC_KEY)).verify(bytes.fromhex(SERVER_SIGNED), of_server)
    asked = Challenge(challenge=challenge, salt=bytes(range(16)), cost=ScryptCost(), expires_ns=0)
    by_secret = Credentials("alice", secret=SECRET).answer(asked, nonce, binding)
    assert by_secret.proof.hex() == PROOF
    by_secret.check_server(bytes.fromhex(SERVER_PROOF))
    by_key = Credentials("alice", key=KEY, server_key=KEY.public).answer(asked, nonce, binding)
    assert by_key.proof.hex() == SIGNED
    by_key.check_server(bytes.fromhex(SERVER_SIGNED))
    verifier = SecretVerifier.make(SECRET, bytes(range(16)))
    assert (verifier.text, verifier.server_proof(statement).hex()) == (VERIFIER, SERVER_PROOF)
