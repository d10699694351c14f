"""The compiled paths against the reference ones: a batch gives the same result as its datagrams one by one."""

import itertools
import random
from collections import deque
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.test_fuzz_middleware import datagrams
from penstock.base.core import Tick
from penstock.base.errors import LimitError, LocalProtocolError
from penstock.middleware import (
    DatagramReceived,
    DatagramsReceived,
    Deliver,
    DeliverBatch,
    MulticastStored,
    OutgoingBatch,
    Publish,
    PublishBatch,
    Receiver,
    TopicList,
)
from penstock.middleware.core.events import OutgoingMessage
from penstock.wire import DatagramBatch, PacketStore, decode
from unit.middleware_kit import GROUP, PUBLISHER_ID, SOURCE, packets, publisher, receiver

TOPICS = ("a", "md.us.eq.AAPL.quote", "md.us.eq.ÄÖ.trade")


def story(answers: list[Any]) -> list[Any]:
    """Everything that the application receives, with each message as plain values."""
    told: list[Any] = []
    for answer in answers:
        for each in answer.one_by_one() if isinstance(answer, DeliverBatch) else [answer]:
            if isinstance(each, Deliver):
                messages = [
                    (m.topic, bytes(m.payload), m.model_id, m.flags, m.extensions, m.publisher_id, m.sequence)
                    for m in each.messages
                ]
                told.append((each.stream, each.epoch, each.first, each.sequence, each.flags, messages))
            else:
                told.append(each)
    return told


@pytest.mark.parametrize("seed", range(8))
def test_batches_tell_what_single_datagrams_tell(seed: int) -> None:
    chance = random.Random(seed)
    limits: dict[str, Any] = {"window_packets_max": 16, "window_bytes_max": 4_096, "message_size_max": 5_000}
    one, many = receiver(**limits), receiver(**limits)
    batch = DatagramBatch(chance.randint(2, 24))
    network = MostlyInOrder(chance)
    now_ns, batches_delivered = 0, 0
    for _ in range(300):
        now_ns += chance.choice([0, 1_000, 10**6, 10**8])
        source = SOURCE if chance.random() < 0.97 else ("10.9.9.9", 1)
        arriving = network.next_piece(batch.capacity)
        batch.clear()
        for data in arriving:
            batch.append(data, source)
        batch_answers = many.handle(DatagramsReceived(batch), now_ns)
        batches_delivered += sum(isinstance(answer, DeliverBatch) for answer in batch_answers)
        batch_story = story(batch_answers)
        assert batch_story == [
            told for each in arriving for told in story(one.handle(DatagramReceived(each, source), now_ns))
        ]
        if chance.random() < 0.3:
            assert story(one.handle(Tick(), now_ns)) == story(many.handle(Tick(), now_ns))
        assert one.next_deadline_ns() == many.next_deadline_ns()
        assert sorted(one.counters) == sorted(many.counters)
        assert positions(one) == positions(many)
    assert batches_delivered > 50, "the fast path was rarely taken"


