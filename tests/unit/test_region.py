"""The record region, both ends in one process."""

import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from oracles.segments import contents, forged
from penstock.base.crc32c import crc32c
from penstock.base.errors import LocalProtocolError, RecordUnavailableError, SharedMemoryError
from penstock.model import shipped
from penstock.shm import RegionMarks, RegionReader, RegionWriter, RingWriter
from penstock.shm._region import PART_TRAILER_SIZE, RECORD_HEADER_SIZE, REGION_HEADER_SIZE

QUOTE = shipped("quote")
PART_SIZES = [part.size for part in QUOTE.parts]
NS_PER_MS = 1_000_000


@pytest.fixture
def writer() -> Iterator[RegionWriter]:
    with RegionWriter.create(10, PART_SIZES) as writer:
        yield writer


@pytest.fixture
def reader(writer: RegionWriter) -> Iterator[RegionReader]:
    with RegionReader(writer.segment, QUOTE) as reader:
        yield reader


@pytest.mark.spec("ADPT-1")
def test_the_newest_version_is_read_and_nothing_queues_up(writer: RegionWriter, reader: RegionReader) -> None:
    assert reader.read(3) is None
    for size in (100, 200, 300):
        writer.write(3, QUOTE.new(symbol="IBM", bid_price="100.25", bid_size=size))
    record = reader.read(3)
    assert record is not None
    assert record.update_count == 3
    assert (record.message.symbol, record.message.bid_size) == ("IBM", 300)
    assert reader.read(2) is None
    assert reader.read(4) is None


@pytest.mark.spec("ADPT-4")
def test_parts_are_written_alone_or_with_their_neighbours(writer: RegionWriter, reader: RegionReader) -> None:
    bid, common, ask = b"b" * 64, b"c" * 96, b"a" * 64
    assert writer.write(0, bid + common) == 1
    record = reader.read(0)
    assert record is not None
    assert (record.payload, record.part_update_counts) == (bid + common + bytes(64), (1, 1, 1))
    writer.write(0, common + ask, first_part=1)
    record = reader.read(0)
    assert record is not None
    assert (record.payload, record.part_update_counts) == (bid + common + ask, (1, 2, 2))
    writer.write(0, b"B" * 64)
    record = reader.read(0)
    assert record is not None
    assert (record.payload, record.part_update_counts, record.update_count) == (b"B" * 64 + common + ask, (3, 2, 2), 3)


def test_payloads_that_are_not_whole_parts_are_refused(writer: RegionWriter, reader: RegionReader) -> None:
    for size, first_part in ((0, 0), (63, 0), (65, 0), (225, 0), (160, 2), (64, 3), (64, -1)):
        with pytest.raises(LocalProtocolError, match="part"):
            writer.write(0, bytes(size), first_part=first_part)
    for index in (-1, 10, 1 << 70):
        with pytest.raises(LocalProtocolError, match="no record"):
            writer.write(index, bytes(224))
        with pytest.raises(LocalProtocolError, match="no record"):
            reader.read(index)
    assert reader.read(0) is None


@pytest.mark.spec("ADPT-8")
def test_the_producers_times_are_in_the_record(writer: RegionWriter, reader: RegionReader) -> None:
    before_ns = time.time_ns()
    writer.write(1, bytes(224), started_ns=1_000, finished_ns=2_000)
    record = reader.read(1)
    assert record is not None
    assert (record.started_ns, record.finished_ns) == (1_000, 2_000)
    assert before_ns <= record.issued_ns <= time.time_ns()


def test_reading_into_buffers_and_in_batches(writer: RegionWriter, reader: RegionReader) -> None:
    for index in (0, 2, 9):
        writer.write(index, bytes([index + 1]) * 224)
    buffer = bytearray(224)
    assert reader.read_into(2, buffer) == 1
    assert buffer == bytes([3]) * 224
    assert reader.read_into(1, buffer) == 0
    rows, counts = np.zeros((4, 224), np.uint8), np.ones(4, np.uint64)
    assert reader.read_batch(np.array([9, 1, 0, 2], np.uint32), rows, counts) == 3
    assert counts.tolist() == [1, 0, 1, 1]
    assert rows[[0, 2, 3], 0].tolist() == [10, 1, 3]
    assert reader.read_batch(np.zeros(0, np.uint32), rows[:0], counts[:0]) == 0
    with pytest.raises(LocalProtocolError, match="no record 10"):
        reader.read_batch(np.array([0, 10, 0, 0], np.uint32), rows, counts)
    for bad_rows, bad_counts in ((rows[:3], counts), (rows, counts[:3])):
        with pytest.raises(LocalProtocolError, match="4 records"):
            reader.read_batch(np.zeros(4, np.uint32), bad_rows, bad_counts)
    with pytest.raises(LocalProtocolError, match="223 bytes"):
        reader.read_into(0, bytearray(223))


