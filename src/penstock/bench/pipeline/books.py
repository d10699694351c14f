"""Order flow into top of book and ten levels: book events per second on two cores."""

from collections.abc import Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.bench.conversion import write_day
from penstock.bench.harness import Result, interleaved_seconds, result
from penstock.bench.pipeline.feeds import ROUNDS
from penstock.capture.core.rows import rows_of_converted
from penstock.convert import Converter, ConverterTable
from penstock.feed.recorded.files import open_source
from penstock.model import shipped
from penstock.model.columns import to_spark
from penstock.spark.envelope import envelope_array
from penstock.spark.pipeline.derive import Books, Step, TableWork

SYMBOLS = 1_000
MESSAGES = 4_000_000
FILES = 4
PEER_COLUMNS = "seq BIGINT, bid DECIMAL(18,8), ask DECIMAL(18,8)"
ENVELOPE = ("seq", "term", "origin")
EVENTS_OF_PEER = 200_000


def book_events(spark: Any, folder: Path) -> Iterator[Result]:
    """Read book events from Parquet into both tables, counted or written by the workers; compared with a book in
    Python.
    """
    from pyspark.sql import functions as f

    files, events = _order_flow(folder)

    def derived(into: str) -> dict[str, int]:
        new = {"book_event": spark.range(0)}  # the workers read the files themselves
        (output,) = Books().step(Step(new=new, before={}, is_final=True, files={"book_event": files}))
        assert output.work is not None
        made = output.frame.mapInArrow(partial(_take, output.work, into), "name STRING, count BIGINT")
        return {row.name: row["sum(count)"] for row in made.groupBy("name").sum("count").collect()}

    few = pq.read_table(files[0], partitioning=None).slice(0, EVENTS_OF_PEER)
    peer = spark.createDataFrame(few).groupBy("symbol")
    rows = derived("")
    seconds, written_seconds, peer_seconds = interleaved_seconds(
        lambda: derived(""),
        lambda: derived(str(folder)),
        lambda: peer.applyInArrow(_book_in_python, PEER_COLUMNS).agg(f.count("*")).collect(),
        rounds=ROUNDS,
    )
    yield result(
        "pipeline",
        "book_events_per_s",
        events / seconds,
        "1/s",
        against="the best bid and offer alone, by a book in Python for each symbol (applyInArrow)",
        against_value=EVENTS_OF_PEER / peer_seconds,
        conditions=f"local[2]; {events:,} book events of {SYMBOLS:,} symbols from {FILES} zstd Parquet files, "
        f"partitioned by symbol, sorted, to {rows['top_of_book']:,} rows of top_of_book and {rows['depth']:,} of depth "
        f"(ten levels), as Arrow batches that the workers count; {events / written_seconds:,.0f}/s when the workers "
        f"also write zstd Parquet; median of {ROUNDS}; the book in Python processed {EVENTS_OF_PEER:,} events",
    )


def _take(work: TableWork, into: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count the rows of each table; write them to files below `into`, if given."""
    counts: dict[str, int] = {}
    writers: dict[str, pq.ParquetWriter] = {}
    for name, batch in work(batches):
        counts[name] = counts.get(name, 0) + batch.num_rows
        if into and name not in writers:
            path = f"{into}/{name}-{uuid4()}.parquet"
            writers[name] = pq.ParquetWriter(path, batch.schema, compression="zstd", store_decimal_as_integer=True)
        if into:
            writers[name].write_batch(batch)
    for writer in writers.values():
        writer.close()
    yield pa.RecordBatch.from_pydict(
        {"name": pa.array(counts, pa.string()), "count": pa.array(counts.values(), pa.int64())}
    )


def _order_flow(folder: Path) -> tuple[list[str], int]:
    """Write files with the book events of a generated day; return the files and the number of events."""
    day, place = folder / "flow.itch", folder / "book_event" / "stream=1"
    write_day(day, MESSAGES)
    place.mkdir(parents=True)
    batches = [batch for batch in _converted(day) if batch.num_rows]
    day.unlink()
    files = []
    for number in range(FILES):
        share = batches[number * len(batches) // FILES : (number + 1) * len(batches) // FILES]
        files.append(str(place / f"part-{number}.parquet"))
        pq.write_table(pa.Table.from_batches(share), files[-1], compression="zstd", store_decimal_as_integer=True)
    return files, sum(batch.num_rows for batch in batches)


def _converted(day: Path) -> Iterator[pa.RecordBatch]:
    model = shipped("book_event")
    converter = Converter(ConverterTable.load("itch").compile(), 1, trading_date=date(2024, 1, 2))
    with open_source(day) as source:
        for batch in source.batches():
            rows = rows_of_converted(converter.convert(batch))
            rows = rows.select(rows.rows["model_id"] == model.id)
            fields = to_spark(model, rows.records(model))
            arrays = [envelope_array(rows, name) for name in ENVELOPE]
            yield pa.RecordBatch.from_arrays([*arrays, *fields.columns], [*ENVELOPE, *fields.schema.names])


def _book_in_python(events: pa.Table) -> pa.Table:
    """A book as written without Penstock: orders and prices in dictionaries."""
    orders: dict[int, list[Any]] = {}
    sides: dict[str, dict[Any, int]] = {"buy": {}, "sell": {}}
    made: list[tuple[Any, ...]] = []

    def change(order: list[Any], quantity: int) -> None:
        order[2] += quantity
        levels = sides[order[0]]
        levels[order[1]] = levels.get(order[1], 0) + quantity
        if not levels[order[1]]:
            del levels[order[1]]

    for event in events.sort_by("seq").to_pylist():
        reference, quantity = event["order_id"], event["quantity"]
        if event["action"] == "add":
            orders[reference] = [event["side"], event["price"], 0]
            change(orders[reference], quantity)
        elif reference in orders:
            order = orders[reference]
            change(order, -(quantity if event["action"] in ("cancel", "execute") else order[2]))
            if event["action"] == "replace":
                orders[event["new_order_id"]] = [order[0], event["price"], 0]
                change(orders[event["new_order_id"]], quantity)
            if not order[2]:
                del orders[reference]
        best = max(sides["buy"], default=None), min(sides["sell"], default=None)
        if not made or made[-1][1:] != best:
            made.append((event["seq"], *best))
    kinds = [pa.int64(), pa.decimal128(18, 8), pa.decimal128(18, 8)]
    columns = [pa.array([row[at] for row in made], kind) for at, kind in enumerate(kinds)]
    return pa.Table.from_arrays(columns, ["seq", "bid", "ask"])
