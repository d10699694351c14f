"""The packer: packing, fragments, ranges, and restamping a packet."""

import struct
from typing import Any

import pytest

from penstock.base.errors import LocalProtocolError, PacketError
from penstock.base.limits import MESSAGE_SIZE_MAX, PACKET_SIZE_DEFAULT, PACKET_SIZE_MAX
from penstock.wire import (
    PACKET_SIZE_MIN,
    RANGES_MAX,
    Extension,
    Kind,
    MessageFlag,
    Packer,
    PacketFlag,
    decode,
    encode_destination,
    encode_extensions,
    encode_gone,
    encode_nack,
    restamp,
)

STREAM = (11, 0xEF010203, 3)
FRAGMENT = MessageFlag.CONTINUATION | MessageFlag.MORE


def flushed(packer: Packer) -> bytes:
    packet = packer.flush()
    assert packet is not None
    return packet


@pytest.fixture
def packet() -> bytes:
    packer = Packer(*STREAM)
    packer.add("md.a", b"content")
    return flushed(packer)


class TestPacker:
    @pytest.mark.spec("FILT-3")
    def test_messages_share_a_packet_until_it_is_full(self) -> None:
        packer = Packer(*STREAM, packet_size_max=PACKET_SIZE_MIN)
        assert packer.add("t", b"1" * 104) == []
        assert packer.add("t", b"2" * 128) == []
        assert packer.pending_count == 2
        (closed,) = packer.add("t", b"3")
        assert len(closed) == PACKET_SIZE_MIN
        assert (packer.pending_count, packer.next_sequence) == (1, 2)
        assert [len(decode(closed)), len(decode(flushed(packer)))] == [2, 1]

    @pytest.mark.spec("FILT-3")
    def test_flush_sends_immediately(self) -> None:
        packer = Packer(*STREAM)
        assert packer.flush() is None
        packer.add("t", b"now")
        assert len(decode(flushed(packer))) == 1
        assert packer.flush() is None

    def test_sequences_are_consecutive_over_all_packets(self) -> None:
        packer = Packer(*STREAM, first_sequence=100)
        packets = [packer.empty(PacketFlag.KEEP_ALIVE), *packer.add("t", bytes(5_000)), flushed(packer)]
        packets.append(packer.empty(PacketFlag.GOODBYE))
        assert [decode(packet).sequence for packet in packets] == list(range(100, 106))
        assert packer.next_sequence == 106

    @pytest.mark.spec("FILT-2")
    @pytest.mark.parametrize("size", [1_400, 1_401, 1_408, 2_800, 2_801, 100_000])
    def test_a_long_message_is_fragmented(self, size: int) -> None:
        packer = Packer(*STREAM)
        packer.add("before", b"-")
        content = bytes(index % 251 for index in range(size))
        tags = {Extension.TAGS: b"once"}
        packets = [*packer.add("t", content, model_id=5, flags=4, extensions=encode_extensions(tags))]
        assert packer.add("after", b"-") == []
        packets.append(flushed(packer))
        decoded = [decode(packet) for packet in packets][1:]
        fragments = [packet[0] for packet in decoded]
        assert [fragment.flags & FRAGMENT for fragment in fragments] == [2, *[3] * (len(fragments) - 2), 1]
        assert b"".join(fragment.payload for fragment in fragments) == content
        assert {(m.topic, m.model_id, m.flags & 4) for m in fragments} == {("t", 5, 4)}
        assert [fragment.extensions for fragment in fragments] == [tags] + [{}] * (len(fragments) - 1)
        assert all(packet.is_fragmented for packet in decoded)
        assert decoded[-1][1].topic == "after"
        assert not decode(packets[0]).is_fragmented

    def test_a_message_that_just_fits_is_not_fragmented(self) -> None:
        packer = Packer(*STREAM)
        content = bytes(PACKET_SIZE_DEFAULT - 48 - 16 - 8)
        assert packer.add("t", content) == []
        packet = flushed(packer)
        assert len(packet) == PACKET_SIZE_DEFAULT
        assert not decode(packet).is_fragmented

    def test_an_empty_packet_does_not_overtake_waiting_messages(self) -> None:
        packer = Packer(*STREAM)
        packer.add("t", b"")
        with pytest.raises(LocalProtocolError, match="flush"):
            packer.empty(PacketFlag.KEEP_ALIVE)

    @pytest.mark.parametrize(
        ("topic", "options"),
        [
            ("", {}),
            ("t" * 256, {}),
            ("ü" * 128, {}),
            ("\ud800", {}),
            ("t", {"flags": MessageFlag.MORE}),
            ("t", {"flags": MessageFlag.CONTINUATION}),
            ("t", {"flags": 0x10000}),
            ("t", {"flags": -1}),
            ("t", {"flags": MessageFlag.DIRECT}),
            ("t", {"model_id": 65_536}),
            ("t", {"model_version": 2**70}),
            ("t", {"extensions": b"1234"}),
            ("t", {"extensions": struct.pack("<HHI", 1, 5, 0)}),
            ("t", {"extensions": encode_extensions({1: bytes(2_000)})}),
            ("t", {"extensions": encode_extensions({1: bytes(65_528)})}),
        ],
    )
    def test_unsendable_messages_are_refused_without_effect(self, topic: str, options: dict[str, Any]) -> None:
        packer = Packer(*STREAM)
        packer.add("before", b"")
        with pytest.raises(LocalProtocolError):
            packer.add(topic, b"content", **options)
        assert (packer.pending_count, packer.next_sequence) == (1, 1)

    def test_the_longest_message_is_sent_and_a_longer_one_is_refused(self) -> None:
        packer = Packer(*STREAM, packet_size_max=PACKET_SIZE_MAX)
        packets = [*packer.add("t", bytes(MESSAGE_SIZE_MAX)), flushed(packer)]
        assert sum(len(decode(packet)[0].payload) for packet in packets) == MESSAGE_SIZE_MAX
        with pytest.raises(LocalProtocolError):
            packer.add("t", bytes(MESSAGE_SIZE_MAX + 1))

    def test_a_direct_message_needs_no_topic(self) -> None:
        packer = Packer(*STREAM)
        extensions = {Extension.TAGS: b"tag", Extension.DESTINATION: encode_destination(9)}
        packer.add("", b"hello", flags=MessageFlag.DIRECT, extensions=encode_extensions(extensions))
        (direct,) = decode(flushed(packer))
        assert (direct.topic, direct.flags, direct.extensions) == ("", MessageFlag.DIRECT, extensions)

    @pytest.mark.parametrize("stream", [(0, 1, 1), (2**64, 1, 1), (1, 2**32, 1), (1, -1, 1), (1, 1, 2**32)])
    def test_impossible_streams_are_refused(self, stream: tuple[int, int, int]) -> None:
        with pytest.raises(LocalProtocolError):
            Packer(*stream)
        with pytest.raises(LocalProtocolError):
            encode_nack(*stream, [(1, 1)])

    @pytest.mark.parametrize("size", [0, PACKET_SIZE_MIN - 1, PACKET_SIZE_MAX + 1])
    def test_packet_sizes_out_of_bounds_are_refused(self, size: int) -> None:
        with pytest.raises(LocalProtocolError):
            Packer(*STREAM, packet_size_max=size)


