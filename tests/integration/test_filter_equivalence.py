"""The same interests with and without a filter module give the same messages, in every way of delivery and repair."""

import random
import time
from typing import Any

import pytest

from integration.filter_kit import filter_here
from penstock.filter.client import FilteredReceiver
from penstock.middleware import Deliver, DeliverBatch, LossReceipt, OutgoingMessage, PublisherConfig, ReceiverConfig
from penstock.middleware.live import MulticastPublisher
from penstock.middleware.live.receiver import MulticastReceiver, SocketReceiver
from penstock.model import shipped
from penstock.net.udp import Channel, free_channel
from penstock.topics import InterestTable, Predicate
from penstock.wire import Extension, Packer, decode, decode_tags, encode_extensions, encode_tags

QUOTE = shipped("quote")
SYMBOLS = ("AAPL", "IBM", "MSFT", "ZZT")
CONFIG = ReceiverConfig(nack_delay_us=500, nack_retry_ms=5)
PUBLISHER = PublisherConfig(linger_ms=50, keep_alive_first_ms=5, keep_alive_ms=20)
LAST = "end.of.it"
MODES = [
    ("unicast", {}),
    ("unicast", {"repair": "receivers"}),
    ("ring", {}),
    ("ring", {"repair": "receivers"}),
    ("shared", {"shared": "mask"}),
    ("shared", {"shared": "mask", "repair": "receivers"}),
    ("shared", {"shared": "residual"}),
    ("shared", {"shared": "residual", "repair": "receivers"}),
]


def feed(seed: int, count: int) -> list[OutgoingMessage]:
    """Quotes like a demo's, some with tags, and now and then a message that needs several packets."""
    randomness = random.Random(seed)
    made = []
    for number in range(count):
        topic = f"md.us.eq.{randomness.choice(SYMBOLS)}.{randomness.choice(('quote', 'trade'))}"
        tags = ["halted"] if randomness.random() < 0.1 else []
        extensions = encode_extensions({int(Extension.TAGS): encode_tags(tags)}) if tags else b""
        if randomness.random() < 0.03:
            made.append(OutgoingMessage(topic, number.to_bytes(4, "little") * 1_500, extensions=extensions))
        else:
            quote = QUOTE.new(bid_size=number, bid_price=randomness.randrange(50, 150))
            made.append(OutgoingMessage(topic, bytes(quote), QUOTE.id, QUOTE.version, extensions=extensions))
    return [*made, OutgoingMessage(LAST, b"last")]


def publish(channel: Channel, messages: list[OutgoingMessage], receivers: list[SocketReceiver]) -> list[list[Any]]:
    """Publish the messages, and return the output of each receiver."""
    told: list[list[Any]] = [[] for _ in receivers]
    over = [False] * len(receivers)
    with MulticastPublisher(channel, config=PUBLISHER) as publisher:
        deadline = time.monotonic() + 60
        at = 0
        while not all(over):
            assert time.monotonic() < deadline, [len(each) for each in told]
            publisher.publish_messages(messages[at : at + 7])
            at += 7
            for number, receiver in enumerate(receivers):
                for each in receiver.receive(0.001):
                    if isinstance(each, LossReceipt):
                        told[number].append(each)
                    elif isinstance(each, Deliver | DeliverBatch):
                        taken = [(message.topic, bytes(message.payload)) for message in each.messages]
                        over[number] = over[number] or (LAST, b"last") in taken
                        told[number] += taken
    return told


def wanted_of(messages: list[OutgoingMessage], topics: list[str], where: str, besides: str) -> list[tuple[str, bytes]]:
    """The messages that match the interests and the condition, evaluated one by one."""
    table, quote = InterestTable(), QUOTE
    for topic in topics:
        table.add(topic, 0)
    predicate = Predicate.compile(where, quote) if where else None
    found = []
    for message in messages:
        packer = Packer(1, 1, 1, packet_size_max=65_000)
        packer.add(message.topic, b"", extensions=message.extensions)
        (read,) = decode(packer.flush() or b"")
        tags = decode_tags(read.extensions.get(int(Extension.TAGS), b""))
        payload = bytes(message.payload)
        is_wanted = bool(table.match(message.topic, tags))
        if is_wanted and predicate is not None:
            is_wanted = message.model_id == quote.id and predicate(quote.view(payload))
        if is_wanted or message.topic == besides:
            found.append((message.topic, payload))
    return found


@pytest.mark.spec("FILT-6", "FILT-7", "FILT-8", "FILT-9", "FILT-10", "FILT-11")
@pytest.mark.parametrize(("delivery", "options"), MODES)
@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_the_same_messages_with_and_without_a_filter(delivery: Any, options: dict[str, Any], loss: float) -> None:
    channel, messages = free_channel(), feed(7, 1_400)
    wishes: list[tuple[list[str], str]] = [
        (["md.us.eq.*.quote", "!md.us.eq.ZZ*.>"], ""),
        (["md.us.eq.IBM.>"], "bid_price > 100"),
        (["#halted", "md.us.eq.AAPL.trade"], ""),
    ]
    with filter_here(channels=[str(channel)], **options) as module:
        receivers: list[SocketReceiver] = [MulticastReceiver([channel], config=CONFIG)]
        try:
            for topics, where in wishes:
                made = FilteredReceiver(
                    ("127.0.0.1", module.port), topics, where=where, delivery=delivery, config=CONFIG, loss=loss
                )
                receivers.append(made)
                made.want(LAST)
            everything, *filtered = publish(channel, messages, receivers)
        finally:
            for each in receivers:
                each.close()
    assert not loss or all(each.counters["datagrams_discarded"] for each in receivers[1:])
    assert everything == [(message.topic, bytes(message.payload)) for message in messages]
    for (topics, where), got in zip(wishes, filtered, strict=True):
        assert got == wanted_of(messages, [*topics], where, LAST), (topics, where)
