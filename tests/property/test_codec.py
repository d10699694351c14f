"""Packed messages are decoded unchanged: by the product's decoder, the independent one and the batch calls."""

from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop import packet_decoder
from penstock.base.limits import PACKET_SIZE_MAX
from penstock.wire import (
    ERROR_CAUSES,
    MESSAGE_DTYPE,
    MESSAGES_MAX,
    PACKET_DTYPE,
    PACKET_SIZE_MIN,
    RANGES_MAX,
    Hop,
    MessageFlag,
    Origin,
    Packer,
    PacketMessage,
    Seal,
    decode,
    decode_batch,
    encode_batch,
    encode_extensions,
    encode_gone,
    encode_nack,
    extensions,
    restamp,
)

U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
PUBLISHER_IDS = st.integers(1, 2**64 - 1)
TOPICS = st.text(min_size=1, max_size=63)  # at most 255 bytes: one character takes up to 4
EXTENSIONS = st.dictionaries(U16, st.binary(max_size=20), max_size=3)
FRAGMENT = int(MessageFlag.CONTINUATION | MessageFlag.MORE)  # an IntFlag's ~ would drop unknown flags
PACKET_SIZES = st.integers(PACKET_SIZE_MIN + 128, 2_000)


class Sent(NamedTuple):
    """A message as the test passes it to a Packer; the fields are in the independent decoder's order."""

    topic: str
    payload: bytes
    flags: int
    model_id: int
    model_version: int
    extensions: dict[int, bytes]


SENT = st.builds(
    Sent,
    TOPICS,
    st.binary(max_size=80) | st.binary(max_size=80).map(lambda data: data * 60),
    st.sampled_from([0, MessageFlag.SEALED, 0x4000]),
    U16,
    U16,
    EXTENSIONS,
)


def pack(messages: list[Sent], flushes: list[bool], **options: int) -> list[bytes]:
    """The packets of a stream; a message is flushed at once where `flushes` says so."""
    packer = Packer(7, 8, 9, **options)
    packets: list[bytes] = []
    for index, sent in enumerate(messages):
        packets += packer.add(
            sent.topic,
            sent.payload,
            model_id=sent.model_id,
            model_version=sent.model_version,
            flags=sent.flags,
            extensions=encode_extensions(sent.extensions),
        )
        if index < len(flushes) and flushes[index]:
            packets.append(packer.flush() or b"")
    last = packer.flush()
    return packets if last is None else [*packets, last]


def reassembled(packets: list[bytes]) -> list[Sent]:
    """The messages of a stream, fragments joined, as the independent decoder reads them."""
    whole: list[Sent] = []
    for data in packets:
        for message in packet_decoder.decode(data).messages:
            part = Sent(*message)
            if part.flags & MessageFlag.CONTINUATION:
                start = whole.pop()
                part = start._replace(payload=start.payload + part.payload)
            whole.append(part._replace(flags=part.flags & ~FRAGMENT))
    return whole


@pytest.mark.spec("FILT-1", "FILT-2", "FILT-3")
@given(st.lists(SENT, max_size=12), st.lists(st.booleans(), max_size=12), PACKET_SIZES, st.integers(0, 2**60))
def test_messages_come_out_as_they_went_in(
    messages: list[Sent], flushes: list[bool], packet_size_max: int, first_sequence: int
) -> None:
    packets = pack(messages, flushes, packet_size_max=packet_size_max, first_sequence=first_sequence)
    assert reassembled(packets) == messages
    assert all(len(packet) <= packet_size_max for packet in packets)
    decoded = [packet_decoder.decode(packet) for packet in packets]
    assert [packet.sequence for packet in decoded] == [*range(first_sequence, first_sequence + len(packets))]


@pytest.mark.spec("FILT-3")
@given(st.lists(SENT, max_size=12), PACKET_SIZES)
def test_a_packet_is_closed_only_when_the_next_message_did_not_fit(messages: list[Sent], packet_size_max: int) -> None:
    packets = pack(messages, [], packet_size_max=packet_size_max)
    for packet, follower in pairwise(packets):
        first = packet_decoder.decode(follower).messages[0]
        parts = (encode_extensions(first.extensions), first.topic.encode(), first.payload)
        space = 16 + sum(-(-len(part) // 8) * 8 for part in parts)
        assert first.flags & FRAGMENT or len(packet) + space > packet_size_max


def contents(message: PacketMessage) -> tuple[Any, ...]:
    return (
        message.topic,
        bytes(message.payload),
        message.flags,
        message.model_id,
        message.model_version,
        message.extensions,
    )


@given(st.lists(SENT, max_size=12), PACKET_SIZES, U16, U32)
def test_the_decoders_agree(messages: list[Sent], packet_size_max: int, flags: int, gap: int) -> None:
    for data in pack(messages, [], packet_size_max=packet_size_max):
        stamped = restamp(data, set_flags=flags, gap=gap)
        ours, theirs = decode(stamped), packet_decoder.decode(stamped)
        assert (ours.flags, ours.gap) == (theirs.flags, theirs.gap) == (flags, gap)
        assert [contents(message) for message in ours] == theirs.messages


@given(PUBLISHER_IDS, U32, U32, st.lists(st.tuples(U64, U64).map(sorted).map(tuple), min_size=1, max_size=RANGES_MAX))
def test_ranges_come_out_as_they_went_in(
    publisher_id: int, group: int, epoch: int, ranges: list[tuple[int, int]]
) -> None:
    for encode in (encode_nack, encode_gone):
        data = encode(publisher_id, group, epoch, ranges)
        ours, theirs = decode(data), packet_decoder.decode(data)
        assert ours.ranges == theirs.ranges == ranges
        assert (ours.publisher_id, ours.group, ours.epoch) == theirs[2:5] == (publisher_id, group, epoch)


@given(
    st.builds(Origin, U32, U32, U16, U16, U64, U64),
    st.lists(st.builds(Hop, U64, st.integers(-(2**63), 2**63 - 1))),
    st.builds(Seal, U32, st.binary(min_size=12, max_size=12)),
    st.integers(0, 2**200),
    st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1)),
)
def test_extension_bodies_come_out_as_they_went_in(
    origin: Origin, hops: list[Hop], seal: Seal, mask: int, tags: list[str]
) -> None:
    assert extensions.decode_origin(extensions.encode_origin(origin)) == origin
    assert extensions.decode_hops(extensions.encode_hops(hops)) == hops
    assert extensions.decode_seal(extensions.encode_seal(seal)) == seal
    assert extensions.decode_interest_mask(extensions.encode_interest_mask(mask)) == mask
    assert extensions.decode_tags(extensions.encode_tags(tags)) == tags