@pytest.mark.spec("ADPT-4")
@pytest.mark.parametrize("timeout_ns", [0, 3 * NS_PER_MS])
def test_an_unfinished_write_is_reported_and_does_not_block(writer: RegionWriter, timeout_ns: int) -> None:
    writer.write(0, b"x" * 224)
    with forged("region", *contents(writer.segment)) as (segment, maps), RegionReader(segment) as reader:
        assert reader.read(0) is not None
        maps[0][REGION_HEADER_SIZE : REGION_HEADER_SIZE + 8] = struct.pack("<Q", 3)
        with pytest.raises(RecordUnavailableError, match="record 0 is being written"):
            reader.read(0, timeout_ns)
        counts = np.ones(1, np.uint64)
        assert reader.read_batch(np.zeros(1, np.uint32), np.zeros((1, 224), np.uint8), counts) == 0
        assert counts[0] == 0


@pytest.mark.spec("ADPT-4")
def test_a_read_waits_for_the_end_of_a_write(writer: RegionWriter) -> None:
    writer.write(0, b"x" * 224)
    with forged("region", *contents(writer.segment)) as (segment, maps), RegionReader(segment) as reader:
        whole = maps[0][:]
        maps[0][REGION_HEADER_SIZE] = 3
        started = threading.Event()

        def finish() -> None:
            started.wait()
            maps[0][:] = whole

        thread = threading.Thread(target=finish)
        thread.start()
        started.set()
        record = reader.read(0, timeout_ns=60_000 * NS_PER_MS)
        thread.join()
    assert record is not None
    assert record.payload == b"x" * 224


@pytest.mark.spec("ADPT-4")
def test_every_part_and_the_header_have_a_checksum(writer: RegionWriter) -> None:
    writer.write(0, b"x" * 224, started_ns=1, finished_ns=2)
    (whole,) = contents(writer.segment)
    used = RECORD_HEADER_SIZE + 224 + 3 * PART_TRAILER_SIZE
    unused = {36, 37, 38, 39}  # reserved: after the checksum of the header and the parts
    for end in (64, 64 + 16 + 96, 64 + 16 + 96 + 16 + 64):
        unused |= set(range(RECORD_HEADER_SIZE + end + 12, RECORD_HEADER_SIZE + end + 16))
    with forged("region", whole) as (segment, maps), RegionReader(segment) as reader:
        for offset in range(8, used):
            maps[0][REGION_HEADER_SIZE + offset] ^= 0x10
            if offset in unused:
                assert reader.read(0) is not None
            else:
                with pytest.raises(RecordUnavailableError, match="wrong checksum"):
                    reader.read(0)
            maps[0][REGION_HEADER_SIZE + offset] ^= 0x10
        assert reader.read(0) is not None


@pytest.mark.spec("ADPT-4")
def test_parts_of_a_later_update_form_no_record(writer: RegionWriter) -> None:
    """Each part is intact, but they are from different updates: as if a reader had seen half of a write."""
    writer.write(0, b"x" * 224)
    (before,) = contents(writer.segment)
    writer.write(0, b"y" * 224)
    (after,) = contents(writer.segment)
    second_part = REGION_HEADER_SIZE + RECORD_HEADER_SIZE + 64 + PART_TRAILER_SIZE
    mixed = before[:second_part] + after[second_part:]
    with (
        forged("region", mixed) as (segment, _),
        RegionReader(segment) as reader,
        pytest.raises(RecordUnavailableError, match="being written"),
    ):
        reader.read(0)


