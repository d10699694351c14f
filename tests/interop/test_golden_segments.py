"""The bytes in shared memory do not change: both decoders read the golden segments, and the writers write them."""

import struct
from pathlib import Path

from interop import segment_decoder
from interop.segment_decoder import Record
from oracles.segments import contents, forged
from penstock.shm import RegionReader, RegionWriter, RingReader, RingWriter

GOLDEN = Path(__file__).parent / "golden" / "segments"
TOKEN = 0x1A2B3C4D
PAYLOADS = [b"", b"101.25", b"exactly 12 b", b"y" * 24]
ISSUED_NS = 1_700_000_000_000_000_000


def golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


def test_both_decoders_read_the_golden_ring() -> None:
    data = golden("ring")
    ring = segment_decoder.decode_ring(data)
    assert (ring.capacity, ring.event_size_max, ring.token, ring.end) == (256, 24, TOKEN, "closed")
    assert ring.events == list(enumerate(PAYLOADS, start=1))
    with forged("ring", data, bytes(4)) as (segment, _), RingReader(segment) as reader:
        assert list(reader) == PAYLOADS


def test_the_ring_writer_writes_the_golden_ring() -> None:
    """Except for the token, which is random, and its checksums."""
    with RingWriter.create(256, 24) as writer:
        (start,) = struct.unpack_from("<I", contents(writer.segment)[0], 24)
        assert segment_decoder.decode_ring(contents(writer.segment)[0]).end == "blank"
        writer.write_many(PAYLOADS)
        (data, doorbell) = contents(writer.segment)
    ring = segment_decoder.decode_ring(data)
    assert (ring.token, ring.events, ring.end) == (start, list(enumerate(PAYLOADS, start=1)), "blank")
    assert data[:24] == golden("ring")[:24]
    assert doorbell == bytes(4)


def test_both_decoders_read_the_golden_region() -> None:
    data = golden("region")
    expected = [None, Record(4, (5, 6, ISSUED_NS), [(2, b"b" * 8), (4, b"c" * 16), (4, b"a" * 8)])]
    assert segment_decoder.decode_region(data) == expected
    with forged("region", data) as (segment, _), RegionReader(segment) as reader:
        assert reader.read(0) is None
        record = reader.read(1)
        assert record is not None
        assert record.payload == b"b" * 8 + b"c" * 16 + b"a" * 8
        assert (record.update_count, record.part_update_counts) == (2, (1, 2, 2))
        assert (record.started_ns, record.finished_ns, record.issued_ns) == (5, 6, ISSUED_NS)


def test_both_decoders_report_a_withdrawn_record() -> None:
    data = bytearray(golden("region"))
    data[-(len(data) - 128) // 2 + 39] |= 0x80
    (record,) = segment_decoder.decode_region(bytes(data))[1:]
    assert record is not None
    assert record.is_withdrawn
    with forged("region", bytes(data)) as (segment, _), RegionReader(segment) as reader:
        found = reader.read(1)
        assert found is not None
        assert (found.is_withdrawn, found.merged) == (True, 0)


def test_the_region_writer_writes_the_golden_region() -> None:
    """Except for the time of the write, and its checksum."""
    with RegionWriter.create(2, [8, 16, 8]) as writer:
        writer.write(1, b"b" * 8)
        writer.write(1, b"c" * 16 + b"a" * 8, first_part=1, started_ns=5, finished_ns=6)
        (data,) = contents(writer.segment)
    assert segment_decoder.decode_region(data)[0] is None
    (record,) = segment_decoder.decode_region(data)[1:]
    assert record is not None
    expected = bytearray(golden("region"))
    stride = (len(data) - 128) // 2
    head = 128 + stride
    expected[head + 24 : head + 36] = data[head + 24 : head + 36]
    assert data == expected
