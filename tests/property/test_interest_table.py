"""The interest table against a reference table."""

import itertools
import string

import numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from oracles.interests import OracleTable, level_matches
from penstock.topics import InterestTable
from penstock.topics.ranges import blocks

# Few words, numbers and subscribers, so that collisions are frequent.
words = st.sampled_from(["a", "b", "ab", "aba", "é", "0", "7", "8", "12", "012", "18446744073709551615", "x" * 41])
numbers = st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1))
topics = st.lists(words | numbers.map(str), min_size=1, max_size=4).map(".".join)
tags = st.sampled_from(["t", "u", "a.b"])
subscribers = st.integers(0, 5)


@st.composite
def ranges(draw: st.DrawFn) -> str:
    low, high = sorted((draw(numbers), draw(numbers)))
    return draw(st.sampled_from([f"[{low}..{high}]", f"[{low}..]", f"[..{high}]"]))


@st.composite
def patterns(draw: st.DrawFn) -> str:
    prefixes = words.map(lambda word: word + "*")
    levels = draw(st.lists(st.one_of(words, st.just("*"), prefixes), min_size=1, max_size=4))
    if draw(st.booleans()):
        levels[draw(st.integers(0, len(levels) - 1))] = draw(ranges())
    if draw(st.booleans()):
        levels.append(">")
    return ".".join(levels)


regexes = st.sampled_from(["/a/", "/a.*/", "/.*[.]b/", "/(a|b)[.].+/", "/[0-9]+/", "/.*é.*/"])
interests = st.builds(
    str.__add__, st.sampled_from(["", "", "!"]), topics | patterns() | regexes | tags.map("#".__add__)
)


def canonical(interest: str) -> str:
    """Open ranges written in full: the table takes [..7] and [0..7] for the same interest, the oracle compares text."""
    return interest.replace("[..", "[0..").replace("..]", f"..{2**64 - 1}]")


def match_batch(table: InterestTable, batch: list[str]) -> list[list[int]]:
    encoded = [topic.encode() for topic in batch]
    sizes = numpy.array([len(topic) for topic in encoded], dtype=numpy.uint16)
    offsets = (numpy.cumsum(sizes) - sizes).astype(numpy.uint32)
    bounds, found = table.match_batch(b"".join(encoded), offsets, sizes)
    assert bounds[-1] == len(found)
    return [sorted(found[bounds[i] : bounds[i + 1]].tolist()) for i in range(len(batch))]


