"""The interest table: matches per second with a million interests, scaling, and memory per interest."""

import random
from collections.abc import Iterator

import numpy
import numpy.typing as npt

from penstock.bench._floor import RandomReads
from penstock.bench.harness import Result, result, seconds_per_call
from penstock.topics import InterestTable

INTERESTS_LARGE = 1_000_000
INTERESTS_SMALL = 1_000
WILDCARD_SHARE = 0.1
KNOWN_SHARE = 0.5
SUBSCRIBERS = 10_000
TOPICS = 1_000_000
BATCH = 4_096
READS = 1_000_000
SEED = 7

REGIONS = ("us", "eu", "ap", "la")
CLASSES = ("eq", "opt", "fut", "fx")
FIELDS = ("quote", "trade", "book", "status", "bar")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

Batch = tuple[bytes, npt.NDArray[numpy.uint32], npt.NDArray[numpy.uint16]]


def run() -> Iterator[Result]:
    large, batches = _table_and_batches(INTERESTS_LARGE)
    conditions = (
        f"{INTERESTS_LARGE} interests, {WILDCARD_SHARE:.0%} with *, >, AA* or ranges; {TOPICS} topics drawn at "
        f"random, {_matching_share(large, batches):.0%} match; batches of {BATCH}; one core"
    )
    large_seconds = _seconds_per_match(large, batches)
    floor = RandomReads(large.memory_bytes, SEED)
    independent_per_s = READS / seconds_per_call(lambda: floor.independent(READS))
    dependent_per_s = READS / seconds_per_call(lambda: floor.dependent(READS))
    yield result(
        "match",
        "matches_per_s_1m",
        1 / large_seconds,
        "1/s",
        against="independent random reads of cache lines, block of the table's size",
        against_value=independent_per_s,
        conditions=f"{conditions}; dependent reads: {dependent_per_s:.0f}/s",
    )
    yield result(
        "match",
        "bytes_per_interest",
        large.memory_bytes / len(large),
        "bytes",
        against="bytes of a cache line",
        against_value=64,
        conditions=conditions,
    )
    small, batches = _table_and_batches(INTERESTS_SMALL)
    small_seconds = _seconds_per_match(small, batches)
    yield result(
        "match",
        "growth_1m_over_1k",
        large_seconds / small_seconds,
        "ratio",
        against="a constant cost",
        against_value=1,
        conditions=f"{conditions}; the same shapes with {INTERESTS_SMALL}: {small_seconds * 1e9:.0f} ns per match",
    )


def _table_and_batches(count: int) -> tuple[InterestTable, list[Batch]]:
    """Return a table of `count` interests, and topics of which about half match."""
    source = random.Random(SEED)
    symbols = _symbols(source, max(8, count // 40))
    table = InterestTable(seed=bytes(range(16)))
    wildcards = round(count * WILDCARD_SHARE)
    wanted: set[str] = set()
    while len(wanted) < count - wildcards:
        wanted.add(_topic(source, symbols))
    while len(wanted) < count:
        wanted.add(_pattern(source, symbols))
    interests = sorted(wanted)
    source.shuffle(interests)
    table.add_many(interests, numpy.array([source.randrange(SUBSCRIBERS) for _ in interests]))
    exact = [interest for interest in interests if not set(interest) & set("*>[")]
    others = _symbols(source, len(symbols))
    topics = [source.choice(exact) if source.random() < KNOWN_SHARE else _topic(source, others) for _ in range(TOPICS)]
    return table, [_batch(topics[start : start + BATCH]) for start in range(0, TOPICS, BATCH)]


def _symbols(source: random.Random, count: int) -> list[str]:
    """Return random names; one in ten is a number."""
    return [
        str(source.randrange(1_000_000)) if source.random() < 0.1 else "".join(source.choices(LETTERS, k=5))
        for _ in range(count)
    ]


def _topic(source: random.Random, symbols: list[str]) -> str:
    names = source.choice(REGIONS), source.choice(CLASSES), source.choice(symbols), source.choice(FIELDS)
    return f"md.{'.'.join(names)}"


def _pattern(source: random.Random, symbols: list[str]) -> str:
    """Return a topic with one level, or its end, replaced by one of the wildcards."""
    _, region, kind, symbol, name = _topic(source, symbols).split(".")
    low = source.randrange(1_000_000)
    return source.choice(
        (
            f"md.*.{kind}.{symbol}.{name}",
            f"md.{region}.*.{symbol}.{name}",
            f"md.{region}.{kind}.{symbol}.*",
            f"md.{region}.{kind}.{symbol}.>",
            f"md.{region}.{kind}.{symbol[:4]}*.{name}",
            f"md.{region}.{kind}.[{low}..{low + source.randrange(64)}].{name}",
        )
    )


def _batch(topics: list[str]) -> Batch:
    encoded = [topic.encode() for topic in topics]
    sizes = numpy.array([len(topic) for topic in encoded], dtype=numpy.uint16)
    offsets = numpy.zeros(len(topics), dtype=numpy.uint32)
    numpy.cumsum(sizes[:-1], out=offsets[1:])
    return b"".join(encoded), offsets, sizes


def _matching_share(table: InterestTable, batches: list[Batch]) -> float:
    matching = sum(int(numpy.count_nonzero(numpy.diff(table.match_batch(*batch)[0]))) for batch in batches)
    return matching / TOPICS


def _seconds_per_match(table: InterestTable, batches: list[Batch]) -> float:
    def all_batches() -> None:
        for batch in batches:
            table.match_batch(*batch)

    return seconds_per_call(all_batches) / TOPICS
