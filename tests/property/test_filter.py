"""A filter's kernel against a reference filter: the same packets, interests and consumers give the same output."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.filter_oracle import FilterOracle, OracleStream, Sent
from penstock.filter import Mode
from penstock.model import MessageModel
from penstock.topics import Predicate
from penstock.wire import (
    Extension,
    MessageFlag,
    Packer,
    Packet,
    PacketFlag,
    PacketMessage,
    decode,
    decode_interest_mask,
    encode_destination,
    encode_extensions,
    encode_tags,
)
from unit.filter_kit import GROUP, PUBLISHER_ID, batch_of, forwarder

CONSUMERS = 6
SLOTS = 24
BITS = [0, 1, 63, 64, 130]
TOPICS = ["a", "b", "a.b", "a.c", "b.7", "b.12", "é.x"]
INTERESTS = [
    *TOPICS, ">", "*", "a.*", "a.>", "b.[0..9]", "é*.x", "/a.*/", "#red", "#blue", "!a.b", "!#red", "!/b.*/",
]  # fmt: skip
MODEL = MessageModel.parse('id = 3\nname = "m"\nversion = 2\nfield = [{ name = "n", type = "u8" }]')
OTHER = MessageModel.parse('id = 4\nname = "o"\nversion = 1\nfield = [{ name = "n", type = "u16" }]')
CONTENTS = [
    (
        {(3, 2): Predicate.compile("n > 100", MODEL)},
        lambda model, version, data: (model, version) == (3, 2) and data[:1] > b"d",
    ),
    (
        {(3, 2): Predicate.compile("n = 7", MODEL), (4, 1): Predicate.compile("n = 7", OTHER)},
        lambda model, version, data: (
            ((model, version) == (3, 2) and data[:1] == b"\7") or ((model, version) == (4, 1) and data[:2] == b"\7\0")
        ),
    ),
    (b"\1\2", lambda model, version, data: b"\1\2" in data),
]


class Twins:
    """The kernel and the oracle, with the same inputs."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.kernel = forwarder(CONSUMERS, SLOTS)
        self.oracle = FilterOracle()
        self.account = self.kernel.open(PUBLISHER_ID, GROUP, 1)
        self.stream = OracleStream()
        self.position = 1
        for consumer in range(CONSUMERS):
            if chance.random() < 0.8:
                self.set_consumer(consumer)
        for _ in range(chance.randint(0, 12)):
            self.change()

    def change(self) -> None:
        """Change a random interest or consumer."""
        consumers = list(self.oracle.is_masked)
        slot = self.chance.randrange(SLOTS)
        match self.chance.randrange(8):
            case 0 | 1 | 2:
                interest = self.chance.choice(INTERESTS)
                assert self.kernel.table.add(interest, slot) == self.oracle.table.add(interest, slot)
            case 3 if self.oracle.table.interests:
                interest, slot = self.chance.choice(sorted(self.oracle.table.interests))
                self.kernel.table.remove(interest, slot)
                self.oracle.table.remove(interest, slot)
            case 4 | 5 if consumers:
                consumer, bit = self.chance.choice(consumers), self.chance.choice(BITS)
                condition, content = self.chance.choice([(None, None), *CONTENTS])
                self.kernel.set_slot(slot, consumer, bit, condition)
                self.oracle.slots[slot] = consumer, bit, content
            case 6 if consumers:
                consumer, bit, number = (
                    self.chance.choice(consumers),
                    self.chance.choice(BITS),
                    self.chance.randrange(4),
                )
                self.kernel.set_application(number, consumer, bit)
                self.oracle.homes[number] = consumer, bit
            case 7:
                self.change_consumer(self.chance.randrange(CONSUMERS))

    def change_consumer(self, consumer: int) -> None:
        if consumer not in self.oracle.is_masked:
            self.set_consumer(consumer)
        elif self.chance.random() < 0.3:
            self.kernel.clear_consumer(consumer)
            self.oracle.clear_consumer(consumer)
            self.stream.leave(consumer)
        elif consumer in self.stream.expected:
            self.account.leave(consumer)
            self.stream.leave(consumer)
        else:
            self.listen(consumer, self.position)

    def set_consumer(self, consumer: int) -> None:
        mode = self.chance.choice(list(Mode))
        self.kernel.set_consumer(consumer, mode)
        self.oracle.is_masked[consumer] = mode == Mode.MASK
        if self.chance.random() < 0.8:
            self.listen(consumer, self.position)

    def listen(self, consumer: int, first: int) -> None:
        first += self.chance.choice([0, 0, 1])
        self.account.listen(consumer, first)
        self.stream.expected[consumer] = first

    def forward(self, packets: list[bytes]) -> None:
        """Forward packets in order, in one batch."""
        expected: dict[int, list[Sent]] = {}
        for data in packets:
            for consumer, sent in self.oracle.forward(decode(data), self.stream).items():
                expected.setdefault(consumer, []).append(sent)
        assert self.kernel.forward(batch_of(packets, first=self.position)) == len(packets)
        self.position += len(packets)
        self.compare(expected)

    def forward_late(self, data: bytes, **order: int | None) -> None:
        sent = self.oracle.forward(decode(data), self.stream, **order)
        assert self.kernel.forward_packet(data, self.account, **order) == len(sent)
        self.compare({consumer: [each] for consumer, each in sent.items()})

    def jump(self, packets: list[bytes]) -> None:
        """The first of the packets is lost, the second arrives, then the first may arrive late."""
        told = self.oracle.catch_up(self.stream, self.position - 1)
        assert self.kernel.catch_up(self.account, self.position - 1) == len(told)
        self.compare({consumer: [Sent(self.position - 1, gap, 0, [])] for consumer, gap in told.items()})
        self.forward_late(packets[1], gap=0, to_all=True)
        if self.chance.random() < 0.5:
            self.change()
        if self.chance.random() < 0.5:
            self.forward_late(packets[0], gap=0, to_all=True, flags=PacketFlag.REPAIR)
        self.position += 2

    def compare(self, expected: dict[int, list[Sent]]) -> None:
        found: dict[int, list[Packet]] = {}
        for consumer, data in self.kernel.outbox.packets():
            found.setdefault(consumer, []).append(decode(data))
        self.kernel.outbox.clear()
        assert found.keys() == expected.keys()
        for consumer, packets in found.items():
            assert len(packets) == len(expected[consumer])
            for packet, sent in zip(packets, expected[consumer], strict=True):
                assert (packet.sequence, packet.gap, packet.flags) == (sent.sequence, sent.gap, sent.flags)
                assert (packet.publisher_id, packet.group, packet.epoch) == (PUBLISHER_ID, GROUP, 1)
                self.compare_messages(list(packet), sent.messages, is_masked=self.oracle.is_masked[consumer])
        for consumer in range(CONSUMERS):
            assert self.account.expected_by(consumer) == self.stream.expected.get(consumer, 0)

    def compare_messages(
        self, found: list[PacketMessage], expected: list[tuple[PacketMessage, set[int]]], *, is_masked: bool
    ) -> None:
        assert len(found) == len(expected)
        for message, (original, bits) in zip(found, expected, strict=True):
            assert parts(message) == parts(original)
            extensions = message.extensions
            if is_masked:
                mask = decode_interest_mask(extensions.pop(Extension.INTEREST_MASK))
                assert {number for number in range(256) if mask >> number & 1} == bits
            assert extensions == original.extensions