class MostlyInOrder:
    """Long streams of three publishers, with losses, swaps, repetitions and hostile bytes now and then."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._noise = datagrams(chance)
        self._streams = [iter(packets(3_000, publisher_id=number)) for number in (101, 102, 103)]

    def next_piece(self, count_max: int) -> list[bytes]:
        chance = self._chance
        piece = list(itertools.islice(chance.choice(self._streams), chance.randint(1, count_max)))
        for _ in range(chance.choice([0, 0, 0, 1, 3])):
            at = chance.randrange(len(piece) + 1)
            match chance.randrange(4):
                case 0:
                    piece[at : at + 1] = []
                case 1:
                    piece[at : at + 2] = reversed(piece[at : at + 2])
                case 2:
                    piece[at:at] = piece[at : at + 1]
                case 3:
                    piece.insert(at, chance.choice(self._noise))
        return piece[:count_max]


def positions(core: Receiver) -> list[tuple[int, int, int, int, int]]:
    return [(s.publisher_id, s.epoch, s.next_sequence, s.newest_sequence, s.heard_ns) for s in core.streams()]


@given(
    st.integers(1, 12),
    st.integers(48, 5_000),
    st.lists(st.tuples(st.booleans(), st.integers(1, 6), st.integers(0, 200)), max_size=60),
    st.data(),
)
def test_a_store_keeps_the_newest_packets(
    packets_max: int, bytes_max: int, actions: list[Any], data: st.DataObject
) -> None:
    store = PacketStore(packets_max, bytes_max)
    kept: deque[tuple[int, bytes]] = deque()
    for is_batch, count, size in actions:
        first = store.next_sequence
        if is_batch:
            records = numpy.frombuffer(random.Random(size).randbytes(count * (size + 1)), numpy.uint8)
            batch = OutgoingBatch(TopicList(TOPICS), 0, records.reshape(count, size + 1))
            try:
                made = store.pack(
                    batch.topic_data, batch.payloads, batch.rows, publisher_id=7, group=GROUP, epoch=1,
                    packet_size_max=328, keep_alive_packets=4,
                )  # fmt: skip
            except LimitError:
                assert store.next_sequence == first
                continue
            assert store.next_sequence == first + made
            kept += [(sequence, store.get(sequence)) for sequence in range(first, first + made)]
            for sequence, packet in list(kept)[-made:]:
                assert decode(packet).sequence == sequence
                assert bool(decode(packet).flags & 1) == (sequence % 4 == 0)
            assert b"".join(bytes(m.payload) for _, p in list(kept)[-made:] for m in decode(p)) == records.tobytes()
        else:
            packet = bytes([count]) * (48 + size)
            store.keep(packet)
            kept.append((first, packet))
        while len(kept) > packets_max or sum(len(packet) for _, packet in kept) > bytes_max:
            kept.popleft()
        assert len(store) == len(kept)
        assert store.bytes_kept == sum(len(packet) for _, packet in kept)
        assert store.oldest == (kept[0][0] if kept else store.next_sequence)
    for sequence, packet in kept:
        assert store.get(sequence) == packet
    outside = data.draw(st.sampled_from([0, store.oldest - 1, store.next_sequence, 2**64 - 1]))
    if outside >= 0:
        with pytest.raises(LocalProtocolError):
            store.get(outside)


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(min_size=12, max_size=12)), min_size=1, max_size=200))
def test_a_published_batch_is_what_the_messages_would_be(messages: list[tuple[int, bytes]]) -> None:
    singly, batched = publisher(packet_size_max=600), publisher(packet_size_max=600)
    outgoing = [OutgoingMessage(TOPICS[which], payload) for which, payload in messages]
    expected = [answer.data for answer in singly.handle(Publish(GROUP, outgoing), 0)]  # type: ignore[union-attr]
    records = numpy.frombuffer(b"".join(payload for _, payload in messages), "V12")
    batch = OutgoingBatch(TopicList(TOPICS), [which for which, _ in messages], records)
    (instruction,) = batched.handle(PublishBatch(GROUP, batch), 0)
    assert isinstance(instruction, MulticastStored)
    made = [instruction.store.get(sequence) for sequence in range(instruction.first, instruction.last + 1)]
    assert made == expected
    assert sorted(singly.counters) == sorted(batched.counters)
    assert singly.next_sequence(GROUP) == batched.next_sequence(GROUP)
    assert decode(made[0]).publisher_id == PUBLISHER_ID


@given(
    st.lists(
        st.tuples(st.sampled_from(["one", "batch", "tick"]), st.integers(0, 2), st.binary(max_size=700)), max_size=40
    )
)
def test_single_messages_are_packed_like_any_other(actions: list[tuple[str, int, bytes]]) -> None:
    """publish_one() produces the same bytes as handle(Publish), after any sequence of actions."""
    config = {"packet_size_max": 600, "keep_alive_packets": 5, "keep_alive_first_ms": 1}
    slow, fast = publisher(**config), publisher(**config)
    now_ns = 0
    for action, which, payload in actions:
        now_ns += 700_000
        if action == "tick":
            assert sent(slow.handle(Tick(), now_ns)) == sent(fast.handle(Tick(), now_ns))
        elif action == "batch" and payload and len(payload) < 500:
            batch = OutgoingBatch(TopicList(TOPICS), which, numpy.frombuffer(payload, f"V{len(payload)}"))
            assert sent(slow.handle(PublishBatch(GROUP, batch), now_ns)) == sent(
                fast.handle(PublishBatch(GROUP, batch), now_ns)
            )
        else:
            event = Publish(GROUP, [OutgoingMessage(TOPICS[which], payload, 3, 4)])
            stream = fast.stream(GROUP, now_ns)
            sequence = stream.publish_one(TOPICS[which], payload, 3, 4, now_ns)
            made = [stream.kept.get(sequence)] if sequence else sent(fast.handle(event, now_ns))
            assert made == sent(slow.handle(event, now_ns))
        assert slow.next_deadline_ns() == fast.next_deadline_ns()
        assert sorted(slow.counters) == sorted(fast.counters)


def sent(instructions: list[Any]) -> list[bytes]:
    """The packets of these instructions."""
    packets: list[bytes] = []
    for each in instructions:
        if isinstance(each, MulticastStored):
            packets += [each.store.get(sequence) for sequence in range(each.first, each.last + 1)]
        else:
            packets.append(each.data)
    return packets
