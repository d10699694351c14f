"""Hostile texts for the parsers and the table: a clear error or a result, never anything else."""

import random

import numpy
import pytest

from penstock.base.errors import LimitError, TopicError
from penstock.topics import Interest, InterestTable, check_topic

ALPHABET = "ab0129.....**>>!!##//[[]]()+?|{}\\^$ \t\x00\x7fé\u2028\ud800\U0001f600"
ROUNDS = 3_000
ROUNDS_SOAK = 300_000


@pytest.fixture
def texts(soak: bool) -> list[str]:
    source = random.Random(20)
    pieces = [*ALPHABET, "md.us", "[1..2]", "[5..]", "a*", "..", "/a+/", "18446744073709551616"]
    rounds = ROUNDS_SOAK if soak else ROUNDS
    return ["".join(source.choices(pieces, k=source.randrange(1, 25))) for _ in range(rounds)]


def test_parsers_raise_nothing_but_topic_errors(texts: list[str]) -> None:
    errors = []
    for text in texts:
        for parse in (check_topic, Interest.parse):
            try:
                parse(text)
            except TopicError as error:
                errors.append(error)
    assert all(error.where and error.hint for error in errors)


def test_parsed_interests_can_be_added_and_removed(texts: list[str]) -> None:
    table = InterestTable(seed=bytes(16))
    taken = []
    for number, text in enumerate(texts):
        try:
            if table.add_many([text], [number % 100]):
                taken.append((text, number % 100))
        except (TopicError, LimitError):
            pass
    assert taken
    table.match("md.us")
    for text, subscriber in taken:
        assert table.remove(text, subscriber)
    assert len(table) == 0


def test_random_bytes_as_a_batch(soak: bool) -> None:
    source = random.Random(21)
    table = InterestTable(seed=bytes(16))
    for interest in [">", "*.a*", "a.[0..9].>", "b.*", "!a.b", "a.b"]:
        table.add(interest, len(table))
    for _ in range(2_000 if soak else 50):
        data = bytes(source.choices(b"ab01.\x00\xff* ", k=1_000))
        offsets = numpy.array([source.randrange(700) for _ in range(200)], dtype=numpy.uint32)
        sizes = numpy.array([source.randrange(300) for _ in range(200)], dtype=numpy.uint16)
        bounds, found = table.match_batch(data, offsets, sizes)
        assert bounds[-1] == len(found)


@pytest.mark.parametrize(
    "expression",
    ["(a+)+$", "(a|aa)+", "(a*)*b", "(.*.*.*.*.*)*x", "(a?){50}a{50}", "(?i)(a|b|ab)*c", "((a{1,30}){1,30})"],
)
def test_hostile_regexes_do_not_hang(expression: str) -> None:
    table = InterestTable(seed=bytes(16))
    table.add(f"/{expression}/", 1)
    assert table.match("a" * 254 + "z") == []
