"""Files of messages, text and captures: complete, truncated anywhere, compressed or not."""

import gzip
import io
import struct
from pathlib import Path

import pytest

from penstock.base.errors import ConfigurationError, RemoteProtocolError
from penstock.feed.core.lines.arbiter import SessionEnded, SessionStarted, SourceLost, SourceReady
from penstock.feed.formats.csvticks import LINE_SIZE_MAX, CsvTicks
from penstock.feed.formats.itchfile import ItchFile
from penstock.feed.formats.mold import encode_packet
from penstock.feed.formats.pcap import CaptureReader
from penstock.feed.formats.stream import ByteStream
from penstock.feed.recorded.files import guess_format, open_source
from penstock.feed.recorded.inspect import inspect

MESSAGES = [b"A" * 3, b"", b"B" * 200, b"C"]
BLOCKS = b"".join(len(message).to_bytes(2, "big") + message for message in MESSAGES)


def read_itch(data: bytes) -> tuple[list[bytes], list[str]]:
    file = ItchFile(ByteStream(io.BytesIO(data)))
    messages = [message for batch in file for _, message in batch]
    return messages, [str(damage) for damage in file.damages]


def test_a_file_is_read_completely_and_truncated_at_every_byte() -> None:
    assert read_itch(BLOCKS) == (MESSAGES, [])
    ends = [0]
    for message in MESSAGES:
        ends.append(ends[-1] + 2 + len(message))
    for size in range(len(BLOCKS)):
        messages, damages = read_itch(BLOCKS[:size])
        whole = sum(end <= size for end in ends[1:])
        assert messages == MESSAGES[:whole]
        assert len(damages) == (size not in ends), size
        assert all(damage.startswith(f"at {ends[whole]}: a message is truncated") for damage in damages)


def test_a_compressed_file_of_several_members_is_read_and_truncated_at_every_byte() -> None:
    packed = gzip.compress(BLOCKS[:100]) + gzip.compress(BLOCKS[100:])
    assert read_itch(packed) == (MESSAGES, [])
    for size in range(2, len(packed)):
        messages, damages = read_itch(packed[:size])
        assert messages == MESSAGES[: len(messages)]
        assert damages or messages == MESSAGES[: len(messages)]
    assert any("truncated" in each for each in read_itch(packed[:-9])[1])


def test_a_file_larger_than_a_chunk_is_numbered_continuously() -> None:
    messages = [bytes([n % 256]) * (n % 90) for n in range(60_000)]
    file = ItchFile(ByteStream(io.BytesIO(b"".join(len(m).to_bytes(2, "big") + m for m in messages))))
    found = [(sequence, message) for batch in file for sequence, message in batch]
    assert found == list(enumerate(messages, 1))


def test_text_is_a_message_per_line(tmp_path: Path) -> None:
    path = tmp_path / "ticks.csv"
    path.write_bytes(b"time,price\r\n1,2.5\r\n\n2,2.6\n3,2.7")
    with open_source(path, has_header=True) as source:
        assert [list(batch) for batch in source.batches()] == [[(1, b"1,2.5"), (2, b"2,2.6")], [(3, b"3,2.7")]]
    ticks = CsvTicks(ByteStream(io.BytesIO(b"a, b\n")), has_header=True)
    assert list(ticks) == []
    assert ticks.columns == ["a", "b"]


def test_a_line_that_is_too_long_is_skipped_and_reported() -> None:
    long = b"x" * (LINE_SIZE_MAX + 1)
    longer = b"y" * 700_000
    data = b"1\n" + long + b"\n2\n" + longer + b"\n3"
    ticks = CsvTicks(ByteStream(io.BytesIO(data)))
    assert [each for batch in ticks for each in batch] == [(1, b"1"), (3, b"2"), (5, b"3")]
    assert [damage.offset for damage in ticks.damages] == [2, 2 + len(long) + 3]


# Captures


def frame(data: bytes, port: int = 5_000, *, vlans: int = 0) -> bytes:
    udp = struct.pack(">HHHH", 1_000, port, 8 + len(data), 0) + data
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 1, 17, 0, b"\x7f\0\0\1", b"\xef\1\2\3") + udp
    return bytes(12) + b"\x81\x00\x00\x07" * vlans + b"\x08\x00" + ip


def pcap(frames: list[bytes], order: str = "<", magic: int = 0xA1B2C3D4, step: int = 1) -> bytes:
    data = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 65_535, 1)
    for number, each in enumerate(frames):
        data += struct.pack(f"{order}IIII", 10 + number * step, 7, len(each), len(each)) + each
    return data


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    size = len(body) + 12
    return struct.pack(f"{order}II", kind, size) + body + struct.pack(f"{order}I", size)


def pcapng(frames: list[bytes], order: str = "<", resolution: int = 9) -> bytes:
    data = block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1), order)
    option = struct.pack(f"{order}HHBxxxHH", 9, 1, resolution, 0, 0)
    data += block(1, struct.pack(f"{order}HHI", 1, 0, 65_535) + option, order)
    for number, each in enumerate(frames):
        ticks = (10 + number) * 10**resolution
        head = struct.pack(f"{order}IIIII", 0, ticks >> 32, ticks & 0xFFFFFFFF, len(each), len(each))
        data += block(6, head + each, order)
    return data + block(3, struct.pack(f"{order}I", len(frames[0])) + frames[0], order)


def read(data: bytes) -> tuple[list[tuple[int, bytes]], CaptureReader]:
    reader = CaptureReader(ByteStream(io.BytesIO(data)))
    return [(each.time_ns, each.data) for each in reader], reader


