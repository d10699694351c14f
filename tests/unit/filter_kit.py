"""Helpers that drive a filter's kernel by hand."""

from collections.abc import Sequence
from typing import Any

from penstock.base import parse_group
from penstock.filter import Forwarder, Mode, Outbox, StreamAccount
from penstock.middleware.core._inorder import InOrder, StreamCursor
from penstock.topics import InterestTable
from penstock.wire import DatagramBatch, MessageBatch, Packer, Packet, decode

GROUP = parse_group("239.1.1.1")
PUBLISHER_ID = 42
SOURCE = ("10.0.0.1", 4_000)


def forwarder(consumers_max: int = 8, slots_max: int = 32) -> Forwarder:
    table = InterestTable(seed=bytes(16))
    outbox = Outbox.for_consumers(consumers_max)
    return Forwarder(table, consumers_max=consumers_max, slots_max=slots_max, outbox=outbox, seed=7)


def want(module: Forwarder, slot: int, *interests: str) -> None:
    for interest in interests:
        module.table.add(interest, slot)


def application(module: Forwarder, number: int, *interests: str, condition: Any = None) -> None:
    """A consumer with one slot of the same number."""
    module.set_consumer(number, Mode.OWN)
    module.set_slot(number, number, 0, condition)
    want(module, number, *interests)


def opened(module: Forwarder, *consumers: int, first: int = 1, epoch: int = 1) -> StreamAccount:
    account = module.open(PUBLISHER_ID, GROUP, epoch)
    for consumer in consumers:
        account.listen(consumer, first)
    return account


def packets(
    *contents: Sequence[tuple[str, bytes]], first: int = 1, flags: int = 0, size_max: int = 1_472
) -> list[bytes]:
    """One packet for each list of topics and payloads."""
    packer = Packer(PUBLISHER_ID, GROUP, 1, first_sequence=first, packet_size_max=size_max)
    made = []
    for messages in contents:
        for topic, payload in messages:
            made += packer.add(topic, payload)
        flushed = packer.flush(flags) if messages else packer.empty(flags)
        if flushed is not None:
            made.append(flushed)
    return made


def batch_of(data: Sequence[bytes], *, first: int = 1, epoch: int = 1) -> MessageBatch:
    """Pass consecutive packets to the fast path."""
    in_order, datagrams = InOrder(3, takes_fragments=True), DatagramBatch(len(data))
    for each in data:
        datagrams.append(each, SOURCE)
    cursor = StreamCursor()
    cursor.publisher_id, cursor.group, cursor.epoch = PUBLISHER_ID, GROUP, epoch
    cursor.next_sequence, cursor.is_smooth, cursor.source_key = first, True, datagrams.source_key(0)
    in_order.add(cursor)
    messages = in_order.begin(datagrams, 0)
    assert messages is not None
    assert messages.packet_count == len(data)
    return messages


def sent(module: Forwarder) -> dict[int, list[Packet]]:
    """Take all packets from the outbox."""
    found: dict[int, list[Packet]] = {}
    for consumer, data in module.outbox.packets():
        found.setdefault(consumer, []).append(decode(data))
    module.outbox.clear()
    return found


def topics(packet: Packet) -> list[str]:
    return [message.topic for message in packet]
