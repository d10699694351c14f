"""How many source messages a second one core converts, beside a bare copy of what comes out."""

import time
from collections.abc import Iterator
from datetime import date

import numpy as np

from penstock.bench.harness import Result, result, seconds_per_call
from penstock.convert import Converter, ConverterTable, SourceBatch
from penstock.feed.generator import GeneratorConfig, ItchGenerator

SYMBOLS = 1_000
MESSAGES = 1_000_000
BATCH = 1_024
ROUNDS = 5


def run() -> Iterator[Result]:
    yield convert_messages_per_s()


def convert_messages_per_s() -> Result:
    """A generated day, in memory as a file would be, through the shipped table; the median of several days."""
    batches = list(_batches())
    count = sum(len(batch) for batch in batches)
    plan = ConverterTable.load("itch").compile()
    seconds = []
    for _ in range(ROUNDS):
        converter = Converter(plan, 1, trading_date=date(2024, 1, 2))
        size = 0
        started = time.perf_counter()
        for batch in batches:
            size += len(converter.convert(batch).payloads)
        seconds.append(time.perf_counter() - started)
    made = converter.next_message_sequence - 1
    memory, into = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    copies_per_s = count / seconds_per_call(lambda: np.copyto(into, memory))
    return result(
        "feed",
        "convert_messages_per_s",
        count / sorted(seconds)[ROUNDS // 2],
        "1/s",
        against="a bare copy of the messages that come out",
        against_value=copies_per_s,
        conditions=f"ITCH of {SYMBOLS} symbols, {count} source messages into {made} of {size // made} bytes with their "
        f"origin, batches of {BATCH}, table itch, one core",
    )


def _batches() -> Iterator[SourceBatch]:
    messages: list[bytes] = []
    sequence = 1
    for message in ItchGenerator(GeneratorConfig(seed=7, symbols=SYMBOLS, messages=MESSAGES)):
        messages.append(message)
        if len(messages) == BATCH:
            yield SourceBatch.from_messages(messages, sequence)
            sequence += BATCH
            messages = []
    yield SourceBatch.from_messages(messages, sequence)
