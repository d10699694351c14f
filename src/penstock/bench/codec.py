"""Rate of decoding and encoding packets in batches, compared with copying the same bytes."""

from collections.abc import Iterator

import numpy

from penstock.base.ids import parse_group
from penstock.bench.harness import Result, result, seconds_per_call
from penstock.wire import MESSAGE_DTYPE, PACKET_DTYPE, decode_batch, encode_batch

PACKET_COUNT = 1_000
MESSAGES_PER_PACKET = 10
MESSAGE_COUNT = PACKET_COUNT * MESSAGES_PER_PACKET
PAYLOAD_SIZE = 128
PACKET_SIZE_MAX = 8_972
GROUP = parse_group("239.1.2.3")
CONDITIONS = (
    f"one core, batches of {PACKET_COUNT} packets, {MESSAGES_PER_PACKET} messages per packet, "
    f"{PAYLOAD_SIZE}-byte payloads, packets of at most {PACKET_SIZE_MAX} bytes, checksums computed and verified"
)


def run() -> Iterator[Result]:
    topics = [f"md.us.eq.S{index:04}.quote".encode() for index in range(1_000)]
    topic_starts = numpy.cumsum([0, *map(len, topics[:-1])])
    payloads = numpy.random.default_rng(1).integers(0, 256, MESSAGE_COUNT * PAYLOAD_SIZE, dtype=numpy.uint8)
    messages = numpy.zeros(MESSAGE_COUNT, MESSAGE_DTYPE)
    messages["topic_offset"] = numpy.resize(topic_starts, MESSAGE_COUNT)
    messages["topic_size"] = numpy.resize([len(topic) for topic in topics], MESSAGE_COUNT)
    messages["payload_offset"] = numpy.arange(MESSAGE_COUNT) * PAYLOAD_SIZE
    messages["payload_size"] = PAYLOAD_SIZE
    out = numpy.zeros(PACKET_COUNT * PACKET_SIZE_MAX, numpy.uint8)
    packets = numpy.zeros(PACKET_COUNT, PACKET_DTYPE)
    topic_data = b"".join(topics)

    def encode() -> None:
        done = encode_batch(
            topic_data,
            payloads,
            messages,
            out,
            packets,
            publisher_id=1,
            group=GROUP,
            epoch=1,
            packet_size_max=PACKET_SIZE_MAX,
            messages_max=MESSAGES_PER_PACKET,
        )
        assert done == (MESSAGE_COUNT, PACKET_COUNT)

    encode()
    offsets, sizes = packets["offset"].copy(), packets["size"].copy()
    data = out[: int(sizes.sum())].copy()
    copy = numpy.empty_like(data)
    decoded_packets = numpy.zeros(PACKET_COUNT, PACKET_DTYPE)
    decoded_messages = numpy.zeros(MESSAGE_COUNT, MESSAGE_DTYPE)

    def decode() -> None:
        done = decode_batch(data, offsets, sizes, decoded_packets, decoded_messages)
        assert done == (PACKET_COUNT, MESSAGE_COUNT, {})

    copies_per_s = MESSAGE_COUNT / seconds_per_call(lambda: numpy.copyto(copy, data))
    for metric, call in (("decode_messages_per_s", decode), ("encode_messages_per_s", encode)):
        yield result(
            "codec",
            metric,
            MESSAGE_COUNT / seconds_per_call(call),
            "messages/s",
            against="memcpy of the same bytes",
            against_value=copies_per_s,
            conditions=CONDITIONS,
        )
