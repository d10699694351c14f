"""The authentication trailer's bytes do not change, and independent code reads them."""

import hashlib
import hmac
import struct
from pathlib import Path

import pytest

from interop.siphash_reference import packet_tag
from penstock.security.core.authentication import tag_key
from penstock.security.core.sealing import StreamKey
from penstock.wire import AuthenticationScope, Authenticator, VouchedPublisher

GOLDEN = Path(__file__).parent / "golden"
ISSUED = StreamKey("itch", 5, bytes(range(32)))
PACKETS = ["single_message", "fragments", "nack"]  # fragments: long enough for four lanes
PUBLISHER_ID, EPOCH = 0x0123456789ABCDEF, 7


def golden(name: str) -> bytes:
    """The first packet of a golden file, or its trailer."""
    lines = (GOLDEN / f"{name}.hex").read_text().split("\n\n")[0].splitlines()
    return bytes.fromhex(" ".join(line for line in lines if not line.startswith("#")))


def derived(key: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) without a salt, 16 bytes."""
    extracted = hmac.digest(bytes(32), key, hashlib.sha256)
    return hmac.digest(extracted, b"penstock tag 1\x01", hashlib.sha256)[:16]


def authenticator() -> Authenticator:
    publisher = VouchedPublisher(PUBLISHER_ID, EPOCH, EPOCH)
    return Authenticator([AuthenticationScope("itch", (tag_key(ISSUED),), 5, (publisher,))])


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("packet", PACKETS)
def test_the_golden_trailers_are_written_and_accepted(packet: str) -> None:
    data, trailer = golden(packet), golden(f"trailers/{packet}")
    assert authenticator().trailer(data) == trailer
    checked = authenticator().check(data + trailer, ("10.0.0.1", 1))
    assert checked == data


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("packet", PACKETS)
def test_an_independent_implementation_writes_the_same_trailers(packet: str) -> None:
    data, trailer = golden(packet), golden(f"trailers/{packet}")
    head = struct.pack("<2sBBI", b"AT", 1, 0, 5)
    assert trailer == head + packet_tag(data + head, derived(ISSUED.key))
    assert derived(ISSUED.key) == tag_key(ISSUED).key
