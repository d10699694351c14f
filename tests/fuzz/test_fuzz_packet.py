"""Damaged packets by the thousand: both decoders accept the same packets, read the same values, and never fail
otherwise."""

import random
import struct

import pytest

from interop import packet_decoder
from interop.test_golden_packets import PACKETS
from penstock.base.errors import PacketError
from penstock.wire import Packet, decode

EDGES = [0, 1, 2, 7, 8, 9, 15, 16, 47, 48, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31, 2**32 - 1]


def mutate(chance: random.Random, data: bytes) -> bytes:
    """One to four changes of the kinds that break decoders; often with size and checksum corrected afterwards."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed) + 1)
        choice = chance.randrange(6)
        if choice == 0 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif choice == 1 and at < len(changed):
            changed[at] = chance.randrange(256)
        elif choice == 2:
            size = chance.choice([1, 2, 4])
            changed[at : at + size] = struct.pack("<Q", chance.choice(EDGES))[:size]
        elif choice == 3:
            del changed[at : at + chance.choice([1, 8, 16, 48])]
        elif choice == 4:
            changed[at:at] = chance.randbytes(chance.choice([1, 8, 16]))
        else:
            start = chance.randrange(len(changed) + 1)
            changed[at:at] = changed[start : start + chance.choice([8, 16, 24])]
    return repair(chance, bytes(changed))


def repair(chance: random.Random, data: bytes) -> bytes:
    """Correct the size and the checksum, so that the checks of the contents are reached; occasionally leave them
    wrong."""
    if len(data) < 48 or chance.random() < 0.1:
        return data
    if chance.random() < 0.9:
        data = b"PS\1" + data[3:8] + struct.pack("<I", len(data)) + data[12:]
    return packet_decoder.with_checksum(data)


def verdict_of_product(data: bytes) -> packet_decoder.Packet | str:
    try:
        packet: Packet = decode(data)
    except PacketError as error:
        return str(error.cause)
    messages = [
        packet_decoder.Message(m.topic, bytes(m.payload), m.flags, m.model_id, m.model_version, m.extensions)
        for m in packet
    ]
    return packet_decoder.Packet(
        packet.kind,
        packet.flags,
        packet.publisher_id,
        packet.group,
        packet.epoch,
        packet.sequence,
        packet.gap,
        packet.extensions,
        messages,
        packet.ranges,
    )


@pytest.mark.spec("FILT-14")
@pytest.mark.parametrize("name", PACKETS)
def test_damaged_packets(name: str, soak: bool) -> None:
    chance = random.Random(name)
    verdicts = set()
    for data in PACKETS[name]():
        for _ in range(100_000 if soak else 1_000):
            damaged = mutate(chance, data)
            verdict = verdict_of_product(damaged)
            assert verdict == packet_decoder.verdict(damaged), damaged.hex()
            verdicts.add(verdict if isinstance(verdict, str) else "good")
    assert {"good", "length"} <= verdicts  # otherwise the mutations are too strong or too weak for a test


@pytest.mark.spec("FILT-14")
def test_random_bytes(soak: bool) -> None:
    chance = random.Random(1)
    for _ in range(200_000 if soak else 2_000):
        data = repair(chance, b"PS\1\1" + chance.randbytes(chance.randrange(300)))
        assert verdict_of_product(data) == packet_decoder.verdict(data), data.hex()
