"""Any sequence of writes and reads, over many laps, against a plain Python ring."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.ring import RingOracle, space
from penstock.base.errors import OverrunError
from penstock.shm import RegionReader, RegionWriter, RingReader, RingWriter

EVENT_SIZE_MAX = 40
# zeros, and bytes that look like headers, test readers that were overrun
payloads = st.one_of(
    st.binary(max_size=EVENT_SIZE_MAX),
    st.integers(0, EVENT_SIZE_MAX).map(bytes),
    st.integers(1, 5).map(lambda number: number.to_bytes(8, "little") * (EVENT_SIZE_MAX // 8)),
)
actions = st.one_of(
    st.tuples(st.just("write"), payloads),
    st.tuples(st.just("write_many"), st.lists(payloads, max_size=12)),
    st.tuples(st.just("write_batch"), st.tuples(st.integers(0, 12), st.integers(1, EVENT_SIZE_MAX))),
    st.tuples(st.just("read"), st.integers(1, 8)),
    st.tuples(st.just("read_batch"), st.integers(1, 8)),
    st.tuples(st.just("restart"), st.none()),
)


def outcome(reader: RingReader) -> Any:
    try:
        return reader.read(0)
    except OverrunError:
        return Exception


@pytest.mark.spec("CRIT-1", "CRIT-2", "CRIT-3", "CRIT-5")
@given(st.lists(actions, max_size=60), st.integers(0, 40))
def test_a_reader_gets_every_event_or_learns_of_the_overrun(steps: list[tuple[str, Any]], extra: int) -> None:
    capacity = 4 * (space(EVENT_SIZE_MAX) + 16) + 8 * extra
    oracle = RingOracle(capacity, EVENT_SIZE_MAX)
    with RingWriter.create(capacity, EVENT_SIZE_MAX) as writer, RingReader(writer.segment) as reader:
        for action, argument in steps:
            if action == "write":
                writer.write(argument)
                oracle.write(argument)
            elif action == "write_many":
                writer.write_many(argument)
                for payload in argument:
                    oracle.write(payload)
            elif action == "write_batch":
                rows = np.arange(argument[0] * argument[1], dtype=np.uint8).reshape(argument)
                writer.write_batch(rows)
                for row in rows:
                    oracle.write(row.tobytes())
            elif action == "read":
                for _ in range(argument):
                    assert outcome(reader) == oracle.read()
            elif action == "read_batch":
                check_batch(reader, oracle, argument)
            else:
                writer.restart()
                assert reader.restart()
                oracle.restart()


def check_batch(reader: RingReader, oracle: RingOracle, count: int) -> None:
    rows, sizes = np.zeros((count, EVENT_SIZE_MAX), np.uint8), np.zeros(count, np.uint32)
    try:
        read = reader.read_batch(rows, sizes, timeout_ns=0)
    except OverrunError:
        assert oracle.read() is Exception
        return
    for row, size in zip(rows[:read], sizes[:read], strict=True):
        assert row[:size].tobytes() == oracle.read()
        assert not row[size:].any()
    if read < count:
        assert outcome(reader) == oracle.read()


@pytest.mark.spec("ADPT-1", "ADPT-4")
@given(
    st.lists(st.integers(1, 6).map(lambda words: 8 * words), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 4), st.integers(0, 255)), max_size=30),
)
def test_a_region_is_what_was_written_to_its_parts(
    part_sizes: list[int], writes: list[tuple[int, int, int, int]]
) -> None:
    bounds = np.cumsum([0, *part_sizes]).tolist()
    expected = [bytearray(bounds[-1]) for _ in range(3)]
    part_counts = [[0] * len(part_sizes) for _ in range(3)]
    counts = [0, 0, 0]
    with RegionWriter.create(3, part_sizes) as writer, RegionReader(writer.segment) as reader:
        for index, one, other, value in writes:
            first, last = sorted((one % len(part_sizes), other % len(part_sizes)))
            payload = bytes([value]) * (bounds[last + 1] - bounds[first])
            counts[index] += 1
            assert writer.write(index, payload, first_part=first) == counts[index]
            expected[index][bounds[first] : bounds[last + 1]] = payload
            for part in range(len(part_sizes)):
                if first <= part <= last or counts[index] == 1:
                    part_counts[index][part] = counts[index]
            for each in range(3):
                record = reader.read(each)
                if counts[each] == 0:
                    assert record is None
                else:
                    assert record is not None
                    assert (record.payload, record.update_count) == (bytes(expected[each]), counts[each])
                    assert record.part_update_counts == tuple(part_counts[each])
