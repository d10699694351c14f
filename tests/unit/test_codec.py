"""The packet format: its layout, accepted packets, and refused packets with their causes."""

import gc
import struct

import pytest

from interop.packet_decoder import checksum, crc32c, with_checksum
from penstock.base.counters import Cause
from penstock.base.errors import LocalProtocolError, PacketError
from penstock.base.limits import PACKET_SIZE_MAX
from penstock.wire import (
    RANGES_MAX,
    Extension,
    Kind,
    MessageFlag,
    Packer,
    PacketFlag,
    PacketMessage,
    _codec,
    decode,
    encode_extensions,
)

STREAM = (11, 0xEF010203, 3)


def flushed(packer: Packer, flags: int = 0) -> bytes:
    packet = packer.flush(flags)
    assert packet is not None
    return packet


@pytest.fixture
def packet() -> bytes:
    """Two messages, one with an extension, and padding in every place that can have it."""
    packer = Packer(*STREAM)
    packer.add("md.a", b"first", extensions=encode_extensions({Extension.TAGS: b"x"}))
    packer.add("md.b", b"second content")
    return flushed(packer)


def cause_of(data: bytes) -> str:
    with pytest.raises(PacketError) as caught:
        decode(data)
    return caught.value.cause


def header(kind: int = 1, count: int = 0, body: bytes = b"", extensions_size: int = 0, publisher_id: int = 1) -> bytes:
    """A packet with any body and a valid checksum."""
    start = struct.pack("<HBBHHII", 0x5350, 1, kind, 0, count, 48 + len(body), 0)
    rest = struct.pack("<QIIQIHH", publisher_id, 2, 3, 4, 0, extensions_size, 0)
    return with_checksum(start + rest + body)


def message(flags: int = 0, topic: bytes = b"t", content: bytes = b"", extensions: bytes = b"") -> bytes:
    head = struct.pack("<HHIHHHH", flags, len(topic), len(content), 0, 0, len(extensions), 0)
    return head + extensions + topic + bytes(-len(topic) % 8) + content + bytes(-len(content) % 8)


