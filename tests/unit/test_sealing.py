"""Sealed payloads open only with the key, and only as the message they were sealed for."""

import struct

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.base.errors import LocalProtocolError, SealError, SealKeyError
from penstock.security import Opener, Sealer, StreamKey, StreamKeyRing
from penstock.security.core.sealing import KEYS_MAX
from penstock.wire import Origin, Seal

KEY = StreamKey("itch", 7, bytes(range(32)))
ORIGIN = Origin(1, 0x0102, 3, 1, 100, 200)
PLACE = {"publisher_id": 42, "epoch": 5}
MESSAGE = {"topic": b"md.us.eq.AAPL.quote", "model_id": 1, "model_version": 2, "origin": ORIGIN}


@pytest.mark.spec("ADM-7")
def test_a_sealed_payload_opens() -> None:
    sealer, opener = Sealer(KEY, 42, 5), Opener(StreamKeyRing([KEY]))
    for payload in (b"", b"x", bytes(1_000)):
        sealed = sealer.seal(payload, **MESSAGE)  # type: ignore[arg-type]
        assert len(sealed.payload) == len(payload) + 16
        assert opener.open(sealed.payload, sealed.seal, **PLACE, **MESSAGE) == payload  # type: ignore[arg-type]
    bare = sealer.seal(b"abc", topic=b"t")
    assert opener.open(bare.payload, bare.seal, topic=b"t", **PLACE) == b"abc"


@pytest.mark.spec("ADM-7")
@pytest.mark.parametrize(
    "change",
    [
        {"publisher_id": 43}, {"epoch": 6}, {"topic": b"md.us.eq.IBM.quote"}, {"model_id": 2}, {"model_version": 1},
        {"origin": None}, {"origin": ORIGIN._replace(message_sequence=201)}, {"origin": ORIGIN._replace(term=1)},
        {"origin": ORIGIN._replace(source_sequence=1)}, {"origin": ORIGIN._replace(stream_id=2)},
        {"origin": ORIGIN._replace(message_index=0)},
    ],
)  # fmt: skip
def test_a_sealed_message_cannot_pass_for_another(change: dict[str, object]) -> None:
    sealed = Sealer(KEY, 42, 5).seal(b"payload", **MESSAGE)  # type: ignore[arg-type]
    with pytest.raises(SealError):
        Opener(StreamKeyRing([KEY])).open(sealed.payload, sealed.seal, **{**PLACE, **MESSAGE, **change})  # type: ignore[arg-type]


@pytest.mark.spec("ADM-7")
def test_every_changed_byte_is_detected_and_origin_flags_are_not_covered() -> None:
    opener = Opener(StreamKeyRing([KEY]))
    sealed = Sealer(KEY, 42, 5).seal(b"payload", **MESSAGE)  # type: ignore[arg-type]
    for position in range(len(sealed.payload)):
        changed = bytearray(sealed.payload)
        changed[position] ^= 1
        with pytest.raises(SealError):
            opener.open(bytes(changed), sealed.seal, **PLACE, **MESSAGE)  # type: ignore[arg-type]
    for end in range(len(sealed.payload)):
        with pytest.raises(SealError):
            opener.open(sealed.payload[:end], sealed.seal, **PLACE, **MESSAGE)  # type: ignore[arg-type]
    with pytest.raises(SealError):
        opener.open(sealed.payload, Seal(7, b"\1" * 12), **PLACE, **MESSAGE)  # type: ignore[arg-type]
    stamped = {**MESSAGE, "origin": ORIGIN._replace(flags=0)}
    assert opener.open(sealed.payload, sealed.seal, **PLACE, **stamped) == b"payload"  # type: ignore[arg-type]


@pytest.mark.spec("ADM-7")
def test_without_the_key_nothing_opens_and_the_error_names_the_key() -> None:
    sealed = Sealer(KEY, 42, 5).seal(b"payload", topic=b"t")
    with pytest.raises(SealKeyError) as caught:
        Opener(StreamKeyRing()).open(sealed.payload, sealed.seal, topic=b"t", **PLACE)
    assert caught.value.key_id == 7
    other = StreamKeyRing([StreamKey("itch", 7, bytes(32))])
    with pytest.raises(SealError):
        Opener(other).open(sealed.payload, sealed.seal, topic=b"t", **PLACE)


def test_nonces_never_repeat_and_subkeys_differ() -> None:
    sealer = Sealer(KEY, 42, 5)
    assert len({sealer.seal(b"", topic=b"t").seal.nonce for _ in range(100)}) == 100
    salt = bytes(6)
    first = {
        Sealer(KEY, publisher, epoch, salt=salt).seal(b"x", topic=b"t").payload
        for publisher in (1, 2)
        for epoch in (1, 2)
    }
    assert len(first) == 4
    twins = {Sealer(KEY, 1, 1).seal(b"", topic=b"t").seal.nonce for _ in range(10)}
    assert len(twins) == 10  # even when the sealer of one stream is created twice
    with pytest.raises(LocalProtocolError, match="6 bytes"):
        Sealer(KEY, 1, 1, salt=b"")
    with pytest.raises(LocalProtocolError):
        Sealer(KEY, -1, 0)


def test_a_key_ring_is_bounded_and_holds_one_key_per_id() -> None:
    ring = StreamKeyRing(StreamKey("itch", number, bytes(32)) for number in range(KEYS_MAX + 2))
    assert len(ring) == KEYS_MAX
    assert 0 not in ring
    ring.add(StreamKey("itch", 5, bytes(32)))
    with pytest.raises(SealError, match="same id"):
        ring.add(StreamKey("itch", 5, bytes(31) + b"\1"))
    with pytest.raises(SealError, match="32 bytes"):
        ring.add(StreamKey("itch", 99, b"short"))
    assert "hidden" in repr(KEY)
    ring.remove(5)
    assert ring.get(5) is None


def test_the_bytes_are_as_documented() -> None:
    """Opened by hand from docs/reference/protocol/administration.md."""
    sealed = Sealer(KEY, 42, 5, salt=bytes(6)).seal(b"payload", **MESSAGE)  # type: ignore[arg-type]
    subkey = HKDF(SHA256(), 32, salt=None, info=b"penstock seal 1" + struct.pack("<QI", 42, 5)).derive(KEY.key)
    topic = b"md.us.eq.AAPL.quote"
    bound = struct.pack("<H", len(topic)) + topic + struct.pack("<HHBIIHQQ", 1, 2, 1, 1, 0x0102, 3, 100, 200)
    assert sealed.seal == Seal(7, bytes(12))
    assert AESGCM(subkey).decrypt(bytes(12), sealed.payload, bound) == b"payload"