@pytest.mark.spec("FILT-14")
@given(st.lists(SENT, min_size=1, max_size=8), st.data())
def test_a_batch_decodes_what_single_packets_decode(messages: list[Sent], data: st.DataObject) -> None:
    packets = pack(messages, [], packet_size_max=1_000)
    for index in data.draw(st.lists(st.integers(0, len(packets) - 1), max_size=3)):
        packets[index] = packets[index][: data.draw(st.integers(0, len(packets[index])))]
    sizes = numpy.array([len(packet) for packet in packets], numpy.uint32)
    offsets = (numpy.cumsum(sizes) - sizes).astype(numpy.uint32)
    joined = b"".join(packets)
    packet_rows, message_rows = numpy.zeros(len(packets), PACKET_DTYPE), numpy.zeros(MESSAGES_MAX, MESSAGE_DTYPE)

    done, message_count, dropped = decode_batch(joined, offsets, sizes, packet_rows, message_rows)

    assert done == len(packets)
    expected: list[tuple[int, packet_decoder.Message]] = []
    causes: Counter[str] = Counter()
    for index, (packet, row) in enumerate(zip(packets, packet_rows, strict=True)):
        verdict = packet_decoder.verdict(packet)
        if isinstance(verdict, str):
            causes[verdict] += 1
            assert ERROR_CAUSES[row["error"]] == verdict
        else:
            count = len(verdict.messages)
            assert (row["error"], row["kind"], row["sequence"], row["count"]) == (0, 1, verdict.sequence, count)
            assert row["message_start"] == len(expected)
            expected += [(index, message) for message in verdict.messages]
    assert dropped == causes
    assert message_count == len(expected)
    for row, (index, message) in zip(message_rows, expected, strict=False):
        assert row["packet_index"] == index
        assert part_of(joined, row, "topic").decode() == message.topic
        assert part_of(joined, row, "payload") == message.payload
        assert part_of(joined, row, "extensions") == encode_extensions(message.extensions)
        assert (row["flags"], row["model_id"], row["model_version"]) == message[2:5]


def part_of(data: bytes, row: numpy.void, name: str) -> bytes:
    return data[row[f"{name}_offset"] :][: row[f"{name}_size"]]


@pytest.mark.spec("FILT-3")
@given(st.lists(st.tuples(TOPICS, st.binary(max_size=100)), max_size=20), PACKET_SIZES, st.integers(1, 20))
def test_a_batch_packs_what_the_decoder_reads(
    messages: list[tuple[str, bytes]], packet_size_max: int, messages_max: int
) -> None:
    topics, payloads = [topic.encode() for topic, _ in messages], [payload for _, payload in messages]
    rows, packets = numpy.zeros(len(messages), MESSAGE_DTYPE), numpy.zeros(len(messages), PACKET_DTYPE)
    for name, parts in (("topic", topics), ("payload", payloads)):
        rows[f"{name}_size"] = sizes = numpy.array([len(part) for part in parts], int)
        rows[f"{name}_offset"] = numpy.cumsum(sizes) - sizes
    out = bytearray(PACKET_SIZE_MAX)
    options = {"packet_size_max": packet_size_max, "messages_max": messages_max}

    packed, packet_count = encode_batch(
        b"".join(topics), b"".join(payloads), rows, out, packets, publisher_id=1, group=2, epoch=3, **options
    )

    assert packed == len(messages)
    places = [(int(row["offset"]), int(row["size"])) for row in packets[:packet_count]]
    decoded = [packet_decoder.decode(bytes(out[offset : offset + size])) for offset, size in places]
    assert [(m.topic, m.payload) for packet in decoded for m in packet.messages] == messages
    assert [packet.sequence for packet in decoded] == [*range(1, packet_count + 1)]
    assert all(1 <= len(packet.messages) <= messages_max for packet in decoded)
    assert all(size <= packet_size_max for _, size in places)
