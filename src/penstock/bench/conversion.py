"""Rate of reading and converting source messages on one core, compared with copying the output."""

import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import numpy as np

from penstock.bench.harness import Result, result, seconds_per_call
from penstock.convert import Converter, ConverterTable
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.feed.recorded.files import open_source

SYMBOLS = 1_000
MESSAGES = 1_000_000
ROUNDS = 5


def run() -> Iterator[Result]:
    yield convert_messages_per_s()


def convert_messages_per_s() -> Result:
    """Convert a generated day from a file with the shipped table; the median of several runs."""
    with tempfile.TemporaryDirectory() as directory:
        day = Path(directory) / "day.itch"
        count = write_day(day, MESSAGES)
        figures = [_convert(day) for _ in range(ROUNDS)]
        day_size = day.stat().st_size
    seconds = sorted(each for each, _, _ in figures)
    _, made, size = figures[0]
    memory, into = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    copies_per_s = count / seconds_per_call(lambda: np.copyto(into, memory))
    return result(
        "feed",
        "convert_messages_per_s",
        count / seconds[ROUNDS // 2],
        "1/s",
        against="a copy of the output messages",
        against_value=copies_per_s,
        conditions=f"an ITCH file of {SYMBOLS} symbols and {day_size >> 20} MiB (page cache), read and converted, "
        f"{count} source messages to {made} messages of {size // made} bytes with ORIGIN, table itch, one core",
    )


def write_day(day: Path, messages: int) -> int:
    """Write a generated day to a file; return its number of messages."""
    generator = ItchGenerator(GeneratorConfig(seed=7, symbols=SYMBOLS, messages=messages))
    with day.open("wb") as file:
        while blocks := bytes(generator.blocks()):
            file.write(blocks)
    return generator.next_sequence - 1


def _convert(day: Path) -> tuple[float, int, int]:
    """Return the seconds for reading and converting, the number of output messages, and their size in bytes."""
    converter = Converter(ConverterTable.load("itch").compile(), 1, trading_date=date(2024, 1, 2))
    size = 0
    started = time.perf_counter()
    with open_source(day) as source:
        for batch in source.batches():
            size += len(converter.convert(batch).payloads)
    return time.perf_counter() - started, converter.next_message_sequence - 1, size
