"""Records per second evaluated by a filter expression, compared with numpy on whole columns."""

from collections.abc import Iterator

import numpy as np

from penstock.bench.harness import Result, result, seconds_per_call
from penstock.model import shipped
from penstock.topics import Predicate

EXPRESSION = "symbol = 'IBM' and price > 100"
RECORDS = 200_000
SYMBOLS = [b"IBM", b"AAPL", b"MSFT", b"GOOG"]


def run() -> Iterator[Result]:
    model = shipped("trade")
    power = 10 ** model.fields_by_name["price"].decimals
    source = np.random.default_rng(7)
    records = np.zeros(RECORDS, model.dtype)
    records["symbol"] = source.choice(np.array(SYMBOLS), RECORDS)
    records["price"] = source.integers(90 * power, 110 * power, RECORDS)
    predicate = Predicate.compile(EXPRESSION, model)

    def with_numpy() -> object:
        return (records["symbol"] == b"IBM") & (records["price"] > 100 * power)

    def scattered() -> object:
        return predicate.select_at(records.data, offsets, sizes)

    offsets = np.arange(RECORDS, dtype=np.uint32) * np.uint32(model.record_size)
    sizes = np.full(RECORDS, model.record_size, np.uint32)
    numpy_per_s = RECORDS / seconds_per_call(with_numpy)
    for metric, call in (
        ("evaluations_per_s", lambda: predicate.select(records)),
        ("evaluations_per_s_scattered", scattered),
    ):
        yield result(
            "predicate",
            metric,
            RECORDS / seconds_per_call(call),
            "1/s",
            against="numpy over the same records, column by column",
            against_value=numpy_per_s,
            conditions=f"{EXPRESSION}; {RECORDS} trades of {model.record_size} bytes, a quarter IBM, one core",
        )
