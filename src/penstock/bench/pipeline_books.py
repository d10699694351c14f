"""Order flow into top of book and ten levels: how many book events a second two cores take."""

from collections.abc import Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.bench.harness import Result, result
from penstock.bench.pipeline_feeds import ROUNDS, median_seconds, write_day
from penstock.capture.rows import rows_of_converted
from penstock.convert import Converter, ConverterTable
from penstock.feed.sources import open_source
from penstock.model import shipped
from penstock.model.columns import to_spark
from penstock.spark.envelope import envelope_array
from penstock.spark.pipeline.derive import Books, Step, TableWork

SYMBOLS = 1_000
MESSAGES = 4_000_000
FILES = 4
ENVELOPE = ("seq", "term", "origin")
EVENTS_OF_PEER = 200_000


def book_events(spark: Any, folder: Path) -> Iterator[Result]:
    """Book events in Parquet, through both tables, whose rows Spark counts; a book in Python beside it."""
    from pyspark.sql import functions as f

    files, events = _order_flow(folder)
    new = {"book_event": spark.range(0)}  # the workers read the files themselves
    (output,) = Books().step(Step(new=new, before={}, is_final=True, files={"book_event": files}))
    assert output.work is not None
    columns = ", ".join(f"{name} STRUCT<{ddl}>" for name, ddl in output.tables.items())
    both = output.frame.mapInArrow(partial(_side_by_side, output.work), columns)
    counted = both.agg(f.count("top_of_book"), f.count("depth"), f.sum("top_of_book.bid_size"))
    ((best, levels, _),) = counted.collect()
    seconds = median_seconds(counted.first)
    few = spark.createDataFrame(pq.read_table(files[0]).slice(0, EVENTS_OF_PEER)).repartition(2, "symbol")
    peer = few.groupBy("symbol").applyInArrow(_book_in_python, "seq BIGINT, bid DECIMAL(18,8), ask DECIMAL(18,8)")
    peer_seconds = median_seconds(peer.agg(f.count("*")).first)
    yield result(
        "pipeline",
        "book_events_per_s",
        events / seconds,
        "1/s",
        against="the best bid and offer alone, by a book in Python for each symbol (applyInArrow)",
        against_value=EVENTS_OF_PEER / peer_seconds,
        conditions=f"local[2]; {events:,} book events of {SYMBOLS:,} symbols from {FILES} zstd Parquet files, by "
        f"symbol and number, into {best:,} rows of top_of_book and {levels:,} of depth (ten levels), counted in Spark; "
        f"median of {ROUNDS}; the book in Python took {EVENTS_OF_PEER:,} events",
    )


def _side_by_side(work: TableWork, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of both tables in one DataFrame: a column for each table, one of them null."""
    names = ("top_of_book", "depth")
    schemas: dict[str, pa.DataType] = {}
    waiting: list[tuple[str, pa.RecordBatch]] = []
    for name, batch in work(batches):
        schemas[name] = pa.struct(list(batch.schema))
        waiting.append((name, batch))
        if len(schemas) == len(names):
            for made, rows in waiting:
                columns = [
                    rows.to_struct_array() if made == each else pa.nulls(len(rows), schemas[each]) for each in names
                ]
                yield pa.RecordBatch.from_arrays(columns, names)
            waiting.clear()


def _order_flow(folder: Path) -> tuple[list[str], int]:
    """Files with the book events of a generated day, and how many there are."""
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
    """What one writes without us: orders and prices in dictionaries."""
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
