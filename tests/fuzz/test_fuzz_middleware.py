"""Hostile datagrams at hostile times for the middleware's cores: counted, dropped, bounded; never an error, never a
wrong result."""

import random

import pytest

from fuzz.test_fuzz_packet import mutate
from penstock.base.core import Tick
from penstock.middleware import DatagramReceived, Deliver, LossReceipt, Receiver, StreamEnded, StreamStarted
from penstock.wire import encode_gone, encode_nack, restamp
from unit.middleware_kit import GROUP, PUBLISHER_ID, SOURCE, packets, publish, publisher, receiver

MALICE = 10**9


def datagrams(chance: random.Random) -> list[bytes]:
    """Valid packets of a few streams, requests and answers about them, and damaged copies of all of these."""
    good = [
        *packets(40, epoch=1),
        *packets(40, epoch=2),
        *packets(5, first=2**64 - 6),
        *packets(10, publisher_id=1),
        *(bytes(packet.data) for packet in publish(publisher(), b"a", bytes(9_000), b"b")),
        encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 2**64 - 1)]),
        encode_gone(PUBLISHER_ID, GROUP, 1, [(3, 5), (2**63, 2**64 - 1)]),
        encode_gone(PUBLISHER_ID, GROUP, 2, [(1, 3)]),
    ]
    good += [restamp(packet, gap=chance.choice([1, 2, 5, 100])) for packet in chance.sample(good, 40)]
    return good + [mutate(chance, chance.choice(good)) for _ in range(200)]


def check_story(core: Receiver, answers: list, told: dict) -> None:
    for answer in answers:
        match answer:
            case StreamStarted():
                told[answer.stream] = answer.first
            case Deliver():
                assert told[answer.stream] == answer.first <= answer.sequence
                told[answer.stream] = answer.sequence + 1
            case LossReceipt() if not answer.topic:
                assert told[answer.stream] == answer.first <= answer.last
                told[answer.stream] = answer.last + 1
            case StreamEnded():
                assert told.pop(answer.stream) == answer.next_sequence
    for stream in core.streams():
        assert stream.window_packets <= 16
        assert stream.window_bytes <= 4_096


@pytest.mark.parametrize("seed", range(6))
def test_a_hostile_network(seed: int, soak: bool) -> None:
    chance = random.Random(seed)
    core = receiver(window_packets_max=16, window_bytes_max=4_096, message_size_max=5_000, streams_max=4)
    told: dict = {}
    now_ns = 0
    for _ in range(200 if soak else 4):
        for data in chance.choices(datagrams(chance), k=1_000):
            now_ns += chance.choice([0, 0, 1_000, 10**6, 10**8, MALICE if chance.random() < 0.02 else 0])
            source = SOURCE if chance.random() < 0.9 else ("10.9.9.9", 1)
            event = Tick() if chance.random() < 0.2 else DatagramReceived(data, source)
            check_story(core, core.handle(event, now_ns), told)
    assert len(core.counters.by_cause("packets_dropped")) > 5


@pytest.mark.parametrize("seed", range(3))
def test_a_publisher_among_hostile_receivers(seed: int, soak: bool) -> None:
    chance = random.Random(seed)
    core = publisher(retransmission_packets_max=16, repair_packets_max=8, repair="multicast")
    for n in range(100):
        publish(core, b"content", now_ns=n)
    now_ns = 100
    for data in chance.choices(datagrams(chance), k=100_000 if soak else 3_000):
        now_ns += chance.choice([0, 1_000, 10**7])
        answers = core.handle(DatagramReceived(data, SOURCE), now_ns)
        assert len(answers) <= 8 + 1
        if chance.random() < 0.1:
            core.handle(Tick(), now_ns)
    kept = core.kept(GROUP)
    assert kept is not None
    assert len(kept) <= 16
