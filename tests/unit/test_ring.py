"""The critical ring, both ends in one process."""

import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from oracles.segments import contents, forged
from penstock.base.crc32c import crc32c
from penstock.base.errors import (
    LocalProtocolError,
    OverrunError,
    ProducerGoneError,
    RingClosedError,
    SharedMemoryError,
)
from penstock.base.segment import Segment
from penstock.shm import RegionWriter, RingReader, RingWriter
from penstock.shm._ring import RING_HEADER_SIZE
from penstock.wire import DatagramBatch

CAPACITY, EVENT_SIZE_MAX = 4_096, 256
NS_PER_MS = 1_000_000


@pytest.fixture
def writer() -> Iterator[RingWriter]:
    with RingWriter.create(CAPACITY, EVENT_SIZE_MAX) as writer:
        yield writer


@pytest.fixture
def reader(writer: RingWriter) -> Iterator[RingReader]:
    with RingReader(writer.segment) as reader:
        yield reader


@pytest.mark.spec("CRIT-1", "CRIT-2")
def test_events_stay_in_order_over_many_laps(writer: RingWriter, reader: RingReader) -> None:
    assert reader.read(0) is None
    for number in range(1_000):
        payload = bytes([number % 251]) * (number * 7 % (EVENT_SIZE_MAX + 1))
        assert writer.write(payload) == number + 1
        assert reader.next_sequence == number + 1
        assert reader.read() == payload
        assert reader.read(0) is None


def test_any_buffer_is_a_payload_up_to_the_maximum(writer: RingWriter, reader: RingReader) -> None:
    for payload in (b"", bytearray(b"abc"), memoryview(b"abcdef")[2:], np.arange(3), b"x" * EVENT_SIZE_MAX):
        writer.write(payload)
        assert reader.read(0) == bytes(payload)
    with pytest.raises(LocalProtocolError, match="257 bytes exceeds the limit of 256"):
        writer.write(bytes(EVENT_SIZE_MAX + 1))
    with pytest.raises(TypeError):
        writer.write("text")  # type: ignore[arg-type]
    assert reader.read(0) is None


@pytest.mark.spec("CRIT-2")
@pytest.mark.parametrize(
    ("spaces", "begins_at"),
    [([24] * 10, 240), ([24] * 9 + [32], 0), ([24] * 11, 0)],
    ids=["just room", "a word too little", "past it"],
)
def test_writer_and_reader_wrap_where_a_maximal_event_and_a_header_no_longer_fit(
    spaces: list[int], begins_at: int
) -> None:
    """A maximal event takes 64 bytes here, so the last possible start is 320 - 64 - 16."""
    with RingWriter.create(320, 40) as writer, RingReader(writer.segment) as reader:
        for space in spaces:
            writer.write(bytes(space - 20))
            reader.read()
        writer.write(b"mark")
        assert contents(writer.segment)[0].find(b"mark") == RING_HEADER_SIZE + begins_at + 16
        assert reader.read() == b"mark"


@pytest.mark.spec("CRIT-5")
def test_coalesced_events_become_visible_together(writer: RingWriter, reader: RingReader) -> None:
    def payloads() -> Iterator[bytes]:
        for number in range(10):
            assert reader.read(0) is None
            yield b"%d" % number

    for _ in range(50):
        assert writer.write_many(payloads()) == 10
        assert [reader.read(0) for _ in range(10)] == [b"%d" % number for number in range(10)]
        assert reader.read(0) is None


def test_many_large_events_become_visible_gradually(writer: RingWriter, reader: RingReader) -> None:
    read = []

    def payloads() -> Iterator[bytes]:
        for number in range(200):
            yield bytes([number]) * EVENT_SIZE_MAX
            while payload := reader.read(0):
                read.append(payload)

    assert writer.write_many(payloads()) == 200
    read += iter(lambda: reader.read(0), None)
    assert read == [bytes([number]) * EVENT_SIZE_MAX for number in range(200)]