def parts(message: PacketMessage) -> tuple[object, ...]:
    return message.topic, bytes(message.payload), message.flags, message.model_id, message.model_version


def random_packets(chance: random.Random, packer: Packer, cut_share: float) -> list[bytes]:
    made: list[bytes] = []
    for _ in range(chance.randint(1, 6)):
        topic, flags, extensions = chance.choice(TOPICS), 0, {}
        if chance.random() < 0.2:
            tags = chance.choice([["red"], ["blue"], ["red", "blue"], ["green"]])
            extensions[Extension.TAGS] = encode_tags(tags)
        if chance.random() < 0.15:
            flags |= MessageFlag.DIRECT
            extensions[Extension.DESTINATION] = encode_destination(chance.randrange(5))
            topic = chance.choice(["", topic])
        if chance.random() < 0.15:
            flags |= MessageFlag.SEALED
        model_id, version = chance.choice([(0, 0), (3, 2), (3, 1), (4, 1)])
        payload = bytes([chance.choice([1, 7, 200]), chance.choice([0, 2])]) * (
            600 if chance.random() < cut_share else chance.choice([0, 1, 4])
        )
        made += packer.add(
            topic, payload, model_id=model_id, model_version=version, flags=flags,
            extensions=encode_extensions(extensions),
        )  # fmt: skip
        if chance.random() < 0.4 and (packet := packer.flush(chance.choice([0, 0, PacketFlag.KEEP_ALIVE]))):
            made.append(packet)
    packet = packer.flush()
    if packet is not None:
        made.append(packet)
    if chance.random() < 0.1:
        made.append(packer.empty(PacketFlag.KEEP_ALIVE))
    return made


@given(seed=st.integers(0, 2**32))
@settings(max_examples=300)
def test_the_kernel_forwards_what_the_oracle_forwards(seed: int) -> None:
    chance = random.Random(seed)
    twins = Twins(chance)
    packer = Packer(PUBLISHER_ID, GROUP, 1, packet_size_max=512)
    cut_share = chance.choice([0.1, 0.6])
    for _ in range(6):
        packets = random_packets(chance, packer, cut_share)
        while packets:
            count = chance.randint(1, len(packets))
            if count >= 2 and chance.random() < 0.4:
                count = 2
                twins.jump(packets[:count])
            else:
                twins.forward(packets[:count])
            if chance.random() < 0.2:
                only = chance.choice([None, *twins.oracle.is_masked])
                again = chance.choice(packets[:count])
                twins.forward_late(again, gap=chance.choice([0, 3]), only=only, to_all=chance.random() < 0.5)
            del packets[:count]
            if chance.random() < 0.5:
                twins.change()
