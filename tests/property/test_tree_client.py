"""The compiled short ways of a tree's client give the results of the long ones: packets taken in runs, frames taken by
the reading thread, messages decoded in runs, and messages encoded by the publisher's lane."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.clock import SystemRandomness
from penstock.base.counters import Counters
from penstock.base.errors import LimitError, ModelError, NotFoundError, PacketError
from penstock.capture.live._reading import BatchReader
from penstock.capture.live.reading import Models
from penstock.middleware.core.reserved_topics import SESSION_TOPIC
from penstock.model import MessageModel, shipped
from penstock.net._link_writer import LinkWriter
from penstock.net.core.client_session import Begin, Connected, Received
from penstock.net.core.framing import FrameDecoder, encode_frame
from penstock.tree.client._publishing_lane import PublishingLane
from penstock.tree.client.core.events import BlockReceived, Deliver
from penstock.tree.client.core.publisher import Publisher, PublisherConfig
from penstock.tree.client.core.subscriber import Subscriber, SubscriberConfig
from penstock.tree.client.core_runner import BlockSplitter
from penstock.tree.core.control import Held, Position, StreamInfo, Welcome
from penstock.tree.core.infostream import Infostream, Siblings
from penstock.tree.core.kernel._frame import BLOCK_HEADER_SIZE, FRAME_SIZE_MAX, encode_block, split_packets
from penstock.tree.core.kernel._number import encode_published
from penstock.wire import Origin, Packer, PacketMessage, decode, encode_extensions, encode_origin
from penstock.wire._packet_run import take_run

LINK = 5
STREAMS = (StreamInfo(1, "one", ("md.>",), ((1, 0),)), StreamInfo(2, "two", ("md.>",), ((1, 0),)))
QUOTE = shipped("quote")
ORIGIN = encode_extensions({1: encode_origin(Origin(7, 1, 0, 0, 3, 4))})


def packed(
    group: int, epoch: int, sequence: int, payload: bytes = b"x", *, count: int = 1, model: int = 0, ext: bytes = b""
) -> bytes:
    packer = Packer(9, group, epoch, first_sequence=sequence)
    for number in range(count):
        version = QUOTE.version if model else 0
        packer.add(f"md.{group}.{number}", payload, model_id=model, model_version=version, extensions=ext)
    packet = packer.flush()
    assert packet is not None
    return packet


def damaged(packet: bytes) -> bytes:
    return packet[:-1] + bytes([packet[-1] ^ 1])


QUOTES = st.sampled_from([bytes(QUOTE.new(bid_size=3)), b"too short"])
PACKETS = st.one_of(
    st.builds(packed, st.integers(1, 2), st.just(1), st.integers(1, 40), st.binary(max_size=40)),
    st.builds(
        packed, st.integers(1, 3), st.integers(0, 3), st.integers(1, 40), st.binary(max_size=9), count=st.integers(1, 4)
    ),
    st.builds(
        packed, st.just(1), st.just(1), st.integers(1, 40), QUOTES, model=st.just(QUOTE.id),
        ext=st.sampled_from([b"", ORIGIN]),
    ),
    st.builds(damaged, st.builds(packed, st.just(1), st.just(1), st.integers(1, 40), st.just(b"abc"))),
    st.just(Infostream("leaf").encode(Siblings(()), 1)),
)  # fmt: skip
RISING = st.builds(
    lambda count, size: [packed(1, 1, number, bytes(size)) for number in range(1, count + 1)],
    st.integers(1, 40),
    st.integers(0, 40),
)
BLOCKS = st.lists(st.one_of(st.lists(PACKETS, max_size=12), RISING), max_size=6)


def subscribed() -> Subscriber:
    subscriber = Subscriber(
        SubscriberConfig(name="u", agents=("leaf:1",), topics=("md.>",)), SystemRandomness(), Counters("party")
    )
    subscriber.handle(Begin(), 0)
    subscriber.handle(Connected(1, LINK), 0)
    subscriber.handle(Received(LINK, Welcome("leaf", "tree", 1, ("root", "leaf"), True, STREAMS, 0)), 0)
    for number in (1, 2):
        subscriber.handle(Received(LINK, Held(number, number, 0, 1, True)), 0)
    return subscriber


def contents(messages: Sequence[PacketMessage]) -> list[Any]:
    return [
        (each.topic, bytes(each.payload), each.sequence, each.epoch, each.publisher_id, each.flags, each.model_id,
         each.model_version, each.extensions)
        for each in messages
    ]  # fmt: skip


class Delivered:
    def __init__(self) -> None:
        self.messages: list[Any] = []

    def take(self, instructions: Sequence[Any]) -> None:
        for each in instructions:
            if isinstance(each, Deliver):
                self.messages += [(each.stream, *content) for content in contents(list(each.messages))]


def one_by_one(blocks: Sequence[Sequence[bytes]]) -> tuple[list[Any], dict[str, Position]]:
    """The oracle: each packet by itself."""
    found: list[Any] = []
    last = {each.number: (0, 1) for each in STREAMS}
    names = {each.number: each.name for each in STREAMS}
    for packet in (packet for block in blocks for packet in block):
        try:
            decoded = decode(packet)
        except PacketError:
            continue
        sequence, term = last.get(decoded.group, (0, 99))
        if decoded.group in last and decoded.epoch >= term and decoded.sequence > sequence:
            last[decoded.group] = (decoded.sequence, decoded.epoch)
            found += [(names[decoded.group], *content) for content in contents(list(decoded))]
    return found, {names[number]: Position("sequence", *each) for number, each in last.items()}


def cut(data: bytes, cuts: Sequence[int]) -> Iterator[bytes]:
    at = 0
    for size in cuts:
        yield data[at : at + size]
        at += size
    yield data[at:]


@given(BLOCKS)
def test_runs_deliver_what_single_packets_deliver(blocks: list[list[bytes]]) -> None:
    subscriber, delivered = subscribed(), Delivered()
    for block in blocks:
        delivered.take(subscriber.handle(BlockReceived(LINK, 1, b"".join(block)), 0))
    messages, positions = one_by_one(blocks)
    assert delivered.messages == messages
    assert subscriber.positions() == positions


@given(BLOCKS, st.lists(st.integers(0, 300), max_size=12))
def test_the_reading_thread_delivers_what_the_loop_delivers(blocks: list[list[bytes]], cuts: list[int]) -> None:
    subscriber, delivered, splitter = subscribed(), Delivered(), BlockSplitter()
    data = b"".join(encode_block(b"".join(block), leg=1) for block in blocks)
    kept = b""
    for part in cut(data, cuts):
        instructions, at, unusual = subscriber.take_frames(kept + part)
        delivered.take(instructions)
        if not unusual:
            kept = (kept + part)[at:]
            continue
        for _, frame in splitter.feed(unusual):
            delivered.take(subscriber.handle(BlockReceived(LINK, 1, frame[BLOCK_HEADER_SIZE - 4 :]), 0))
        kept = splitter.take_kept()
    assert not kept
    assert delivered.messages == one_by_one(blocks)[0]


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=4), st.integers(0, 100))
def test_control_messages_never_wait_for_further_bytes(payloads: list[bytes], size: int) -> None:
    control = b"".join(encode_frame(b"\x82" + each) for each in payloads)
    subscriber = subscribed()
    instructions, at, unusual = subscriber.take_frames(encode_block(packed(1, 1, 1), leg=1) + control)
    assert len(instructions) == 1
    assert unusual == control
    cut_off = control[:size]
    _, at, unusual = subscriber.take_frames(cut_off)
    assert (unusual or cut_off[at:]) == cut_off
    assert bool(unusual) == (len(cut_off) > 4)


@given(st.binary(max_size=200), st.integers(0, 220), st.integers(0, 220))
def test_any_bytes_give_no_run(data: bytes, at: int, end: int) -> None:
    assert take_run(data, at, end, 1, 1, 0) is None


@given(st.lists(PACKETS, max_size=30), st.booleans())
def test_runs_are_read_as_single_messages_are(packets: list[bytes], knows_quote: bool) -> None:
    models = Models(nobody)
    if knows_quote:
        models.learn(QUOTE)
    reader = BatchReader(models, 1, models.read)
    data, at = b"".join(packets), 0
    while at < len(data):
        first = decode_or_none(data[at:])
        run = None if first is None else take_run(data, at, len(data), first.group, first.epoch, first.sequence - 1)
        if run is None:
            at += len(split_packets(data[at:])[0])
            continue
        for message, read in zip(run, reader.read_run(run, SESSION_TOPIC), strict=True):
            assert shown(models, message) == shown(models, read)
        at = run.end


def decode_or_none(data: bytes) -> Any:
    try:
        return decode(split_packets(data)[0])
    except PacketError:
        return None


def shown(models: Models, message: Any) -> Any:
    if isinstance(message, PacketMessage):
        sequence = message.sequence
        try:
            message = models.read(message)
        except ModelError as error:
            return str(error)
        message.seq = sequence
    return type(message), message.topic, message.seq, message.source, bytes(message), message.model


def nobody(model_id: int, version: int) -> MessageModel:
    raise NotFoundError(f"no model {model_id}")


TEXTS = st.sampled_from(["md.a", "md.b.c", "md.überall", "md." + "x" * 200])
ARGUMENTS = st.tuples(
    TEXTS,
    st.one_of(st.binary(max_size=300), st.sampled_from([bytes(65_000), bytes(70_000)])),
    st.integers(0, 70_000),
    st.integers(0, 3),
)


@given(st.lists(ARGUMENTS, min_size=1, max_size=20))
def test_the_lane_sends_what_the_core_sends(messages: list[tuple[str, bytes, int, int]]) -> None:
    core = Publisher(
        PublisherConfig(name="p", agents=("root:1",), publisher_id=77), SystemRandomness(), Counters("party")
    )
    core.handle(Begin(), 0)
    core.handle(Connected(1, LINK), 0)
    core.handle(Received(LINK, Welcome("root", "tree", 1, ("root",), True, STREAMS, 0)), 0)
    lock = _Unlocked()
    lane = PublishingLane(core, lock, 77)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.settimeout(10.0)
        writer = LinkWriter(ours.fileno(), 0)
        lane.links, lane.streams, lane.room = {LINK: _Linked(writer)}, core.streams, 1_000  # type: ignore[dict-item]
        expected = []
        decoder = FrameDecoder(FRAME_SIZE_MAX)
        received: list[bytes] = []
        with closing(writer):
            for topic, payload, model_id, version in messages:
                lane.stream_by_topic[topic] = 1
                number = lane.publish(topic, payload, model_id, version, b"", 0)
                if not number:
                    assert model_id > 65_535 or _is_too_long(topic, payload)
                    continue
                assert number == len(expected) + 1 == core.next_number - 1 == core.sent
                expected.append(
                    encode_published(77, number, 1, topic, payload, model_id=model_id, model_version=version)
                )
                while sum(map(len, received)) < sum(map(len, expected)):
                    for frame in decoder.feed(theirs.recv(65_536)):
                        received += split_packets(frame[BLOCK_HEADER_SIZE - 4 :])
        assert received == expected
        assert lane.room == 1_000 - len(expected)


class _Unlocked:
    def acquire(self) -> None: ...

    def release(self) -> None: ...


class _Linked:
    def __init__(self, writer: LinkWriter) -> None:
        self.writer = writer


def _is_too_long(topic: str, payload: bytes) -> bool:
    try:
        encode_published(77, 1, 1, topic, payload)
    except LimitError:
        return True
    return False
