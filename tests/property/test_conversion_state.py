"""The conversion state against a Python state, its digest against one computed from scratch, images against both."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.conversion import OracleState
from penstock.convert.books.state import ConversionState, Side
from unit.conversion_kit import (
    INSTRUMENTS,
    POPULATION,
    apply,
    apply_to_oracle,
    changes,
    new_oracle,
    new_state,
    unit_changes,
)


def assert_equal(state: ConversionState, oracle: OracleState) -> None:
    for number in range(INSTRUMENTS):
        for side in Side:
            assert state.levels(number, side, 1000) == oracle.levels(number, side)
        assert state.day_statistics(number) == oracle.statistics(number)
    assert state.order_count == len(oracle.orders)
    for reference, order in oracle.orders.items():
        found = state.order(reference)
        assert found is not None
        assert (found.instrument, found.side, found.price, found.remaining, found.participant) == (
            order.instrument, order.side, order.price, order.shares, order.participant
        )  # fmt: skip
    assert state.digest == oracle.digest()
    assert state.digest == int(state.unit_digests().sum(dtype="u8"))


@pytest.mark.spec("FEED-4", "FEED-9")
@settings(max_examples=300)
@given(st.lists(changes, max_size=60))
def test_every_answer_and_the_end_are_those_of_the_twin(series: list[tuple[Any, ...]]) -> None:
    state, oracle = new_state(seed=9), new_oracle()
    for change in series:
        assert apply(state, change) == apply_to_oracle(oracle, change), change
    assert_equal(state, oracle)


@given(st.lists(changes, max_size=60), st.randoms(use_true_random=False))
def test_equal_content_has_equal_digests_whatever_happened_before(series: list[tuple[Any, ...]], random: Any) -> None:
    """The same content, built in another order in a state from which other orders have been added and removed."""
    state = new_state(seed=1)
    oracle = new_oracle()
    for change in series:
        apply(state, change)
        apply_to_oracle(oracle, change)
    again = new_state(seed=2)
    for reference in range(1000, 1200):
        again.add_order(reference, reference % 2, reference % 2, 100 + reference, 5)
    for reference in range(1000, 1200):
        again.delete_order(reference)
    assert again.digest == new_state().digest
    orders = list(oracle.orders.items())
    random.shuffle(orders)
    for reference, order in orders:
        again.add_order(reference, order.instrument, order.side, order.price, order.shares, order.participant)
    again_oracle = new_oracle()
    again_oracle.orders = oracle.orders
    assert_equal(again, again_oracle)


def fetch(image: Any, size_max: int = 300) -> list[bytes]:
    chunks = []
    while chunk := image.chunk(size_max):
        assert len(chunk) <= size_max
        chunks.append(chunk)
    return chunks


@settings(max_examples=100)
@given(
    st.lists(changes, max_size=40),
    st.lists(st.lists(unit_changes, max_size=8), min_size=1, max_size=20),
    st.lists(changes, max_size=20),
    st.integers(120, 4000),
)
def test_changes_during_an_export_never_show(
    before: list[tuple[Any, ...]], during: list[list[tuple[Any, ...]]], other: list[tuple[Any, ...]], size_max: int
) -> None:
    state, oracle, target = new_state(seed=1), new_oracle(), new_state(seed=2)
    for change in [*before, *POPULATION]:
        apply(state, change)
        apply_to_oracle(oracle, change)
    for change in other:
        apply(target, change)
    image = state.begin_image()
    chunks = []
    left = list(during)
    while chunk := image.chunk(size_max):
        chunks.append(chunk)
        if left:
            for change in left.pop():
                apply(state, change)
            late = state.begin_image()  # in the meantime, other images are begun and dropped
            late.chunk(size_max)
    target.install(chunks)
    assert_equal(target, oracle)
    assert target.digest == image.digest


@settings(max_examples=60)
@given(st.lists(changes, max_size=40), st.lists(unit_changes, max_size=12), st.lists(unit_changes, max_size=12))
def test_only_what_differs_is_sent_and_makes_them_equal(
    common: list[tuple[Any, ...]], here: list[tuple[Any, ...]], there: list[tuple[Any, ...]]
) -> None:
    state, oracle, target = new_state(seed=1), new_oracle(), new_state(seed=2)
    for change in [*common, *POPULATION]:
        apply(state, change)
        apply(target, change)
        apply_to_oracle(oracle, change)
    for change in here:
        apply(state, change)
        apply_to_oracle(oracle, change)
    for change in there:
        apply(target, change)
    target.instrument("ONLY HERE")
    known = target.unit_digests()
    chunks = fetch(state.begin_image(known), 5000)
    differing = int((state.unit_digests() != known[: len(state.unit_digests())]).sum())
    assert units_in(chunks) == differing
    target.install(chunks)
    assert_equal(target, oracle)
    assert target.find("ONLY HERE") == -1
    for change in common:  # the installed state handles further changes like the original
        assert apply(state, change) == apply(target, change)
    assert state.digest == target.digest


def units_in(chunks: list[bytes]) -> int:
    body = b"".join(chunk[32:] for chunk in chunks)
    count = at = 0
    while at < len(body):
        at += 24 + int.from_bytes(body[at + 8 : at + 16], "little")
        count += 1
    return count


@settings(max_examples=40)
@given(st.lists(unit_changes, min_size=10, max_size=80))
def test_a_change_copies_only_what_it_touches_and_a_chunk_one_unit(series: list[tuple[Any, ...]]) -> None:
    state = new_state()
    for reference in range(2000):
        state.add_order(10_000 + reference, reference % 2, reference % 2, 100 + reference % 50, 5)
    largest = max(len(state.unit_bytes(number)) for number in range(len(state.unit_digests())))
    image = state.begin_image()
    for change in series:
        copies, size = image.copies, image.copied_size
        apply(state, change)
        touched = 3 if change[0] == "replace_order" else 2  # a shard and its instrument; two shards when replaced
        assert image.copies - copies <= touched
        assert image.copied_size - size <= touched * (largest + 400)
        copies = image.copies
        image.chunk(400)
        assert image.copies - copies <= 1