def test_invalid_regions_are_refused(writer: RegionWriter) -> None:
    (region,) = contents(writer.segment)

    def changed(at: int, value: bytes, *, is_signed: bool = True) -> bytes:
        header = bytearray(region[:REGION_HEADER_SIZE])
        header[at : at + len(value)] = value
        if is_signed:
            header[80:84] = struct.pack("<I", crc32c(bytes(header[:80])))
        return bytes(header) + region[REGION_HEADER_SIZE:]

    for content, what in (
        (changed(0, b"NOPE"), "not a Penstock region"),
        (changed(4, b"\3"), "version 3"),
        (changed(8, b"\1", is_signed=False), "damaged"),
        (changed(6, b"\0\0"), "record of 0 parts"),
        (changed(6, b"\xff\xff"), "record of 17 parts"),
        (changed(8, struct.pack("<Q", 11)), "does not match"),
        (changed(8, b"\xff" * 8), "exceed the size"),
        (changed(8, bytes(8)), "exceed the size"),
        (changed(16, struct.pack("<I", 160)), "does not match"),
        (changed(16, struct.pack("<I", 65)), "part size 65"),
        (changed(16, b"\xff" * 4), "part size 4294967295"),
        (region[:127], "not a Penstock region"),
        (region[:-8], "does not match"),
    ):
        with forged("region", content) as (segment, _), pytest.raises(SharedMemoryError, match=what):
            RegionReader(segment)
    with pytest.raises(SharedMemoryError, match="differ from those of model 'trade'"):
        RegionReader(writer.segment, shipped("trade"))
    with RingWriter.create(4_096, 64) as ring, pytest.raises(SharedMemoryError, match="is a ring"):
        RegionReader(ring.segment)


def test_impossible_sizes_are_refused() -> None:
    for record_count, part_sizes in ((0, [8]), (-1, [8]), (1 << 40, [8]), (1, []), (1, [8] * 17), (1, [7]), (1, [0])):
        with pytest.raises(SharedMemoryError):
            RegionWriter.create(record_count, part_sizes)
    with pytest.raises(SharedMemoryError, match="bytes in total"):
        RegionWriter.create(1, [32_768, 8])
    with pytest.raises(LocalProtocolError):
        RegionWriter()


@pytest.mark.spec("OPS-2")
def test_a_consumer_can_neither_write_nor_resize(writer: RegionWriter) -> None:
    (fd,) = writer.segment.fds
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 0)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)


def test_closing(writer: RegionWriter, reader: RegionReader) -> None:
    writer.write(0, bytes(224))
    record = reader.read(0)
    writer.close()
    writer.close()
    assert reader.read(0) is not None
    reader.close()
    assert record is not None
    assert record.payload == bytes(224)
    for call in (lambda: reader.read(0), lambda: writer.write(0, bytes(224))):
        with pytest.raises(LocalProtocolError, match="closed"):
            call()


def test_a_record_without_a_model_has_no_message(writer: RegionWriter) -> None:
    writer.write(0, bytes(224))
    with RegionReader(writer.segment) as reader:
        record = reader.read(0)
        assert record is not None
        with pytest.raises(LocalProtocolError, match="no model"):
            record.message  # noqa: B018
        assert (reader.record_count, reader.payload_size, reader.part_sizes) == (10, 224, (64, 96, 64))


def test_a_record_counts_its_merged_updates() -> None:
    with RegionWriter.create(1, [8]) as writer, RegionReader(writer.segment) as reader:
        writer.write(0, bytes(8), merged=3)
        record = reader.read(0)
        assert record is not None
        assert record.merged == 3
        writer.write(0, bytes(8))
        assert (after := reader.read(0)) is not None
        assert after.merged == 0


def test_marks_are_written_by_the_reader_and_read_by_the_producer() -> None:
    with RegionMarks.create(3) as marks:
        with mmap.mmap(marks.segment.fds[0], 24) as theirs:
            theirs[8:16] = (2**64 - 1).to_bytes(8, "little")
        assert [marks[index] for index in range(3)] == [0, 2**64 - 1, 0]
        with pytest.raises(LocalProtocolError):
            marks[3]
    with pytest.raises(LocalProtocolError, match="closed"):
        marks[0]
