"""The kernels that encode and decode records."""

import gc
import random

import numpy
import pytest

from penstock.base.errors import LimitError, LocalProtocolError
from penstock.base.limits import JOURNAL_PAYLOAD_SIZE_MAX
from penstock.journal.core._log import (
    RECORD_DTYPE,
    RECORD_HEADER_SIZE,
    STOP_INVALID,
    STOP_ROWS,
    STOP_SHORT,
    RecordBuffer,
    find_record,
    scan,
)

NONCE = 0xFEEDBEEF


def sealed(payloads: list[bytes], first: int = 1, nonce: int = NONCE, durable: int = 0) -> bytes:
    records = RecordBuffer(first)
    for index, payload in enumerate(payloads):
        records.append(payload, index)
    records.seal(nonce, durable)
    return bytes(records)


def rows(count: int) -> "numpy.ndarray[tuple[int], numpy.dtype[numpy.void]]":
    return numpy.zeros(count, RECORD_DTYPE)


def test_records_are_decoded_unchanged() -> None:
    payloads = [b"", b"a", b"12345678", bytes(1_000)]
    data, found = sealed(payloads, first=10, durable=9), rows(10)
    assert scan(data, NONCE, 10, found) == (4, len(data), STOP_SHORT)
    assert [data[row["offset"] : row["offset"] + row["size"]] for row in found[:4]] == payloads
    assert found[:4]["sequence"].tolist() == [10, 11, 12, 13]
    assert found[:4]["timestamp_ns"].tolist() == [0, 1, 2, 3]
    assert set(found[:4]["durable"].tolist()) == {9}


def test_a_scan_stops_when_its_output_is_full_and_continues_there() -> None:
    data = sealed([b"x"] * 5)
    count, at, stop = scan(data, NONCE, 1, rows(3))
    assert (count, stop) == (3, STOP_ROWS)
    assert scan(data, NONCE, 4, rows(3), at) == (2, len(data), STOP_SHORT)


@pytest.mark.parametrize(
    ("nonce", "sequence", "expected"), [(NONCE, 2, STOP_INVALID), (NONCE + 1, 1, STOP_INVALID), (NONCE, 1, STOP_SHORT)]
)
def test_records_of_another_segment_are_not_accepted(nonce: int, sequence: int, expected: int) -> None:
    assert scan(sealed([b"x"]), nonce, sequence, rows(9))[2] == expected


def test_every_truncation_gives_only_complete_records() -> None:
    payloads = [b"abc", b"", bytes(50)]
    data = sealed(payloads)
    for size in range(len(data)):
        count, at, stop = scan(data[:size], NONCE, 1, rows(9))
        assert at <= size
        assert count < 3
        assert stop == STOP_SHORT


@pytest.mark.parametrize("size", [0, 1, 31, JOURNAL_PAYLOAD_SIZE_MAX + 33, 2**32 - 1])
def test_impossible_sizes_are_refused(size: int) -> None:
    data = size.to_bytes(4, "little") + sealed([b"x"])[4:]
    assert scan(data, NONCE, 1, rows(1)) == (0, 0, STOP_INVALID)


def test_a_later_record_is_found_at_any_position() -> None:
    good = sealed([b"later"], first=7, durable=5)
    noise = random.Random(1).randbytes(8 * 40)
    assert find_record(noise + good + noise, NONCE, 3) == (len(noise), 7, 5)
    assert find_record(noise + good, NONCE, 8) is None
    assert find_record(noise + good, NONCE + 1, 3) is None
    assert find_record(noise + good, NONCE, 3, len(noise) + 8) is None
    assert find_record(b"", NONCE, 0) is None
    assert find_record(bytes(1_000), NONCE, 0) is None
    assert find_record(bytes(32) + good, NONCE, 5) is None, "two records do not fit before it"


def test_packed_payloads_are_written_as_records() -> None:
    data = numpy.frombuffer(b"onetwothree", numpy.uint8)
    records = RecordBuffer(1)
    places = numpy.array([3, 0, 6, 11], numpy.uint32), numpy.array([3, 3, 5, 0], numpy.uint32)
    records.append_rows(data, *places, numpy.arange(4, dtype=numpy.int64))
    records.seal(NONCE, 0)
    found, written = rows(9), bytes(records)
    assert scan(written, NONCE, 1, found)[0] == len(records) == 4
    payloads = [written[row["offset"] : row["offset"] + row["size"]] for row in found[:4]]
    assert payloads == [b"two", b"one", b"three", b""]


@pytest.mark.parametrize(("offset", "size"), [(8, 4), (2**32 - 1, 1), (12, 0), (0, 2**32 - 1)])
def test_packed_payloads_beyond_the_buffer_are_refused_as_a_whole(offset: int, size: int) -> None:
    records = RecordBuffer(1)
    places = numpy.array([0, offset], numpy.uint32), numpy.array([1, size], numpy.uint32)
    with pytest.raises((LocalProtocolError, LimitError)):
        records.append_rows(b"onetwothree", *places, numpy.zeros(2, numpy.int64))
    assert len(records) == 0


def test_packed_arrays_that_differ_in_length_are_refused() -> None:
    one, two = numpy.zeros(1, numpy.uint32), numpy.zeros(2, numpy.uint32)
    with pytest.raises(LocalProtocolError, match="differ in length"):
        RecordBuffer(1).append_rows(b"x", one, two, numpy.zeros(1, numpy.int64))


def test_a_payload_has_a_maximum_size() -> None:
    records = RecordBuffer(1)
    with pytest.raises(LimitError):
        records.append(bytes(JOURNAL_PAYLOAD_SIZE_MAX + 1), 0)
    records.append(bytes(JOURNAL_PAYLOAD_SIZE_MAX), 0)
    assert records.size == JOURNAL_PAYLOAD_SIZE_MAX + RECORD_HEADER_SIZE


def test_records_that_are_being_written_are_locked() -> None:
    records = RecordBuffer(1)
    records.append(b"x", 0)
    with memoryview(records) as view:
        for change in (lambda: records.append(b"y", 0), lambda: records.clear(1), lambda: records.seal(1, 0)):
            with pytest.raises(LocalProtocolError, match="being written"):
                change()
        assert view.readonly
    records.append(b"y", 0)


def test_a_buffer_is_reused() -> None:
    records = RecordBuffer(1)
    records.append(b"x" * 100, 0)
    records.clear(51)
    assert (len(records), records.size, records.next_sequence) == (0, 0, 51)
    assert records.append(b"y", 0) == 51
    del records
    gc.collect()


def test_unsuitable_buffers_are_refused() -> None:
    records = RecordBuffer(1)
    for payload in ("text", 7, None, numpy.zeros((2, 2))[:, 0]):
        with pytest.raises((TypeError, ValueError, BufferError)):
            records.append(payload, 0)  # type: ignore[arg-type]
    assert len(records) == 0


def test_a_scan_beyond_the_data_is_refused() -> None:
    for start in (-1, 9):
        with pytest.raises(LocalProtocolError):
            scan(bytes(8), NONCE, 1, rows(1), start)
        with pytest.raises(LocalProtocolError):
            find_record(bytes(8), NONCE, 1, start)