def test_events_before_an_unwritable_payload_are_written(writer: RingWriter, reader: RingReader) -> None:
    with pytest.raises(LocalProtocolError, match="exceeds the limit of 256"):
        writer.write_many([b"a", b"b", bytes(1_000), b"c"])
    assert [reader.read(0) for _ in range(3)] == [b"a", b"b", None]
    with pytest.raises(LocalProtocolError, match="one producer"):
        writer.write_many(writer.close() for _ in range(1))  # type: ignore[misc]
    assert writer.write_many([]) == 0


@pytest.mark.spec("CRIT-5")
def test_batches_of_rows_and_of_records_can_be_written(writer: RingWriter, reader: RingReader) -> None:
    rows = np.random.default_rng(1).integers(0, 256, (20, 64), dtype=np.uint8)
    records = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "<i4"), ("b", "<f8")])
    assert writer.write_batch(rows) == 20
    assert writer.write_batch(records) == 2
    assert writer.write_batch(rows[:0]) == 0
    out = np.ones((100, 64), np.uint8)
    sizes = np.zeros(100, np.uint32)
    assert reader.read_batch(out, sizes) == 22
    assert (out[:20] == rows).all()
    assert out[20].tobytes() == records[0].tobytes() + bytes(64 - 12)
    assert sizes[:22].tolist() == [64] * 20 + [12] * 2
    assert reader.read_batch(out, timeout_ns=0) == 0
    for bad in (rows[:, ::2], np.uint8(1)):
        with pytest.raises(LocalProtocolError, match="rows"):
            writer.write_batch(bad)  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="exceeds the limit of 256"):
        writer.write_batch(np.zeros((1, 300), np.uint8))


def test_a_batch_larger_than_the_ring_overruns_only_the_reader(writer: RingWriter, reader: RingReader) -> None:
    assert writer.write_batch(np.zeros((1_000, 64), np.uint8)) == 1_000
    with pytest.raises(OverrunError):
        reader.read_batch(np.zeros((10, 64), np.uint8))


def test_an_event_that_fits_no_row_is_refused_and_stays(writer: RingWriter, reader: RingReader) -> None:
    writer.write_many([b"12345678", b"123456789"])
    out = np.zeros((4, 8), np.uint8)
    assert reader.read_batch(out) == 1
    with pytest.raises(LocalProtocolError, match="event 2 is longer than a row of 8 bytes"):
        reader.read_batch(out)
    for bad in (out[:0], out[:, ::2]):
        with pytest.raises(LocalProtocolError):
            reader.read_batch(bad)
    with pytest.raises(LocalProtocolError, match="sizes"):
        reader.read_batch(out, np.zeros(1, np.uint32))
    assert reader.read() == b"123456789"


@pytest.mark.spec("CRIT-3")
def test_an_overrun_reports_where_the_loss_begins_and_a_restart_repairs_it(
    writer: RingWriter, reader: RingReader
) -> None:
    writer.write(b"first")
    assert reader.read() == b"first"
    while writer.next_sequence < 200:
        writer.write(bytes(100))
    for _ in range(2):
        with pytest.raises(OverrunError, match="event 2 was overwritten") as caught:
            reader.read()
        assert caught.value.sequence == 2
        assert "sequence" in caught.value.found
    assert not reader.restart()
    writer.restart()
    assert writer.write(b"again") == 1
    assert reader.restart()
    assert reader.read() == b"again"
    assert reader.read(0) is None


@pytest.mark.spec("CRIT-3")
def test_zeros_at_the_position_of_the_reader_are_no_blank_header(writer: RingWriter, reader: RingReader) -> None:
    """A payload of zeros at the position of a waiting reader must not look like an empty ring."""
    writer.write(bytes(8))
    reader.read()
    while writer.next_sequence < 50:
        writer.write(bytes(200))
    assert contents(writer.segment)[0][RING_HEADER_SIZE + 32 :][:16] == bytes(16)
    with pytest.raises(OverrunError, match="an invalid header with token 0x00000000, length 0, sequence 0"):
        reader.read(0)


@pytest.mark.spec("CRIT-3")
def test_a_wrong_checksum_is_retried_and_then_reported_as_an_overrun(writer: RingWriter) -> None:
    writer.write_many([b"whole", b"damaged"])
    with forged("ring", *contents(writer.segment)) as (segment, maps), RingReader(segment) as reader:
        position = maps[0].find(b"damaged")
        maps[0][position] ^= 1
        assert reader.read() == b"whole"
        with pytest.raises(OverrunError, match=r"event 2 .* checksum"):
            reader.read()
        maps[0][position] ^= 1
        assert reader.read() == b"damaged"


