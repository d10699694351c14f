"""Packets of a stream service on their way to the application: whatever way a connection's bytes are cut, every packet
arrives once and in order, and everything else reaches the session."""

import threading
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import FrameError
from penstock.base.limits import PACKET_SIZE_MAX
from penstock.client._packet_intake import PacketCutter, PacketIntake
from penstock.middleware.unicast import CONNECTION, PROTOCOL, Packets, StreamRefused, UnicastMessage
from penstock.net.core.control import Ping
from penstock.net.core.framing import FrameDecoder, encode_frame
from penstock.wire import DatagramBatch

SIZE_MAX = CONNECTION.message_size_max

packets = st.lists(st.binary(max_size=300), max_size=20)
ordinary = packets.map(lambda each: PROTOCOL.encode(Packets(each), SIZE_MAX))
foreign = packets.map(lambda each: msgspec.msgpack.encode({"packets": each, "type": "packets"}))
others = st.sampled_from([Ping(7), StreamRefused("slow", "too slow")]).map(msgspec.msgpack.encode)
rubbish = st.binary(max_size=40)
cuts = st.lists(st.integers(1, 500), max_size=30)


def cutter_of(intake: PacketIntake, number: int = 1, frames_max: int = 1_000_000) -> PacketCutter:
    return PacketCutter(
        intake, number, frame_size_max=SIZE_MAX, frames_max=frames_max, tell_room=lambda: told.append(number)
    )


told: list[int] = []


def pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    cut = []
    for size in sizes:
        cut.append(data[:size])
        data = data[size:]
    return [*cut, data]


def taken(intake: PacketIntake, batch_size: int = 7) -> list[tuple[Any, bytes]]:
    """All packets with their cutter's number, and other content."""
    batch, found = DatagramBatch(batch_size), []
    while (source := intake.take(batch, 0)) is not None:
        if isinstance(source, PacketCutter):
            assert {batch.source(index) for index in range(len(batch))} <= {("", source.number)}
            found += [(source.number, bytes(batch.datagram(index))) for index in range(len(batch))]
        else:
            found.append((source, b""))
    return found


def packets_in(frames: list[bytes]) -> list[bytes]:
    said: list[UnicastMessage] = [PROTOCOL.decode(frame) for frame in frames]
    return [packet for each in said if isinstance(each, Packets) for packet in each.packets]


@given(st.lists(st.one_of(ordinary, ordinary, ordinary, others, foreign), max_size=20), cuts)
def test_every_packet_arrives_once_and_in_order(frames: list[bytes], sizes: list[int]) -> None:
    intake = PacketIntake()
    cutter = cutter_of(intake)
    decoder, left = FrameDecoder(SIZE_MAX), []
    for piece in pieces(b"".join(map(encode_frame, frames)), sizes):
        left += decoder.feed(cutter.feed(piece))
    found = [packet for _, packet in taken(intake)]
    assert found + packets_in(left) == packets_in(frames)
    said = [PROTOCOL.decode(frame) for frame in frames]
    assert [each for each in map(PROTOCOL.decode, left) if not isinstance(each, Packets)] == [
        each for each in said if not isinstance(each, Packets)
    ]


@given(st.lists(st.one_of(ordinary.map(encode_frame), rubbish, rubbish.map(encode_frame)), max_size=10), cuts)
def test_whatever_is_not_a_frame_with_packets_reaches_the_session(parts: list[bytes], sizes: list[int]) -> None:
    intake = PacketIntake()
    cutter = cutter_of(intake)
    data = b"".join(parts)
    left = b"".join(cutter.feed(piece) for piece in pieces(data, sizes))
    found = [packet for _, packet in taken(intake)]
    decoder = FrameDecoder(SIZE_MAX)
    try:
        frames = decoder.feed(data)
    except FrameError as error:
        frames = error.frames
    expected, session = [], []
    for index, frame in enumerate(frames):
        if not frame.startswith(b"\x82\xa4type\xa7packets\xa7packets"):
            session = frames[index:]
            break
        expected += packets_in([frame])
    assert found[: len(expected)] == expected
    assert all(encode_frame(frame) in left for frame in session[:1])


@given(st.lists(st.tuples(st.integers(0, 2), packets), max_size=20), st.integers(1, 9))
def test_connections_and_other_content_keep_their_order(said: list[tuple[int, list[bytes]]], batch_size: int) -> None:
    intake = PacketIntake()
    cutters = [cutter_of(intake, number) for number in range(3)]
    expected: list[tuple[Any, bytes]] = []
    for at, (number, each) in enumerate(said):
        if at % 5 == 4:
            intake.put(f"content {at}")
            expected.append((f"content {at}", b""))
        cutters[number].put(encode_frame(PROTOCOL.encode(Packets(each), SIZE_MAX)))
        expected += [(number, packet) for packet in each]
    assert taken(intake, batch_size) == expected


def test_a_full_intake_says_when_there_is_room() -> None:
    intake, batch = PacketIntake(), DatagramBatch(1)
    told.clear()
    cutter = cutter_of(intake, 5, frames_max=4)
    frame = encode_frame(PROTOCOL.encode(Packets([b"packet"]), SIZE_MAX))
    cutter.feed(3 * frame)
    assert not cutter.is_full
    cutter.feed(2 * frame)
    assert cutter.is_full
    for _ in range(2):
        assert intake.take(batch, 0) is cutter
    assert told == []
    assert intake.take(batch, 0) is cutter
    assert told == [5]
    assert not cutter.is_full
    assert len(taken(intake)) == 2


def test_the_longest_packets_and_frames_of_many_packets() -> None:
    intake = PacketIntake()
    cutter = cutter_of(intake)
    long = [[bytes([number]) * PACKET_SIZE_MAX for number in range(4)], [b"x"] * 4_096, [], [b""] * 16]
    for each in long:
        assert cutter.feed(encode_frame(PROTOCOL.encode(Packets(each), SIZE_MAX))) == b""
    assert [packet for _, packet in taken(intake, 64)] == [packet for each in long for packet in each]


def test_frames_beyond_the_limits_reach_the_session() -> None:
    intake = PacketIntake()
    too_long = encode_frame(msgspec.msgpack.encode({"type": "packets", "packets": [b"x" * (PACKET_SIZE_MAX + 1)]}))
    too_many = encode_frame(msgspec.msgpack.encode({"type": "packets", "packets": [b""] * 4_097}))
    too_large = (SIZE_MAX + 1).to_bytes(4, "little")
    for each in (too_long, too_many, too_large):
        assert cutter_of(intake).feed(each) == each
    assert taken(intake) == []


def test_the_reader_is_woken() -> None:
    intake, batch = PacketIntake(), DatagramBatch(4)
    cutter = cutter_of(intake)
    frame = encode_frame(PROTOCOL.encode(Packets([b"packet"]), SIZE_MAX))
    found: list[Any] = []
    reading = threading.Thread(target=lambda: found.append(intake.take(batch, 120 * 10**9)))
    reading.start()
    cutter.feed(frame)
    reading.join(120)
    assert found == [cutter]
    assert intake.take(batch, 1_000_000) is None