@pytest.mark.parametrize("order", ["<", ">"])
def test_all_capture_formats_give_the_same_datagrams(order: str) -> None:
    frames = [frame(b"one"), frame(b"two", vlans=2)]
    expected = [(10_000_007_000, b"one"), (11_000_007_000, b"two")]
    assert read(pcap(frames, order))[0] == expected
    assert read(pcap(frames, order, 0xA1B23C4D))[0] == [(10_000_000_007, b"one"), (11_000_000_007, b"two")]
    for resolution in (6, 9):
        found, reader = read(pcapng(frames, order, resolution))
        assert found == [(10_000_000_000, b"one"), (11_000_000_000, b"two"), (0, b"one")]
        assert reader.damages.total == 0


@pytest.mark.parametrize("make", [pcap, pcapng])
def test_a_truncated_capture_gives_the_complete_frames_and_a_report(make: object) -> None:
    assert callable(make)
    data = make([frame(b"one"), frame(b"two")])
    whole = read(data)[0]
    for size in range(4, len(data)):
        found, reader = read(data[:size])
        assert found == whole[: len(found)]
        assert reader.damages.total <= 1
        if found == whole:
            assert size == len(data)


def test_frames_without_a_datagram_are_counted_or_reported() -> None:
    tcp = bytearray(frame(b"x"))
    tcp[14 + 9] = 6
    fragment = bytearray(frame(b"x"))
    fragment[14 + 6] = 0x20
    lying = bytearray(frame(b"x"))
    lying[14 + 20 + 4 : 14 + 20 + 6] = b"\xff\xff"
    arp = bytes(12) + b"\x08\x06" + bytes(28)
    data = pcap([bytes(tcp), bytes(fragment), bytes(lying), arp, b"short", frame(b"good")])
    found, reader = read(data)
    assert [content for _, content in found] == [b"good"]
    assert reader.skipped == {"TCP, not UDP": 1, "a fragment of a datagram": 1, "not IP": 1}
    assert reader.damages.total == 2


def test_a_partially_captured_frame_is_skipped_and_reported() -> None:
    data = bytearray(pcap([frame(b"one")]))
    data[24 + 12 : 24 + 16] = struct.pack("<I", 9_999)
    found, reader = read(bytes(data))
    assert found == []
    assert "of a frame's 9999 bytes" in next(iter(reader.damages)).what


def test_other_files_are_not_captures() -> None:
    with pytest.raises(RemoteProtocolError):
        read(b"nonsense")


def write_capture(path: Path, packets: list[tuple[int, bytes]]) -> Path:
    path.write_bytes(pcap([frame(data, port) for port, data in packets], step=0))
    return path


def test_two_lines_in_one_capture_fill_each_others_gaps(tmp_path: Path) -> None:
    def packet(first: int) -> bytes:
        return encode_packet("s", first, [b"%d" % first])

    packets = [(1, packet(1)), (2, packet(1)), (1, packet(3)), (2, packet(2)), (1, packet(6)), (2, packet(6))]
    path = write_capture(tmp_path / "lines.pcap", packets)
    with open_source(path) as source:
        events = [list(each.batch) if isinstance(each, SourceReady) else each for each in source]
    assert events[0] == SessionStarted("s", 1, receive_ns=10_000_007_000)
    assert [each for event in events if isinstance(event, list) for each in event] == [
        (1, b"1"), (2, b"2"), (3, b"3"), (6, b"6"),
    ]  # fmt: skip
    lost = next(each for each in events if isinstance(each, SourceLost))
    assert (lost.first, lost.last) == (4, 5)
    assert events[-1] == SessionEnded("s", 7)
    with open_source(path, destinations=["239.1.2.3:1"]) as source:
        assert sum(len(batch) for batch in source.batches()) == 3


def test_info_counts_streams_gaps_repetitions_and_resets(tmp_path: Path) -> None:
    packets = [(1, encode_packet("s", n, [b"A", b"B"])) for n in (10, 12, 12, 20, 1)]
    packets += [(1, encode_packet("s", 3, [])), (1, b"nonsense"), (2, encode_packet("t", 1, [b"Z"]))]
    path = write_capture(tmp_path / "info.pcap", packets)
    with path.open("rb") as file:
        stream = ByteStream(file)
        report = inspect(stream, guess_format(path, stream))
    first, second = report.streams
    assert (first.session, first.datagrams, first.heartbeats, first.messages) == ("s", 6, 1, 10)
    assert (first.missing, first.duplicates, first.resets) == (6, 2, 1)
    assert [(gap.first, gap.last) for gap in first.gaps] == [(14, 19)]
    assert first.types == {"A": 5, "B": 5}
    assert (second.session, second.messages) == ("t", 1)
    assert report.skipped == {"datagrams of unknown format": 1}
    assert report.damages_total == 1


@pytest.mark.parametrize("text", ["hello\n", "10:00:01 started\n10:00:02 stopped, all is well\n", "just a line"])
def test_text_without_columns_is_not_a_feed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with path.open("rb") as file, pytest.raises(ConfigurationError, match="text without columns"):
        guess_format(path, ByteStream(file))
    with path.open("rb") as file:
        assert inspect(ByteStream(file), "csv").streams[0].messages == text.rstrip().count("\n") + 1


def test_messages_of_unknown_types_are_not_readable(tmp_path: Path) -> None:
    path = tmp_path / "blocks.bin"
    path.write_bytes(3 * b"\x00\x05xyzzy")
    with path.open("rb") as file:
        stream = ByteStream(file)
        report = inspect(stream, guess_format(path, stream))
    assert report.streams[0].messages == 3
    assert not report.is_readable


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        open_source(tmp_path / "missing")
    with pytest.raises(ConfigurationError):
        open_source(write_capture(tmp_path / "x.pcap", [(1, b"x")]), framing="nonsense")