@pytest.mark.parametrize(("offset", "name"), [(0, "token"), (4, "length"), (8, "sequence")])
@pytest.mark.spec("CRIT-3")
def test_each_field_of_the_header_is_checked(writer: RingWriter, offset: int, name: str) -> None:
    writer.write(b"payload")
    with forged("ring", *contents(writer.segment)) as (segment, maps), RingReader(segment) as reader:
        maps[0][RING_HEADER_SIZE + offset + 2] ^= 0x80
        with pytest.raises(OverrunError, match=name):
            reader.read()


def test_invalid_rings_are_refused(writer: RingWriter) -> None:
    ring, doorbell = contents(writer.segment)

    def changed(at: int, value: bytes, *, is_signed: bool = True) -> bytes:
        header = bytearray(ring[:RING_HEADER_SIZE])
        header[at : at + len(value)] = value
        if is_signed:
            header[20:24] = struct.pack("<I", crc32c(bytes(header[:20])))
        return bytes(header) + ring[RING_HEADER_SIZE:]

    for content, what in (
        (changed(0, b"NOPE"), "not a Penstock ring"),
        (changed(4, b"\2"), "version 2"),
        (changed(16, b"\1", is_signed=False), "damaged"),
        (changed(8, struct.pack("<Q", CAPACITY + 8)), f"gives {CAPACITY + 8} bytes"),
        (changed(16, struct.pack("<I", CAPACITY)), "is too small"),
        (changed(16, bytes(4)), "maximum event size 0"),
        (changed(16, b"\xff" * 4), "maximum event size 4294967295"),
        (ring[:63], "not a Penstock ring"),
        (ring[:-8], "the segment has"),
    ):
        with forged("ring", content, doorbell) as (segment, _), pytest.raises(SharedMemoryError, match=what):
            RingReader(segment)
    unsealed = forged("ring", ring, doorbell, is_sealed=False)
    with unsealed as (segment, _), pytest.raises(SharedMemoryError, match="not sealed"):
        RingReader(segment)
    with forged("ring", ring, b"\0") as (segment, _), pytest.raises(SharedMemoryError, match="doorbell"):
        RingReader(segment)
    with forged("ring", ring) as (segment, _), pytest.raises(SharedMemoryError, match="1 files"):
        RingReader(segment)
    with RegionWriter.create(1, [8]) as region, pytest.raises(SharedMemoryError, match="is a region"):
        RingReader(region.segment)


def test_an_ordinary_file_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb+") as file:
        fds = os.dup(file.fileno()), os.dup(file.fileno())
    with Segment("ring", fds) as segment, pytest.raises(SharedMemoryError, match="not a shared memory segment"):
        RingReader(segment)


def test_impossible_sizes_are_refused() -> None:
    for capacity, event_size_max in ((100, 64), (4_097, 64), (4_096, 0), (1 << 30, 1 << 25), (1 << 50, 64), (-8, 64)):
        with pytest.raises(SharedMemoryError):
            RingWriter.create(capacity, event_size_max)
    with pytest.raises(LocalProtocolError):
        RingWriter()
    with RingWriter.create(4 * (16 + 8 + 8 + 16), 8) as least, RingReader(least.segment) as reader:
        for number in range(100):
            least.write_many([b"%d" % number, b"x"])
            assert [reader.read(0), reader.read(0)] == [b"%d" % number, b"x"]


@pytest.mark.spec("OPS-2")
def test_a_consumer_can_neither_write_nor_resize(writer: RingWriter) -> None:
    ring_fd, doorbell_fd = writer.segment.fds
    with pytest.raises(PermissionError):
        mmap.mmap(ring_fd, 0)
    with pytest.raises(PermissionError):
        os.pwrite(ring_fd, b"x", 0)
    for fd in (ring_fd, doorbell_fd):
        for size in (0, 1 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)


