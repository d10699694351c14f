"""Damaged packets at the client's pipeline: the same result as message by message, without an error."""

import random

import pytest

from fuzz.test_fuzz_packet import mutate
from penstock.wire import restamp
from pipeline_kit import by_pipeline, one_by_one, traffic


@pytest.mark.parametrize("seed", range(6))
def test_damaged_packets(seed: int, soak: bool) -> None:
    chance = random.Random(seed)
    for _ in range(400 if soak else 10):
        cuts = [[damaged(chance, each) for each in cut] for cut in traffic(chance, 60)]
        fast, slow = by_pipeline(cuts), one_by_one(cuts)
        assert fast.found == slow.found
        assert fast.figures() == slow.figures()


def damaged(chance: random.Random, packet: bytes) -> bytes:
    """The packet, in most cases unchanged; otherwise with any bytes changed, or valid with another gap."""
    kind = chance.random()
    if kind < 0.8:
        return packet
    return mutate(chance, packet) if kind < 0.9 else restamp(packet, gap=chance.choice([1, 2, 5]))
