"""Rate of reading a recorded feed as rows: with the converter, and by hand with numpy, for bench.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.conversion import SYMBOLS, write_day
from penstock.bench.harness import Result, interleaved_seconds, result
from penstock.convert import ConverterTable
from penstock.spark import slices_frame
from penstock.spark.feedindex import plan_slices
from penstock.spark.feedslices import FeedSlice

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGES = 10_000_000
GROWN = 4
ROUNDS = 3
DAY = "2024-01-02"
COLUMNS = ("source_seq", "event_time", "order_id")
"""Columns of every message about an order, which numpy can extract as well."""

ORDER_TYPES = b"AFECXDU"


def normalise_messages(spark: Any, folder: Path) -> Iterator[Result]:
    """Convert an ITCH file to rows and count them; then a file four times as large."""
    from penstock.spark import raw

    day, grown = folder / "day.itch", folder / "grown.itch"
    count = write_day(day, MESSAGES)
    cache = folder / "cache"

    def rows(path: Path) -> int:
        frame = raw.normalised(
            spark, path, table="itch", date=DAY, model="book_event", columns=COLUMNS, cache=str(cache)
        )
        counted: int = frame.count()
        return counted

    started = time.perf_counter()
    made = rows(day)
    first = time.perf_counter() - started
    grown_count = write_day(grown, GROWN * MESSAGES)
    by_hand = slices_frame(spark, plan_slices(day, cores=2, cache=cache))
    midnight_ns = ConverterTable.load("itch").compile().midnight_ns(date.fromisoformat(DAY))
    work = partial(decode_by_hand, midnight_ns=midnight_ns)
    schema = ", ".join(f"{name} BIGINT" for name in COLUMNS)
    ours, theirs, larger = interleaved_seconds(
        lambda: rows(day),
        lambda: by_hand.mapInArrow(work, schema).count(),
        lambda: rows(grown),
        rounds=ROUNDS,
    )
    yield result(
        "pipeline",
        "normalise_messages_per_s",
        count / ours,
        "1/s",
        against="mapInArrow and numpy, written by hand for these columns of order messages, without a book",
        against_value=count / theirs,
        conditions=f"local[2]; {count:,} source messages of {SYMBOLS} symbols, {day.stat().st_size >> 20} MiB; "
        f"{made:,} rows of book_event with {', '.join(COLUMNS)}, counted; with an existing index; "
        f"the first time, with the index, took {first:.1f} s; median of {ROUNDS}",
    )
    yield result(
        "pipeline",
        "growth",
        larger / ours / (grown_count / count),
        "ratio",
        against="a time proportional to the messages",
        against_value=1.0,
        conditions=f"local[2]; time for {grown_count:,} source messages by that for {count:,}, divided by {GROWN}",
    )


def decode_by_hand(batches: Iterator[pa.RecordBatch], midnight_ns: int) -> Iterator[pa.RecordBatch]:
    """Decode by hand, as without Penstock; only the cut positions are given."""
    import numpy as np
    import pyarrow as pa

    wanted = np.zeros(256, bool)
    wanted[list(ORDER_TYPES)] = True
    for batch in batches:
        for text in batch.column(0).to_pylist():
            piece = msgspec.json.decode(text, type=FeedSlice)
            sequence = piece.first_sequence
            for data, found in read_pieces(piece):
                starts = np.array(found, np.int64)
                numbers = np.arange(sequence, sequence + len(starts))
                sequence += len(starts)
                array = np.frombuffer(data, np.uint8)
                is_order = wanted[array[starts]]
                starts, numbers = starts[is_order], numbers[is_order]
                times = big_endian(array, starts + 5, 6) + midnight_ns
                orders = big_endian(array, starts + 11, 8)
                arrays = [pa.array(numbers), pa.array(times), pa.array(orders)]
                yield pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))


def read_pieces(piece: FeedSlice) -> Iterator[tuple[bytes, list[int]]]:
    """Yield some megabytes at a time, and the start of each complete message."""
    size_max = 4 * 1024 * 1024
    with Path(piece.path).open("rb") as file:
        file.seek(piece.offset)
        left, rest = piece.size, b""
        while left:
            data = rest + file.read(min(size_max, left))
            left -= len(data) - len(rest)
            starts, at = [], 0
            while at + 2 <= len(data) and (after := at + 2 + (data[at] << 8 | data[at + 1])) <= len(data):
                starts.append(at + 2)
                at = after
            yield data, starts
            rest = data[at:]


def big_endian(array: Any, places: Any, size: int) -> Any:
    value = array[places].astype("i8")
    for at in range(1, size):
        value = value << 8 | array[places + at]
    return value
