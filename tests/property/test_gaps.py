"""The ranges of missing packets against a plain set of numbers."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.counters import Cause
from penstock.middleware.core.gaps import Gaps

RANGES = st.tuples(st.integers(1, 30), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1]))
STEPS = st.lists(st.tuples(st.sampled_from(["open", "fill", "give_up", "pop"]), RANGES), max_size=40)


@given(STEPS)
def test_gaps_are_a_set_of_missing_numbers(steps: list[tuple[str, tuple[int, int]]]) -> None:
    gaps, missing, hopeless, newest = Gaps(), set[int](), set[int](), 0
    for step, (first, last) in steps:
        numbers = set(range(first, last + 1))
        if step == "open":
            gaps.open(newest + first, newest + last, 0)
            missing |= {newest + number for number in numbers}
            newest += last + 1
        elif step == "fill":
            assert gaps.fill(first, last) == bool(numbers & missing)
            missing -= numbers
            hopeless -= numbers
        elif step == "give_up":
            gaps.give_up(first, last, Cause.GONE)
            hopeless |= numbers & missing
        elif gaps.oldest is not None:
            gap = gaps.pop_oldest()
            assert gap.first == min(missing)
            missing -= set(range(gap.first, gap.last + 1))
            hopeless -= set(range(gap.first, gap.last + 1))
        hopeful = [number for gap in gaps.hopeful() for number in range(gap.first, gap.last + 1)]
        assert hopeful == sorted(missing - hopeless)
        assert (gaps.oldest.first if gaps.oldest else None) == min(missing, default=None)