def test_a_packet_in_a_cycle_releases_its_buffer_before_the_buffers_owner_is_released(packet: bytes) -> None:
    data = bytearray(packet)
    cycle: list[object] = [decode(data)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    data.extend(b"x")  # no references remain


class TestLayout:
    @pytest.mark.spec("FILT-1")
    def test_packet_header_fields_are_contiguous(self) -> None:
        fields = [
            ("MAGIC", 2),
            ("VERSION", 1),
            ("KIND", 1),
            ("FLAGS", 2),
            ("COUNT", 2),
            ("SIZE", 4),
            ("CHECKSUM", 4),
            ("PUBLISHER_ID", 8),
            ("GROUP", 4),
            ("EPOCH", 4),
            ("SEQUENCE", 8),
            ("GAP", 4),
            ("EXTENSIONS_SIZE", 2),
            ("RESERVED", 2),
        ]
        assert self.offsets("PACKET", fields) == _codec.PACKET_HEADER_SIZE == 48

    @pytest.mark.spec("FILT-1")
    def test_message_header_fields_are_contiguous(self) -> None:
        fields = [
            ("FLAGS", 2),
            ("TOPIC_SIZE", 2),
            ("SIZE", 4),
            ("MODEL_ID", 2),
            ("MODEL_VERSION", 2),
            ("EXTENSIONS_SIZE", 2),
            ("RESERVED", 2),
        ]
        assert self.offsets("MESSAGE", fields) == _codec.MESSAGE_HEADER_SIZE == 16

    def test_extension_and_range_fields_are_contiguous(self) -> None:
        assert self.offsets("EXTENSION", [("TYPE", 2), ("SIZE", 2)]) == _codec.EXTENSION_HEADER_SIZE == 4
        assert self.offsets("RANGE", [("FIRST", 8), ("LAST", 8)]) == _codec.RANGE_SIZE == 16

    def test_constants_have_their_documented_values(self) -> None:
        assert struct.pack("<H", _codec.PACKET_MAGIC) == b"PS"
        assert _codec.PACKET_VERSION == 1
        assert [*map(int, Kind)] == [1, 2, 3]
        assert [*map(int, PacketFlag)] == [1, 2, 8, 16]
        assert [*map(int, MessageFlag)] == [1, 2, 4, 8]
        assert [*map(int, Extension)] == [1, 2, 3, 4, 5, 6]
        assert RANGES_MAX == 89

    def test_every_error_has_a_cause(self) -> None:
        assert sorted(_codec.ERROR_CAUSES) == list(range(1, _codec.ERROR_COUNT))

    @staticmethod
    def offsets(prefix: str, fields: list[tuple[str, int]]) -> int:
        at = 0
        for name, size in fields:
            assert getattr(_codec, f"{prefix}_{name}_AT") == at, name
            at += size
        return at

    def test_the_independent_checksum_is_crc32c(self, packet: bytes) -> None:
        assert crc32c(b"123456789") == 0xE3069283
        assert struct.unpack_from("<I", packet, 12) == (checksum(packet),)


@pytest.mark.spec("FILT-14")
class TestBadPackets:
    def test_every_truncation(self, packet: bytes) -> None:
        for size in range(len(packet)):
            assert cause_of(packet[:size]) == (Cause.FOREIGN if size < 48 else Cause.TRUNCATED), size

    def test_every_truncation_with_adjusted_size_and_checksum_is_refused(self, packet: bytes) -> None:
        for size in range(48, len(packet)):
            cut = with_checksum(packet[:8] + struct.pack("<I", size) + packet[12:size])
            assert cause_of(cut) == Cause.LENGTH, size

    @pytest.mark.parametrize("trailing", [b"\0", b"\0" * 8, b"PS" * 100])
    def test_trailing_bytes_are_refused(self, packet: bytes, trailing: bytes) -> None:
        assert cause_of(packet + trailing) == Cause.LENGTH
        size = struct.pack("<I", len(packet + trailing))
        assert cause_of(with_checksum(packet[:8] + size + packet[12:] + trailing)) == Cause.LENGTH

    def test_every_corrupted_byte_is_detected(self, packet: bytes) -> None:
        for at in range(len(packet)):
            for mask in (0x01, 0x80, 0xFF):
                damaged = bytearray(packet)
                damaged[at] ^= mask
                cause = cause_of(bytes(damaged))
                if at < 2:
                    assert cause == Cause.FOREIGN
                elif at == 2:
                    assert cause == Cause.VERSION
                elif 8 <= at < 12:
                    assert cause in (Cause.LENGTH, Cause.TRUNCATED)
                else:
                    assert cause == Cause.CHECKSUM

    def test_checks_have_a_documented_order(self) -> None:
        """Each packet has the fault of its line and of all lines below."""
        contents = header(kind=1, count=9, publisher_id=0)
        kind = header(kind=4, count=9, publisher_id=0)
        wrong_checksum = kind[:12] + b"\0\0\0\0" + kind[16:]
        cut = wrong_checksum[:8] + struct.pack("<I", 49) + wrong_checksum[12:]
        version = cut[:2] + b"\2" + cut[3:]
        foreign = b"X" + version[1:]
        assert [cause_of(data) for data in (foreign, version, cut, wrong_checksum, kind, contents)] == [
            Cause.FOREIGN,
            Cause.VERSION,
            Cause.TRUNCATED,
            Cause.CHECKSUM,
            Cause.KIND,
            Cause.LENGTH,
        ]

    @pytest.mark.parametrize("size", [0, 47, PACKET_SIZE_MAX + 1, 2**32 - 1])
    def test_impossible_packet_sizes_are_refused(self, size: int) -> None:
        data = header()
        assert cause_of(data[:8] + struct.pack("<I", size) + data[12:]) == Cause.LENGTH

    def test_a_datagram_longer_than_any_packet_is_refused(self) -> None:
        assert cause_of(header(body=bytes(PACKET_SIZE_MAX))) == Cause.LENGTH

    @pytest.mark.parametrize("kind", [0, 4, 255])
    def test_unknown_kinds_are_refused(self, kind: int) -> None:
        assert cause_of(header(kind=kind)) == Cause.KIND

    @pytest.mark.parametrize(
        "data",
        [
            header(publisher_id=0),
            header(count=1),
            header(count=0, body=message()),
            header(count=2, body=message()),
            header(count=65_535, body=message()),
            header(extensions_size=8),
            header(extensions_size=4, body=bytes(8)),
            header(extensions_size=8, body=struct.pack("<HHI", 9, 5, 0)),
            header(extensions_size=8, body=struct.pack("<HHI", 9, 65_535, 0)),
            header(count=1, body=message(extensions=struct.pack("<HHI", 9, 5, 0))),
            header(count=1, body=message(extensions=bytes(4)) + bytes(4)),
            header(count=1, body=message(topic=b"")),
            header(count=1, body=message(topic=b"t" * 256)),
            header(count=1, body=struct.pack("<HHIHHHH", 0, 65_535, 0, 0, 0, 0, 0) + bytes(64)),
            header(count=1, body=struct.pack("<HHIHHHH", 0, 1, 2**32 - 1, 0, 0, 0, 0) + bytes(64)),
            header(count=1, body=struct.pack("<HHIHHHH", 0, 1, 0, 0, 0, 65_528, 0) + bytes(64)),
            header(count=2, body=message(flags=MessageFlag.MORE, content=b"1") + message()),
            header(count=2, body=message() + message(flags=MessageFlag.CONTINUATION, content=b"1")),
            header(count=1, body=message(flags=MessageFlag.MORE)),
            header(kind=2),
            header(kind=2, count=1, body=struct.pack("<QQ", 2, 1)),
            header(kind=2, count=1, body=struct.pack("<QQQ", 1, 2, 3)),
            header(kind=3, count=2, body=struct.pack("<QQ", 1, 2)),
        ],
    )
    def test_impossible_contents_are_refused(self, data: bytes) -> None:
        assert cause_of(data) == Cause.LENGTH

    @pytest.mark.parametrize(
        "topic",
        [
            *(
                b"\x80",
                b"\xc1\x81",
                b"\xc3",
                b"\xe0\x9f\xbf",
                b"\xed\xa0\x80",
                b"\xf0\x8f\xbf\xbf",
                b"\xf4\x90\x80\x80",
            ),
            *(b"\xf5\x80\x80\x80", b"\xff", b"12345678\xe2\x82", b"\xe2\x82\x41", b"\xf0\x9f\x98\x41"),
        ],
    )
    def test_topics_that_are_not_text_are_refused(self, topic: bytes) -> None:
        assert cause_of(header(count=1, body=message(topic=topic))) == Cause.LENGTH
        with pytest.raises(LocalProtocolError):
            Packer(*STREAM).add(topic, b"")

    def test_padding_is_not_part_of_the_topic(self) -> None:
        data = bytearray(header(count=1, body=message(topic="€".encode())))
        struct.pack_into("<H", data, 50, 2)
        assert cause_of(with_checksum(bytes(data))) == Cause.LENGTH

    def test_the_error_names_the_position(self) -> None:
        with pytest.raises(PacketError, match="byte 6:"):
            decode(header(count=65_535, body=message()))
        with pytest.raises(PacketError, match="byte 72"):
            decode(header(count=2, body=message() + message(topic=b"")))


class TestDecode:
    def test_a_packed_packet_is_decoded_unchanged(self, packet: bytes) -> None:
        decoded = decode(packet)
        assert (decoded.kind, decoded.flags, decoded.sequence, decoded.gap, decoded.size) == (1, 0, 1, 0, len(packet))
        assert (decoded.publisher_id, decoded.group, decoded.epoch) == STREAM
        assert [(m.topic, bytes(m.payload), m.extensions) for m in decoded] == [
            ("md.a", b"first", {Extension.TAGS: b"x"}),
            ("md.b", b"second content", {}),
        ]
        assert decoded.ranges == []
        assert not decoded.is_fragmented
        assert "sequence=1" in repr(decoded)
        assert "md.a" in repr(decoded[0])

    def test_a_packet_is_a_sequence_of_messages(self, packet: bytes) -> None:
        decoded = decode(packet)
        assert len(decoded) == 2
        assert decoded[-1].topic == decoded[1].topic == "md.b"
        for index in (2, -3):
            with pytest.raises(IndexError):
                decoded[index]

    def test_payloads_are_aligned_views_into_the_packet(self, packet: bytes) -> None:
        buffer = bytearray(packet)
        decoded = decode(buffer)
        payload = decoded[1].payload
        buffer[packet.index(b"second")] = ord("S")
        assert bytes(payload) == b"Second content"
        assert payload.readonly
        assert packet.index(b"second") % 8 == packet.index(b"first") % 8 == 0

    def test_payloads_outlive_the_packet_and_keep_the_buffer_alive(self, packet: bytes) -> None:
        buffer = bytearray(packet)
        payload = decode(buffer)[0].payload
        with pytest.raises(BufferError):
            buffer.clear()
        assert bytes(payload) == b"first"

    def test_releasing_the_data_leaves_the_packet_usable(self, packet: bytes) -> None:
        decoded = decode(bytearray(packet))
        assert decoded.data == packet
        decoded.data.release()
        assert decoded[0].topic == "md.a"

    def test_any_kind_of_buffer_is_accepted(self, packet: bytes) -> None:
        words = memoryview(bytearray(packet)).cast("I")
        assert [m.topic for m in decode(words)] == ["md.a", "md.b"]
        assert [m.topic for m in decode(memoryview(b"x" + packet)[1:])] == ["md.a", "md.b"]

    @pytest.mark.spec("FILT-1")
    def test_unknown_extensions_are_skipped(self) -> None:
        extensions = encode_extensions({999: b"12345", Extension.TAGS: b"a"})
        data = header(count=1, body=extensions + message(extensions=extensions), extensions_size=len(extensions))
        assert decode(data).extensions == decode(data)[0].extensions == {999: b"12345", Extension.TAGS: b"a"}

    def test_unknown_flags_are_ignored(self) -> None:
        packer = Packer(*STREAM)
        packer.add("t", b"content", flags=0x4000)
        decoded = decode(flushed(packer, flags=0x8000))
        assert (decoded.flags, decoded[0].flags, bytes(decoded[0].payload)) == (0x8000, 0x4000, b"content")

    def test_reserved_bytes_and_padding_are_ignored(self) -> None:
        data = bytearray(header(count=1, body=message(topic=b"t", content=b"c")))
        data[46:48] = data[62:64] = b"??"
        data[65:72] = data[73:80] = b"padding"
        decoded = decode(with_checksum(bytes(data)))
        assert (decoded[0].topic, bytes(decoded[0].payload)) == ("t", b"c")

    def test_a_reassembled_message_equals_its_parts(self) -> None:
        whole = PacketMessage("t", b"content", model_id=1, model_version=2, flags=4, extensions={6: b"x"})
        assert (whole.topic, bytes(whole.payload), whole.model_id, whole.model_version) == ("t", b"content", 1, 2)
        assert (whole.flags, whole.extensions) == (4, {6: b"x"})
        assert PacketMessage("t", b"").extensions == {}
