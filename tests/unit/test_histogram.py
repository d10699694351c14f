"""Latency histograms against numpy's percentiles of the values themselves."""

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.histogram import BUCKET_COUNT, VALUE_BITS, HistogramState, LatencyHistogram, _buckets, highest_of

VALUES = st.lists(st.integers(0, 2**VALUE_BITS - 1) | st.integers(0, 5_000), min_size=1, max_size=200)
PRECISION = 1 / 64


def histogram(values: list[int]) -> LatencyHistogram:
    made = LatencyHistogram()
    made.record(numpy.array(values, numpy.int64))
    return made


@given(VALUES, st.floats(0, 100))
def test_percentiles_equal_those_of_numpy(values: list[int], q: float) -> None:
    found = histogram(values).percentile(q)
    low = numpy.percentile(numpy.array(values), q, method="lower")
    high = numpy.percentile(numpy.array(values), q, method="higher")
    assert low <= found <= high * (1 + PRECISION)


@given(st.lists(st.tuples(st.integers(0, 2 ** (VALUE_BITS + 2)), st.integers(1, 5)), max_size=50))
def test_values_can_be_counted_one_by_one(values: list[tuple[int, int]]) -> None:
    one_by_one = LatencyHistogram()
    for value, times in values:
        one_by_one.record_one(value, times)
    assert one_by_one.state() == histogram([value for value, times in values for _ in range(times)]).state()
    assert one_by_one.count == sum(times for _, times in values)


@given(VALUES, VALUES)
def test_two_histograms_can_be_added_also_after_serialisation(first: list[int], second: list[int]) -> None:
    merged = histogram(first)
    state = msgspec.json.decode(msgspec.json.encode(histogram(second).state()), type=HistogramState)
    merged.merge(state)
    assert merged.state() == histogram(first + second).state()
    assert merged.count == len(first) + len(second)


@given(st.integers(0, 2**63 - 1))
def test_a_bucket_has_the_documented_precision(value: int) -> None:
    bucket = int(_buckets(numpy.array([value]))[0])
    assert 0 <= bucket < BUCKET_COUNT
    if value < 2**VALUE_BITS - 2**36:
        assert value <= highest_of(bucket) <= value * (1 + PRECISION)


def test_every_bucket_is_reached_by_its_highest_value() -> None:
    highest = numpy.array([highest_of(bucket) for bucket in range(BUCKET_COUNT)])
    assert (numpy.diff(highest) > 0).all()
    assert _buckets(highest).tolist() == list(range(BUCKET_COUNT))
    assert _buckets(highest[:-1] + 1).tolist() == list(range(1, BUCKET_COUNT))


def test_values_below_zero_are_counted_separately() -> None:
    made = histogram([-5, 100, -(2**62), 300])
    assert (made.count, made.negative_count, made.maximum) == (2, 2, 300)
    assert made.percentile(100) == 300
    made.record(numpy.array([-1]))
    made.record(numpy.array([], numpy.int64))
    assert (made.count, made.negative_count) == (2, 3)


@pytest.mark.parametrize("value", [2**VALUE_BITS, 2**62])
def test_values_beyond_the_buckets_still_set_the_maximum(value: int) -> None:
    made = histogram([1, value])
    assert made.maximum == made.percentile(100) == value


def test_an_empty_histogram_has_zeros() -> None:
    assert LatencyHistogram().percentile(99) == LatencyHistogram().maximum == 0
