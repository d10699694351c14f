"""Duration of `message.bid_price` in Python, compared with unpacking the same eight bytes with struct."""

import struct
import time
from collections.abc import Callable, Iterator

from penstock.bench.harness import Result, result
from penstock.model import shipped

READS_PER_ROUND = 400_000
ROUNDS = 9


def run() -> Iterator[Result]:
    message = shipped("quote").new(symbol="IBM", bid_price="100.25", ask_price="100.26")
    field = message.model.fields_by_name["bid_price"]
    unpack = struct.Struct("<q").unpack_from
    record = bytes(message)
    power = 10**field.decimals
    idle = _best_ns(lambda: _nothing(message))
    yield result(
        "model",
        "field_read_ns",
        _best_ns(lambda: _read_field(message)) - idle,
        "ns",
        against="struct.unpack_from of the same price, divided by its power of ten",
        against_value=_best_ns(lambda: _unpack(unpack, record, field.offset, power)) - idle,
        conditions=f"message.bid_price of a quote, best of {ROUNDS} rounds of {READS_PER_ROUND}, minus an empty loop",
    )


def _best_ns(loop: Callable[[], None]) -> float:
    """Return nanoseconds per iteration of the loop, from the least disturbed round."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        loop()
        best = min(best, time.perf_counter_ns() - started)
    return best / READS_PER_ROUND


def _nothing(message: object) -> None:
    for _ in range(READS_PER_ROUND):
        message  # noqa: B018


def _read_field(message: object) -> None:
    for _ in range(READS_PER_ROUND):
        message.bid_price  # type: ignore[attr-defined]  # noqa: B018


def _unpack(unpack: Callable[[bytes, int], tuple[int]], record: bytes, offset: int, power: int) -> None:
    for _ in range(READS_PER_ROUND):
        unpack(record, offset)[0] / power