class TableAgainstOracle(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = InterestTable(seed=bytes(16))
        self.oracle = OracleTable()

    @rule(interest=interests, subscriber=subscribers)
    def add(self, interest: str, subscriber: int) -> None:
        assert self.table.add(interest, subscriber) == self.oracle.add(canonical(interest), subscriber)

    @rule(pairs=st.lists(st.tuples(interests, subscribers), max_size=8))
    def add_many(self, pairs: list[tuple[str, int]]) -> None:
        added = self.table.add_many([interest for interest, _ in pairs], [subscriber for _, subscriber in pairs])
        assert added == sum(self.oracle.add(canonical(interest), subscriber) for interest, subscriber in pairs)

    @rule(interest=interests, subscriber=subscribers)
    def remove_any(self, interest: str, subscriber: int) -> None:
        assert self.table.remove(interest, subscriber) == self.oracle.remove(canonical(interest), subscriber)

    @rule(data=st.data())
    def remove_present(self, data: st.DataObject) -> None:
        if self.oracle.interests:
            interest, subscriber = data.draw(st.sampled_from(sorted(self.oracle.interests)))
            assert self.table.remove(interest, subscriber)
            self.oracle.remove(interest, subscriber)

    @rule(subscriber=subscribers)
    def remove_subscriber(self, subscriber: int) -> None:
        assert self.table.remove_subscriber(subscriber) == self.oracle.remove_subscriber(subscriber)

    @rule(topic=topics, tags=st.lists(tags, max_size=3).map(tuple))
    def match(self, topic: str, tags: tuple[str, ...]) -> None:
        assert self.table.match(topic, tags) == self.oracle.match(topic, tags)

    @rule(batch=st.lists(topics, min_size=1, max_size=8))
    def match_batch(self, batch: list[str]) -> None:
        assert match_batch(self.table, batch) == [self.oracle.match(topic) for topic in batch]

    @invariant()
    def same_size(self) -> None:
        assert len(self.table) == len(self.oracle)

    def teardown(self) -> None:
        for subscriber in range(6):
            self.table.remove_subscriber(subscriber)
        assert self.table._kernel.node_count == 1


TestTableAgainstOracle = TableAgainstOracle.TestCase


@given(st.lists(st.tuples(interests, st.integers(0, 40)), max_size=60), st.lists(topics, min_size=1, max_size=300))
def test_large_batches(pairs: list[tuple[str, int]], batch: list[str]) -> None:
    table, oracle = InterestTable(seed=bytes(16)), OracleTable()
    for interest, subscriber in pairs:
        table.add(interest, subscriber)
        oracle.add(canonical(interest), subscriber)
    assert match_batch(table, batch) == [oracle.match(topic) for topic in batch]


# Topics with common prefixes, matched again and again: the table caches the partial matches of prefixes.
BEATEN_TRACKS = [".".join(levels) for depth in (3, 4, 5) for levels in itertools.product("ab", repeat=depth)]
steps = st.lists(st.sampled_from(["a", "b", "*", "a*"]), min_size=1, max_size=5)
deep_patterns = st.builds(lambda levels, rest: ".".join(levels) + rest, steps, st.sampled_from(["", "", ".>"]))


def agrees_twice(table: InterestTable, oracle: OracleTable) -> bool:
    expected = [oracle.match(topic) for topic in BEATEN_TRACKS]
    return match_batch(table, BEATEN_TRACKS) == expected == match_batch(table, BEATEN_TRACKS)


@given(st.lists(st.one_of(deep_patterns, st.integers(0, 9)), min_size=1, max_size=20))
def test_what_is_remembered_of_beginnings_is_forgotten_when_interests_change(changes: list[str | int]) -> None:
    """A text adds a pattern; a number removes one of the present patterns."""
    table, oracle = InterestTable(seed=bytes(16)), OracleTable()
    for number, change in enumerate(changes):
        if isinstance(change, str):
            assert table.add(change, number) == oracle.add(change, number)
        elif oracle.interests:
            interest, subscriber = sorted(oracle.interests)[change % len(oracle.interests)]
            assert table.remove(interest, subscriber)
            assert oracle.remove(interest, subscriber)
        assert agrees_twice(table, oracle)


def test_beginnings_that_lead_to_more_than_is_remembered() -> None:
    """Three alternatives on each of three levels make 27 nodes, and as many `>`."""
    table, oracle = InterestTable(seed=bytes(16)), OracleTable()
    steps = itertools.product(["a", "*", "a*"], repeat=3)
    for subscriber, (levels, end) in enumerate(itertools.product(steps, [".b", ".a.b", ".>"])):
        table.add(".".join(levels) + end, subscriber)
        oracle.add(".".join(levels) + end, subscriber)
        assert agrees_twice(table, oracle)


@given(numbers, numbers, numbers)
def test_blocks_contain_what_the_range_contains(a: int, b: int, number: int) -> None:
    low, high = sorted((a, b))
    is_inside = any(number >> shift == value for shift, value in blocks(low, high))
    assert is_inside == level_matches(f"[{low}..{high}]", str(number))


@given(st.lists(st.text(string.ascii_letters, min_size=1, max_size=70), min_size=1, max_size=200, unique=True))
def test_words_of_every_length(levels: list[str]) -> None:
    table = InterestTable(seed=bytes(16))
    table.add_many([f"w.{level}" for level in levels], range(len(levels)))
    table.add_many([f"*.{level}" for level in levels], range(1_000, 1_000 + len(levels)))
    for number, level in enumerate(levels):
        assert table.match(f"w.{level}") == [number, 1_000 + number]
