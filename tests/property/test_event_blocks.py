"""Events in blocks: the events are decoded unchanged and in order, and a damaged block is refused."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import LocalProtocolError
from penstock.spark.pipeline.derive._blocks import decode, encode
from penstock.spark.pipeline.derive._books import EVENT_DTYPE

INSTRUMENTS = 5


@st.composite
def events(draw: st.DrawFn) -> np.ndarray:
    """Any values that the fields can have; some are similar to the previous ones."""
    count = draw(st.integers(1, 30))
    made = np.zeros(count, EVENT_DTYPE)
    for name in EVENT_DTYPE.names or ():
        limits = np.iinfo(EVENT_DTYPE[name])
        values = st.integers(int(limits.min), int(limits.max)) | st.integers(0, 3) | st.just(int(limits.min))
        made[name] = draw(st.lists(values, min_size=count, max_size=count))
    made["instrument"] %= INSTRUMENTS
    made["action"] %= 16
    return made


def encoded(made: np.ndarray, order: np.ndarray, starts: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    columns = {name: np.ascontiguousarray(made[name]) for name in EVENT_DTYPE.names or ()}
    data, begins, instruments = encode(columns, order, starts, INSTRUMENTS)
    return [
        (data[first:end], used) for first, end, used in zip(begins[:-1], begins[1:], instruments, strict=True)
    ]  # fmt: skip


@given(events(), st.randoms(use_true_random=False))
def test_blocks_have_the_events_they_were_made_of(made: np.ndarray, chance: random.Random) -> None:
    order = np.array(chance.sample(range(len(made)), len(made)), np.int64)
    middle = chance.randrange(len(made))
    starts = sorted({0, middle, len(made)})
    blocks = encoded(made, order, starts)
    for (data, used), first, end in zip(blocks, starts[:-1], starts[1:], strict=True):
        found = np.empty(end - first, EVENT_DTYPE)
        decode(data, used, found)
        assert found.tolist() == made[order[first:end]].tolist()


@given(events(), st.data())
def test_a_block_that_is_cut_or_has_other_instruments_is_refused(made: np.ndarray, data: st.DataObject) -> None:
    ((block, used),) = encoded(made, np.arange(len(made)), [0, len(made)])
    room = np.empty(len(made), EVENT_DTYPE)
    with pytest.raises(LocalProtocolError):
        decode(block[: data.draw(st.integers(0, len(block) - 1))], used, room)
    with pytest.raises(LocalProtocolError):
        decode(block, used[:-1], room)
    with pytest.raises(LocalProtocolError):
        decode(block, used, room[:-1])


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(block: bytes) -> None:
    for count in (1, 3):
        try:
            decode(np.frombuffer(block, np.uint8), np.arange(3, dtype=np.uint32), np.empty(count, EVENT_DTYPE))
        except LocalProtocolError:
            continue


def test_columns_that_do_not_fit_together_are_refused() -> None:
    made = np.zeros(3, EVENT_DTYPE)
    columns = {name: np.ascontiguousarray(made[name]) for name in EVENT_DTYPE.names or ()}
    order = np.arange(3)
    for wrong in ({"seq": np.zeros(2, np.int64)}, {"instrument": np.full(3, 7, np.uint32)}):
        with pytest.raises(LocalProtocolError):
            encode(columns | wrong, order, [0, 3], INSTRUMENTS)
    for rows in (order + 1, order - 1, order[:0]):
        with pytest.raises(LocalProtocolError):
            encode(columns, rows, [0, len(rows)], INSTRUMENTS)
