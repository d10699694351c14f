"""Edge cases of the batch calls; a property test compares them with decode()."""

import numpy
import pytest

from penstock.base.counters import Cause
from penstock.base.errors import LocalProtocolError
from penstock.base.limits import PACKET_SIZE_MAX
from penstock.wire import (
    ERROR_CAUSES,
    MESSAGE_DTYPE,
    MESSAGES_MAX,
    PACKET_DTYPE,
    MessageFlag,
    Packer,
    decode,
    decode_batch,
    encode_batch,
    encode_extensions,
    encode_nack,
)

STREAM = {"publisher_id": 11, "group": 0xEF010203, "epoch": 3}


def slots(packets: list[bytes]) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """The packets in slots of one buffer, as a batch receive stores them: data, offsets, sizes."""
    slot_size = max(map(len, packets), default=0)
    data = numpy.frombuffer(b"".join(packet.ljust(slot_size, b"?") for packet in packets), numpy.uint8)
    offsets = numpy.arange(len(packets), dtype=numpy.uint32) * numpy.uint32(slot_size)
    return data, offsets, numpy.array([len(packet) for packet in packets], numpy.uint32)


def rows(packet_count: int, message_count: int = MESSAGES_MAX) -> tuple[numpy.ndarray, numpy.ndarray]:
    return numpy.zeros(packet_count, PACKET_DTYPE), numpy.zeros(message_count, MESSAGE_DTYPE)


def stream_of(contents: list[bytes]) -> list[bytes]:
    packer = Packer(**STREAM)
    packets = []
    for content in contents:
        packer.add("t", content)
        packets.append(packer.flush() or b"")
    return packets


def test_rows_have_the_size_that_the_kernels_use() -> None:
    assert (PACKET_DTYPE.itemsize, MESSAGE_DTYPE.itemsize) == (56, 32)


def test_an_empty_batch_has_no_messages() -> None:
    assert decode_batch(*slots([]), *rows(0)) == (0, 0, {})


@pytest.mark.spec("FILT-14")
def test_invalid_packets_are_marked_and_counted_by_cause() -> None:
    good = stream_of([b"1", b"2", b"3", b"4"])
    damaged = good[1][:-1] + b"!"
    nack = encode_nack(11, 1, 1, [(1, 2)])
    packets, messages = rows(7)
    done = decode_batch(*slots([good[0], damaged, b"", nack, good[2][:50], damaged, good[3]]), packets, messages)
    assert done == (7, 2, {Cause.CHECKSUM: 2, Cause.FOREIGN: 1, Cause.TRUNCATED: 1})
    assert [ERROR_CAUSES.get(error) for error in packets["error"]] == [
        *(None, Cause.CHECKSUM, Cause.FOREIGN, None, Cause.TRUNCATED, Cause.CHECKSUM, None)
    ]
    assert messages["packet_index"][:2].tolist() == [0, 6]
    assert packets["message_start"][[0, 6]].tolist() == [0, 1]


def test_decoding_continues_where_the_output_was_full() -> None:
    packer = Packer(**STREAM, packet_size_max=PACKET_SIZE_MAX)
    full = []
    while not full:
        full = packer.add("t", b"")
    count = len(decode(full[0]))
    data, offsets, sizes = slots(full * 3)
    packets, messages = rows(3)
    assert decode_batch(data, offsets, sizes, packets, messages) == (1, count, {})
    assert decode_batch(data, offsets[1:], sizes[1:], packets, messages) == (1, count, {})


def test_arrays_of_different_lengths_are_refused() -> None:
    data, offsets, sizes = slots(stream_of([b"1", b"2"]))
    packets, messages = rows(2)
    with pytest.raises(LocalProtocolError):
        decode_batch(data, offsets[:1], sizes, packets, messages)
    with pytest.raises(LocalProtocolError):
        decode_batch(data, offsets, sizes, packets[:1], messages)
    with pytest.raises(LocalProtocolError):
        decode_batch(data, offsets, sizes, packets, messages[:-1])
    with pytest.raises(LocalProtocolError):
        decode_batch(data[:-1], offsets, sizes, packets, messages)
    with pytest.raises(ValueError):
        decode_batch(data, offsets, sizes, messages[:2], messages)