class TestRangesAndRestamp:
    def test_nack_and_gone_carry_ranges(self) -> None:
        ranges = [(index, 2**64 - 1) for index in range(RANGES_MAX)]
        for encode, kind in ((encode_nack, Kind.NACK), (encode_gone, Kind.GONE)):
            data = encode(*STREAM, ranges)
            decoded = decode(data)
            assert len(data) <= PACKET_SIZE_DEFAULT
            assert (decoded.kind, decoded.ranges, len(decoded), list(decoded)) == (kind, ranges, 0, [])
            assert not decoded.is_fragmented

    @pytest.mark.parametrize("ranges", [[], [(1, 1)] * (RANGES_MAX + 1), [(2, 1)], [(0, 2**64)], [(-1, 1)]])
    def test_impossible_ranges_are_refused(self, ranges: list[tuple[int, int]]) -> None:
        with pytest.raises(LocalProtocolError):
            encode_nack(*STREAM, ranges)

    def test_restamp_changes_flags_gap_and_checksum_only(self, packet: bytes) -> None:
        changed = restamp(restamp(memoryview(packet), set_flags=PacketFlag.REPAIR), gap=5)
        decoded = decode(changed)
        assert (decoded.flags, decoded.gap) == (PacketFlag.REPAIR, 5)
        assert [at for at in range(len(packet)) if changed[at] != packet[at] and not 12 <= at < 16] == [4, 40]
        assert restamp(packet) == packet

    def test_restamp_refuses_damaged_packets_and_unsuitable_values(self, packet: bytes) -> None:
        with pytest.raises(PacketError):
            restamp(packet[:-1] + b"!")
        for options in ({"gap": 2**32}, {"gap": -1}, {"set_flags": 65_536}):
            with pytest.raises(LocalProtocolError):
                restamp(packet, **options)
