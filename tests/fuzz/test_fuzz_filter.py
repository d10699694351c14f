"""Hostile packets through the fast path and a filter's kernel: the output is well formed and accounted for."""

import random

import pytest

from fuzz.test_fuzz_packet import mutate
from penstock.base.errors import PacketError
from penstock.filter import Forwarder, Mode, StreamAccount
from penstock.middleware.core._inorder import InOrder, StreamCursor
from penstock.wire import (
    DatagramBatch,
    Extension,
    MessageFlag,
    Packer,
    decode,
    encode_destination,
    encode_extensions,
    encode_interest_mask,
    encode_nack,
    encode_tags,
    restamp,
)
from unit.filter_kit import GROUP, PUBLISHER_ID, SOURCE, application, forwarder, want

TOPICS = ["a", "a.b", "b.x.y", "é" * 20, "z" * 255]


def good_packets(chance: random.Random) -> list[bytes]:
    packer = Packer(PUBLISHER_ID, GROUP, 1, packet_size_max=800, keep_alive_packets=5)
    made = []
    for _ in range(60):
        flags, bodies = 0, {}
        if chance.random() < 0.3:
            bodies[Extension.TAGS] = encode_tags(["red", "t" * chance.randrange(1, 200)])
        if chance.random() < 0.2:
            flags |= MessageFlag.DIRECT
            bodies[Extension.DESTINATION] = encode_destination(chance.randrange(4))
        if chance.random() < 0.1:
            bodies[Extension.INTEREST_MASK] = encode_interest_mask(2**64 - 1)
        extensions = encode_extensions(bodies)
        payload = chance.randbytes(chance.choice([0, 3, 8, 40, 2_000]))
        made += packer.add(
            chance.choice(TOPICS), payload, flags=flags, extensions=extensions, model_id=chance.randrange(3)
        )
        if chance.random() < 0.5 and (packet := packer.flush()):
            made.append(packet)
    made += [restamp(packet, gap=chance.choice([1, 2, 2**32 - 1])) for packet in chance.sample(made, 10)]
    return [*made, encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 2**64 - 1)])]


def module_with_consumers() -> Forwarder:
    module = forwarder(consumers_max=6, slots_max=12)
    application(module, 0, "a", "#red")
    application(module, 1, ">", "!a", condition=b"\0")
    module.set_consumer(2, Mode.MASK)
    module.set_consumer(3, Mode.RESIDUAL)
    for slot, consumer, bit in ((4, 2, 0), (5, 2, 700), (6, 3, 0), (7, 3, 1)):
        module.set_slot(slot, consumer, bit)
        want(module, slot, "b.>", "*" if slot % 2 else "/.*z.*/")
    for number in range(3):
        module.set_application(number, number)
    return module


class Watch:
    """Checks each packet that leaves the outbox."""

    def __init__(self, module: Forwarder, account: StreamAccount) -> None:
        self.module = module
        self.told = dict.fromkeys(account.listeners(), 0)
        self.seen = 0

    def look(self) -> None:
        for consumer, data in self.module.outbox.packets():
            packet = decode(data)
            self.seen += 1
            if packet.sequence > self.told[consumer]:
                is_clamped = packet.gap == 2**32 - 1
                assert is_clamped or packet.sequence - packet.gap - 1 == self.told[consumer]
                self.told[consumer] = packet.sequence
        self.module.outbox.clear()


@pytest.mark.spec("FILT-14")
@pytest.mark.parametrize("seed", range(6))
def test_a_hostile_network(seed: int, soak: bool) -> None:
    chance = random.Random(seed)
    module = module_with_consumers()
    account = module.open(PUBLISHER_ID, GROUP, 1)
    for consumer in range(4):
        account.listen(consumer, 1)
    watch = Watch(module, account)
    in_order, datagrams = InOrder(seed, takes_fragments=True), DatagramBatch(64)
    cursor = StreamCursor()
    cursor.publisher_id, cursor.group, cursor.epoch, cursor.next_sequence = PUBLISHER_ID, GROUP, 1, 1
    in_order.add(cursor)
    refused = 0
    for _ in range(200 if soak else 10):
        packets = good_packets(chance)
        for at in range(len(packets)):
            if chance.random() < 0.5:
                packets[at] = mutate(chance, packets[at])
        for start in range(0, len(packets), 16):
            datagrams.clear()
            for packet in packets[start : start + 16]:
                datagrams.append(packet[:65_507], SOURCE)
            cursor.is_smooth, cursor.source_key = True, datagrams.source_key(0)
            index, messages = 0, in_order.begin(datagrams, 0)
            while index < len(datagrams):
                if messages is not None:
                    assert module.forward(messages) == messages.packet_count
                    index += messages.packet_count
                    watch.look()
                if index < len(datagrams):
                    refused += forward_alone(module, account, bytes(datagrams.datagram(index)), cursor, chance)
                    watch.look()
                    index += 1
                    messages = in_order.take(datagrams, index, 0)
    assert refused > 50
    assert watch.seen > 50
    assert module.messages_unwanted > 0


def forward_alone(
    module: Forwarder, account: StreamAccount, data: bytes, cursor: StreamCursor, chance: random.Random
) -> int:
    """The core's handling of a packet that is not the next one in order; returns whether it was refused."""
    try:
        packet = decode(data)
    except PacketError:
        with pytest.raises(PacketError):
            module.forward_packet(data, account)
        return 1
    is_ours = (packet.publisher_id, packet.group, packet.epoch) == (PUBLISHER_ID, GROUP, 1)
    if packet.kind != 1 or not is_ours or packet.gap >= packet.sequence or packet.sequence > 2**62:
        return 1
    if packet.sequence >= cursor.next_sequence:
        module.forward_packet(data, account)
        cursor.next_sequence = packet.sequence + 1
    else:
        module.forward_packet(data, account, gap=0, to_all=chance.random() < 0.5, only=chance.choice([None, 2]))
    return 0
