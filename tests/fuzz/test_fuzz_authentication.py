"""Changed copies of authentic datagrams: only unchanged ones are accepted, without a crash."""

import random

import pytest

from fuzz.test_fuzz_packet import mutate
from penstock.middleware import DatagramReceived, DatagramsReceived, Deliver, DeliverBatch, Receiver, ReceiverConfig
from penstock.wire import Authenticator, DatagramBatch, encode_gone, encode_nack
from unit.authentication_kit import authentic, scope
from unit.middleware_kit import GROUP, PUBLISHER_ID, SOURCE, NoRandomness, packets

ROUNDS = 300


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("seed", range(4))
def test_mutated_datagrams_change_nothing(seed: int) -> None:
    pick = random.Random(seed)
    core = Receiver(ReceiverConfig(), NoRandomness(), authenticator=Authenticator([scope()]))
    made = [authentic(each) for each in packets(ROUNDS)]
    answers = [
        authentic(encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 5)])),
        authentic(encode_gone(PUBLISHER_ID, GROUP, 1, [(1, 5)])),
    ]
    heard: list[bytes] = []
    bad = 0
    for datagram in made:
        batch = DatagramBatch(8)
        for _ in range(pick.randint(0, 6)):
            spoiled = mutate(pick, pick.choice([*made, *answers]))
            if spoiled in made or spoiled in answers:
                continue
            bad += 1
            if pick.random() < 0.5:
                batch.append(spoiled, SOURCE)
            else:
                assert core.handle(DatagramReceived(spoiled, SOURCE), 0) == []
        batch.append(datagram, SOURCE)
        for each in core.handle(DatagramsReceived(batch), 0):
            assert not isinstance(each, Deliver | DeliverBatch) or len(each.messages) == 1
            heard += [bytes(message.payload) for message in getattr(each, "messages", ())]
    assert heard == [str(number).encode() for number in range(1, ROUNDS + 1)]
    assert core.counters["packets_dropped"] == bad
    assert len(core.streams()) == 1