@pytest.mark.spec("CRIT-1")
def test_a_hostile_value_in_the_doorbell_blocks_no_reader_or_writer(writer: RingWriter, reader: RingReader) -> None:
    with mmap.mmap(writer.segment.fds[1], 4) as doorbell:
        for value in (b"\xff\xff\xff\xff", b"\1\0\0\0", b"\0\0\0\0"):
            doorbell[:] = value
            writer.write(value)
            assert reader.read(0) == value


@pytest.mark.parametrize("wait", ["spin", "block"])
def test_waiting_ends_with_a_timeout_or_with_an_event(writer: RingWriter, wait: str) -> None:
    with RingReader(writer.segment, wait=wait) as reader:  # type: ignore[arg-type]
        assert reader.read(NS_PER_MS) is None
        assert reader.read(-1) is None
        thread = threading.Thread(target=lambda: [writer.write(b"%d" % number) for number in range(10)])
        thread.start()
        read = [reader.read(60_000 * NS_PER_MS) for _ in range(10)]
        thread.join()
    assert read == [b"%d" % number for number in range(10)]


@pytest.mark.spec("CRIT-5")
def test_the_writer_wakes_only_a_sleeping_reader(writer: RingWriter) -> None:
    with mmap.mmap(writer.segment.fds[1], 4) as doorbell, RingReader(writer.segment, wait="block") as reader:
        writer.write(b"awake")
        assert reader.read() == b"awake"
        assert doorbell[:] == bytes(4)
        read: list[bytes | None] = []
        thread = threading.Thread(target=lambda: read.append(reader.read()))
        thread.start()
        deadline = time.monotonic() + 60
        while doorbell[:] != b"\1\0\0\0":
            assert time.monotonic() < deadline, "the reader is not marked as asleep"
        writer.write(b"asleep")
        assert doorbell[:] == bytes(4)
        thread.join()
    assert read == [b"asleep"]


@pytest.mark.spec("CRIT-4", "CRIT-5")
def test_a_restart_wakes_a_reader_that_waits_at_the_end(writer: RingWriter) -> None:
    with mmap.mmap(writer.segment.fds[1], 4) as doorbell, RingReader(writer.segment, wait="block") as reader:
        writer.write(b"old")
        assert reader.read() == b"old"
        found: list[Exception] = []

        def read() -> None:
            try:
                reader.read()
            except OverrunError as error:
                found.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        deadline = time.monotonic() + 60
        while doorbell[:] != b"\1\0\0\0":
            assert time.monotonic() < deadline, "the reader is not marked as asleep"
        writer.restart()
        assert doorbell[:] == bytes(4)
        thread.join(60)
        assert not thread.is_alive()
        assert len(found) == 1
        assert reader.restart()
        writer.write(b"new")
        assert reader.read(0) == b"new"


@pytest.mark.spec("CRIT-4")
@pytest.mark.parametrize("read_before", [0, 1, 2, 3])
@pytest.mark.parametrize("written_after", [0, 1, 3])
def test_a_reader_from_before_a_restart_never_mistakes_it_for_silence(
    writer: RingWriter, reader: RingReader, read_before: int, written_after: int
) -> None:
    writer.write_many([b"a", b"b", b"c"])
    for _ in range(read_before):
        reader.read()
    writer.restart()
    for _ in range(written_after):
        writer.write(b"n")
    if read_before > written_after:  # bytes that neither the new events nor the blank header after them overwrote
        assert [reader.read(0) for _ in range(3 - read_before)] == [b"a", b"b", b"c"][read_before:]
    with pytest.raises(OverrunError):
        reader.read(0)
    assert reader.restart()
    assert [reader.read(0) for _ in range(written_after + 1)] == [b"n"] * written_after + [None]


@pytest.mark.parametrize("wait", ["spin", "block"])
def test_two_rings_back_and_forth(writer: RingWriter, wait: str) -> None:
    rounds = 1_000
    with RingWriter.create(CAPACITY, 64) as back, RingReader(back.segment, wait=wait) as back_reader:  # type: ignore[arg-type]

        def echo() -> None:
            with RingReader(writer.segment, wait=wait) as reader:  # type: ignore[arg-type]
                for _ in range(rounds):
                    back.write(reader.read(60_000 * NS_PER_MS) or b"late")

        thread = threading.Thread(target=echo)
        thread.start()
        for number in range(rounds):
            writer.write(b"%d" % number)
            assert back_reader.read(60_000 * NS_PER_MS) == b"%d" % number
        thread.join()


