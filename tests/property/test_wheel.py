"""The timing wheel against a sorted list."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import LocalProtocolError
from penstock.engine.core.kernel._wheel import SLOT_COUNT, SLOT_NS, TimingWheel

ENTRIES = 12
TURN_NS = SLOT_COUNT * SLOT_NS

spans_ns = st.integers(0, 4 * SLOT_NS) | st.integers(0, 3 * TURN_NS) | st.sampled_from([TURN_NS - SLOT_NS, TURN_NS])
steps = st.lists(
    st.tuples(st.just("insert"), st.integers(0, ENTRIES - 1), spans_ns)
    | st.tuples(st.just("remove"), st.integers(0, ENTRIES - 1), st.just(0))
    | st.tuples(st.just("expire"), st.integers(1, ENTRIES), spans_ns),
    max_size=60,
)


def slot_end_ns(due_ns: int) -> int:
    return -(-due_ns // SLOT_NS) * SLOT_NS


@pytest.mark.spec("METR-2")
@settings(max_examples=300)
@given(steps=steps, start_ns=st.sampled_from([0, 1, 1_800_000_000_000_000_000]))
def test_a_wheel_is_a_sorted_list(steps: list[tuple[str, int, int]], start_ns: int) -> None:
    wheel = TimingWheel(ENTRIES)
    expected: dict[int, int] = {}
    now_ns = start_ns
    for step, entry, span_ns in steps:
        if step == "insert":
            wheel.insert(entry, now_ns + 1 + span_ns, now_ns)
            expected[entry] = slot_end_ns(now_ns + 1 + span_ns)
        elif step == "remove":
            wheel.remove(entry)
            expected.pop(entry, None)
        else:
            now_ns += span_ns
            over = sorted((end_ns, number) for number, end_ns in expected.items() if end_ns <= now_ns)
            found = wheel.expire(now_ns, entry)
            assert len(found) == min(entry, len(over))
            assert [expected[number] for number in found] == [end_ns for end_ns, _ in over[: len(found)]]
            for number in found:
                del expected[number]
        assert len(wheel) == len(expected)
        assert {number for number in range(ENTRIES) if number in wheel} == set(expected)
        next_due_ns = wheel.next_due_ns
        assert (next_due_ns is None) == (not expected)
        if next_due_ns is not None:
            assert next_due_ns <= min(expected.values())  # entries far ahead are found early


def test_waking_as_the_wheel_says_finds_everything_in_time() -> None:
    wheel = TimingWheel(3)
    dues_ns = [7, 5 * TURN_NS + 3, TURN_NS // 2]
    for entry, due_ns in enumerate(dues_ns):
        wheel.insert(entry, due_ns, 0)
    found = {}
    turns = 0
    while (now_ns := wheel.next_due_ns) is not None:
        turns += 1
        for entry in wheel.expire(now_ns):
            found[entry] = now_ns
    assert found == {entry: slot_end_ns(due_ns) for entry, due_ns in enumerate(dues_ns)}
    assert turns < 10


@given(now_ns=st.integers(0, 10 * SLOT_NS), late_ns=st.integers(0, TURN_NS))
def test_what_is_due_already_comes_out_with_the_slot_under_way(now_ns: int, late_ns: int) -> None:
    wheel = TimingWheel(1)
    wheel.insert(0, now_ns - late_ns, now_ns)
    assert wheel.expire((now_ns // SLOT_NS + 1) * SLOT_NS) == [0]


def test_entries_out_of_bounds_are_refused() -> None:
    wheel = TimingWheel(4)
    with pytest.raises(LocalProtocolError):
        wheel.insert(4, 0, 0)
    with pytest.raises(LocalProtocolError):
        wheel.remove(4)
    assert len(wheel) == 0
    assert 4 not in wheel
