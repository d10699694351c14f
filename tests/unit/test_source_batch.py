"""SourceBatch: rows over borrowed memory, without copies."""

import numpy as np
import pytest

from penstock.base.errors import LocalProtocolError
from penstock.convert import SourceBatch


def test_messages_are_read_as_appended() -> None:
    messages = [b"one", b"", b"three" * 100]
    batch = SourceBatch.from_messages(messages, 7, receive_ns=55)
    assert len(batch) == 3
    assert list(batch) == [(7, b"one"), (8, b""), (9, b"three" * 100)]
    assert batch[-1] == messages[-1]
    assert [batch.receive_ns(index) for index in range(3)] == [55, 55, 55]


def test_rows_can_be_anywhere_in_the_memory() -> None:
    data = np.frombuffer(b"abcdefgh", np.uint8)
    batch = SourceBatch.of(data, np.array([6, 0], np.uint32), np.array([2, 4], np.uint32), 1)
    assert list(batch) == [(1, b"gh"), (2, b"abcd")]


def test_a_batch_can_be_reused_and_grow() -> None:
    batch = SourceBatch()
    assert list(batch) == []
    for round_number in range(3):
        data = bytearray(b"%d" % round_number * 1000)
        batch.point_at(data)
        for index in range(1000):
            batch.append(index, index, 1, receive_ns=index)
        assert len(batch) == 1000
        assert batch[999] == b"%d" % round_number
        with pytest.raises(BufferError):
            data.append(0)  # held, so it cannot move
    batch.clear()
    assert len(batch) == 0
    batch.append(5, 999, 1)
    assert list(batch) == [(5, b"2")]


@pytest.mark.parametrize(("offset", "size"), [(0, 5), (5, 0), (4, 1), (2**32, 1), (1, 2**64 - 1)])
def test_a_row_outside_the_memory_is_refused(offset: int, size: int) -> None:
    batch = SourceBatch()
    batch.point_at(b"abcd")
    with pytest.raises(LocalProtocolError, match="is outside the 4 bytes"):
        batch.append(1, offset, size)
    assert len(batch) == 0


def test_offsets_and_sizes_must_have_equal_lengths() -> None:
    with pytest.raises(LocalProtocolError, match="2 offsets do not match 1 sizes"):
        SourceBatch.of(b"abcd", [0, 1], [1], 1)
    with pytest.raises(IndexError):
        SourceBatch.from_messages([b"a"], 1)[1]
