"""The generated order flow is a plausible market."""

import hashlib
import itertools

import pytest

from oracles.itch import SIZES, Market, messages_of
from penstock.base.errors import ConfigurationError
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator


def day(**values: int) -> bytes:
    generator = ItchGenerator(GeneratorConfig(**values))
    pieces = []
    while len(blocks := generator.blocks()):
        pieces.append(bytes(blocks))
    return b"".join(pieces)


@pytest.mark.spec("FEED-7")
@pytest.mark.parametrize(
    ("seed", "symbols", "messages"), [(1, 20, 40_000), (2, 1, 3_000), (3, 500, 30_000), (4, 5, 800)]
)
def test_a_day_is_valid_and_has_every_message_type(seed: int, symbols: int, messages: int) -> None:
    market = Market()
    for message in messages_of(day(seed=seed, symbols=symbols, messages=messages)):
        market.take(message)
    assert market.events == "OSQMEC"
    assert not market.orders
    assert not market.stopped
    assert set(market.states.values()) == {"T"}
    assert len(market.stocks) == symbols
    assert market.volume > 0
    assert set(market.counts) == set(SIZES), "every type of message"


def test_a_day_without_order_flow_is_valid() -> None:
    market = Market()
    for message in messages_of(day(symbols=3, messages=0)):
        market.take(message)
    assert market.events == "OSQMEC"


def test_the_same_seed_gives_the_same_bytes_for_any_chunk_sizes() -> None:
    config = GeneratorConfig(seed=7, symbols=30, messages=5_000)
    whole = list(messages_of(day(seed=7, symbols=30, messages=5_000)))
    generator = ItchGenerator(config)
    taken: list[bytes] = []
    while len(batch := generator.take(17)):
        assert [sequence for sequence, _ in batch] == list(range(len(taken) + 1, len(taken) + len(batch) + 1))
        taken += [message for _, message in batch]
    assert taken == whole
    assert generator.is_done
    assert len(generator.take()) == 0
    assert day(seed=8, symbols=30, messages=5_000) != b"".join(whole)


def test_the_output_of_a_seed_does_not_change() -> None:
    """Captured days and figures stay comparable; a change here must be deliberate."""
    digest = hashlib.sha256(day(seed=1, symbols=10, messages=2_000)).hexdigest()
    assert digest[:16] == "0ecbcf91bfa217fc"


def test_some_symbols_are_more_popular_and_messages_come_in_bursts() -> None:
    counts: dict[int, int] = {}
    times = []
    for message in messages_of(day(symbols=200, messages=60_000)):
        if message[:1] in b"ADEUXC":
            locate = int.from_bytes(message[1:3], "big")
            counts[locate] = counts.get(locate, 0) + 1
            times.append(int.from_bytes(message[5:11], "big"))
    ranked = sorted(counts.values(), reverse=True)
    assert ranked[0] > 20 * ranked[-1]
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(times))
    mean = sum(gaps) / len(gaps)
    assert gaps[len(gaps) // 10] < mean / 30, "a tenth of all messages has no pause before it"
    assert gaps[-1] > mean * 5


def test_symbols_are_unique_and_the_first_are_well_known() -> None:
    symbols = ItchGenerator(GeneratorConfig(symbols=20_000, messages=0)).symbols
    assert symbols[0] == "AAPL"
    assert len(set(symbols)) == 20_000


@pytest.mark.parametrize("values", [{"symbols": 0}, {"symbols": 20_001}, {"messages": -1}, {"seed": -1}])
def test_impossible_values_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        GeneratorConfig(**values)


def judge(messages: list[bytes]) -> None:
    market = Market()
    for message in messages:
        market.take(message)


@pytest.mark.parametrize("kind", list("AEDUXB"))
def test_the_checker_of_these_tests_detects_violations(kind: str) -> None:
    whole = list(messages_of(day(seed=1, symbols=3, messages=2_000)))
    at = next(number for number, message in enumerate(whole) if message[:1] == kind.encode())
    judge(whole)
    with pytest.raises((AssertionError, KeyError)):
        judge([*whole[: at + 1], *whole[at:]])  # twice
    if kind in "AU":
        with pytest.raises((AssertionError, KeyError)):
            judge([*whole[:at], *whole[at + 1 :]])  # never