def test_a_clean_end_is_reported(writer: RingWriter, reader: RingReader) -> None:
    writer.write_many([b"a", b"b"])
    fds = writer.segment.fds
    writer.close()
    writer.close()
    assert list(reader) == [b"a", b"b"]
    with pytest.raises(RingClosedError):
        reader.read()
    with pytest.raises(RingClosedError):
        reader.read_batch(np.zeros((1, 8), np.uint8))
    with pytest.raises(LocalProtocolError, match="closed"):
        writer.write(b"c")
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    reader.close()
    with pytest.raises(LocalProtocolError, match="closed"):
        reader.read()


def test_a_dead_producer_is_detected_after_its_last_event(writer: RingWriter) -> None:
    class Lifeline:
        def peer_is_alive(self) -> bool:
            return False

        def close(self) -> None:
            raise AssertionError("the segment is not the reader's")

    writer.write(b"last")
    segment = Segment("ring", writer.segment.fds, Lifeline())
    with RingReader(segment, wait="block") as reader:
        assert reader.read() == b"last"
        with pytest.raises(ProducerGoneError):
            next(reader)
    segment._fds = ()


def test_one_thread_at_a_time_may_read_and_close_ends_a_wait(writer: RingWriter) -> None:
    for wait in ("spin", "block"):
        reader = RingReader(writer.segment, wait=wait)  # type: ignore[arg-type]
        errors: list[LocalProtocolError] = []

        def read(reader: RingReader = reader, errors: list[LocalProtocolError] = errors) -> None:
            with pytest.raises(LocalProtocolError) as caught:
                reader.read()
            errors.append(caught.value)

        thread = threading.Thread(target=read)
        thread.start()
        assert refusal_of(reader) == "another thread is reading from the ring (a ring has one consumer)"
        reader.close()
        thread.join(60)
        assert "closed while it waited" in str(errors[0])


def refusal_of(reader: RingReader) -> str:
    """The error of a second thread while the first one waits."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            reader.read(0)
        except LocalProtocolError as error:
            return str(error)
    return "two threads could read"


def test_a_forgotten_segment_is_closed_with_a_warning() -> None:
    fd = os.memfd_create("forgotten")
    with pytest.warns(ResourceWarning, match="never closed"):
        Segment("ring", (fd,))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_datagrams_are_read_in_batches_from_a_ring(writer: RingWriter, reader: RingReader) -> None:
    batch = DatagramBatch(4)
    source = 10 << 40 | 1 << 16 | 4_000  # 10.0.0.1:4000
    assert reader.receive(batch, source, 0) == 0
    sent = [bytes([number]) * (number * 31) for number in range(6)]
    writer.write_many(sent)
    assert reader.receive(batch, source, 0) == 4
    assert [bytes(batch.datagram(n)) for n in range(4)] == sent[:4]
    assert {batch.source(n) for n in range(4)} == {("10.0.0.1", 4_000)}
    assert reader.receive(batch, source, NS_PER_MS) == 2
    assert [bytes(batch.datagram(n)) for n in range(2)] == sent[4:]
    assert reader.receive(batch, source, 0) == len(batch) == 0
    for _ in range(40):
        writer.write(bytes(EVENT_SIZE_MAX))
    with pytest.raises(OverrunError):
        reader.receive(batch, source, 0)
    writer.restart()
    assert reader.restart()
    writer.write(b"again")
    assert reader.receive(batch, source, 0) == 1
    writer.close()
    with pytest.raises(RingClosedError):
        reader.receive(batch, source, 0)


def test_an_event_that_is_no_datagram_is_refused() -> None:
    with RingWriter.create(1 << 20, 70_000) as writer, RingReader(writer.segment) as reader:
        writer.write(bytes(70_000))
        with pytest.raises(LocalProtocolError):
            reader.receive(DatagramBatch(4), 1, 0)