class TestEncode:
    topics = b"md.amd.bc"
    payloads = bytes(range(100))

    def messages(self, *parts: tuple[int, int, int, int]) -> numpy.ndarray:
        _, messages = rows(0, len(parts))
        for row, (topic_offset, topic_size, payload_offset, payload_size) in zip(messages, parts, strict=True):
            row["topic_offset"], row["topic_size"] = topic_offset, topic_size
            row["payload_offset"], row["payload_size"] = payload_offset, payload_size
        return messages

    def encode(self, messages: numpy.ndarray, *, out_size: int = 4096, packet_count: int = 8, **options: int) -> list:
        """The number of packed messages, and the packets."""
        out = numpy.zeros(out_size, numpy.uint8)
        packets, _ = rows(packet_count)
        packed, count = encode_batch(self.topics, self.payloads, messages, out, packets, **STREAM, **options)
        places = [(int(row["offset"]), int(row["size"])) for row in packets[:count]]
        return [packed, *(out[offset : offset + size].tobytes() for offset, size in places)]

    @pytest.mark.spec("FILT-3")
    def test_packets_are_limited_by_size_and_by_count(self) -> None:
        messages = self.messages((0, 4, 0, 100), (4, 5, 1, 99), (0, 4, 5, 5), (0, 4, 0, 0))
        packed, *packets = self.encode(messages, packet_size_max=328, first_sequence=9)
        assert (packed, [len(decode(packet)) for packet in packets]) == (4, [2, 2])
        assert [decode(packet).sequence for packet in packets] == [9, 10]
        assert [(m.topic, bytes(m.payload)) for m in decode(packets[0])] == [
            ("md.a", self.payloads),
            ("md.bc", self.payloads[1:]),
        ]
        packed, *packets = self.encode(messages, messages_max=3)
        assert (packed, [len(decode(packet)) for packet in packets]) == (4, [3, 1])

    def test_batch_packing_gives_the_bytes_of_the_packer(self) -> None:
        messages = self.messages((0, 4, 0, 100), (4, 5, 7, 3))
        messages["model_id"], messages["model_version"], messages["flags"] = 3, 4, MessageFlag.SEALED
        packer = Packer(**STREAM)
        packer.add("md.a", self.payloads, model_id=3, model_version=4, flags=4)
        packer.add("md.bc", self.payloads[7:10], model_id=3, model_version=4, flags=4)
        assert self.encode(messages) == [2, packer.flush()]

    def test_extensions_are_stored_beside_the_payloads(self) -> None:
        extensions = encode_extensions({1: b"origin", 77: bytes(9)})
        messages = self.messages((0, 4, len(extensions), 20), (4, 5, 30, 3))
        messages["extensions_size"] = [len(extensions), 0]
        self.payloads = extensions + bytes(range(60))
        packer = Packer(**STREAM)
        packer.add("md.a", self.payloads[len(extensions) : len(extensions) + 20], extensions=extensions)
        packer.add("md.bc", self.payloads[30:33])
        assert self.encode(messages) == [2, packer.flush()]
        for offset, size in ((8, len(extensions)), (0, len(extensions) - 1), (90, 8), (0, 2**16 - 8)):
            messages["extensions_offset"][0], messages["extensions_size"][0] = offset, size
            with pytest.raises(LocalProtocolError):
                self.encode(messages)

    def test_packing_stops_when_the_output_is_full(self) -> None:
        messages = self.messages(*[(0, 4, 0, 8)] * 4)
        size = len(self.encode(messages, messages_max=2)[1])
        assert self.encode(messages, messages_max=2, out_size=2 * size - 1)[0] == 2
        assert self.encode(messages, messages_max=2, out_size=size - 1)[0] == 0
        assert self.encode(messages, messages_max=2, packet_count=1)[0] == 2
        assert self.encode(messages[:0]) == [0]

    @pytest.mark.parametrize(
        "part", [(0, 0, 0, 1), (6, 4, 0, 1), (2**32 - 1, 4, 0, 1), (0, 4, 99, 2), (0, 4, 1, 2**32 - 1)]
    )
    def test_rows_outside_their_buffers_are_refused(self, part: tuple[int, int, int, int]) -> None:
        with pytest.raises(LocalProtocolError, match="message 1"):
            self.encode(self.messages((0, 4, 0, 1), part))

    def test_messages_that_only_a_packer_can_send_are_refused(self) -> None:
        for field, value in (("extensions_size", 8), ("flags", MessageFlag.MORE), ("flags", MessageFlag.DIRECT)):
            messages = self.messages((0, 4, 0, 1))
            messages[field] = value
            with pytest.raises(LocalProtocolError, match="Packer"):
                self.encode(messages)

    @pytest.mark.parametrize(
        "options", [{"packet_size_max": 327}, {"packet_size_max": 65_508}, {"messages_max": 0}, {"first_sequence": -1}]
    )
    def test_options_out_of_bounds_are_refused(self, options: dict[str, int]) -> None:
        with pytest.raises(LocalProtocolError):
            self.encode(self.messages((0, 4, 0, 1)), **options)
