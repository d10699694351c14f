"""Tables as the archive stores them, with a converter's messages of a feed; and derivations run step by step."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.capture.core.rows import rows_of_converted
from penstock.convert import Converter, ConverterTable, SourceBatch
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.feed.recorded.files import open_source
from penstock.model import shipped
from penstock.model.columns import to_spark
from penstock.spark.envelope import envelope_array
from penstock.spark.pipeline.derive import CARRIED, Derivation, Step, blocks, bookrows, table_frame

MODELS = ("book_event", "trade", "quote", "day_statistics")
ENVELOPE = ("topic", "stream", "seq", "part", "captured", "term", "origin")
DAY = date(2024, 1, 2)


def generated(path: Path, **config: Any) -> Path:
    """A generated ITCH day in a file."""
    generator = ItchGenerator(GeneratorConfig(**config))
    with path.open("wb") as file:
        while block := bytes(generator.blocks()):
            file.write(block)
    return path


def converted(
    batches: Iterable[SourceBatch],
    table: str = "itch",
    stream: int = 1,
    day: date | None = DAY,
    models: Sequence[str] = MODELS,
) -> dict[str, pa.Table]:
    """The rows of each of the models."""
    converter = Converter(ConverterTable.load(table).compile(), stream, trading_date=day)
    parts: dict[str, list[pa.RecordBatch]] = {name: [] for name in models}
    for batch in batches:
        rows = rows_of_converted(converter.convert(batch))
        for name in models:
            model = shipped(name)
            chosen = rows.select(rows.rows["model_id"] == model.id)
            if len(chosen):
                parts[name].append(_batch(chosen, model))
    return {name: pa.Table.from_batches(found, _schema(name)) for name, found in parts.items()}


def of_file(path: Path, **how: Any) -> dict[str, pa.Table]:
    with open_source(path) as source:
        return converted(source.batches(), **how)


def _batch(rows: Any, model: Any) -> pa.RecordBatch:
    fields = to_spark(model, rows.records(model).copy())
    arrays = [envelope_array(rows, name) for name in ENVELOPE]
    return pa.RecordBatch.from_arrays([*arrays, *fields.columns], [*ENVELOPE, *fields.schema.names])


def _schema(name: str) -> pa.Schema:
    model = shipped(name)
    empty = SourceBatch.from_messages([], first_sequence=1)
    converter = Converter(ConverterTable.load("itch").compile(), 1, trading_date=DAY)
    return _batch(rows_of_converted(converter.convert(empty)), model).schema


# Books without Spark: the same functions, called the way Spark calls them


def books(events: Sequence[pa.Table], levels: int = 10, buckets: int = 3) -> dict[str, list[dict[str, Any]]]:
    """Top of book and depth of the events in these steps; rows sorted by stream and number."""
    made: dict[str, list[dict[str, Any]]] = {"top_of_book": [], "depth": []}
    carried: list[pa.RecordBatch] = []
    for number, table in enumerate(events):
        is_final = number == len(events) - 1
        packed = [*blocks.pack(buckets, iter(_narrow(table))), *blocks.pack(buckets, iter(carried))]
        carried = []
        for name, batch in _worked(packed, buckets, levels, is_final):
            if name == CARRIED:
                carried.append(batch)
            else:
                made[name] += batch.to_pylist()
    for rows in made.values():
        rows.sort(key=lambda row: (row["stream"], row["seq"]))
    return made


def _narrow(table: pa.Table) -> list[pa.RecordBatch]:
    return table.select(blocks.EVENT_NAMES).to_batches(max_chunksize=5_000)


def _worked(
    packed: list[pa.RecordBatch], buckets: int, levels: int, is_final: bool
) -> Iterator[tuple[str, pa.RecordBatch]]:
    if not packed:
        return
    every = pa.Table.from_batches(packed).sort_by([(name, "ascending") for name in ("stream", "lineage", "first")])
    for bucket in range(buckets):
        mine = every.filter(pa.compute.equal(every["bucket"], bucket))
        yield from bookrows.make(levels, is_final, iter(mine.to_batches()))


# Derivations in Spark


def run(spark: Any, derivation: Derivation, steps: Sequence[Mapping[str, pa.Table]]) -> dict[str, list[dict[str, Any]]]:
    """The rows that a derivation computes from these steps, sorted by all columns."""
    made: dict[str, list[Any]] = {name: [] for name in derivation.tables}
    before = {name: steps[0][name].slice(0, 0) for name in derivation.needs}
    carried = None
    for number, tables in enumerate(steps):
        new = {name: tables[name] for name in derivation.needs}
        step = Step(
            new={name: spark.createDataFrame(table) for name, table in new.items()},
            before={name: spark.createDataFrame(table) for name, table in before.items()},
            carried=carried,
            is_final=number == len(steps) - 1,
        )
        carried = None
        for output in derivation.step(step):
            for name, columns in output.tables.items():
                rows = table_frame(output, name).collect()
                if name == CARRIED:
                    carried = spark.createDataFrame(rows, columns)
                else:
                    made[name] += [row.asDict(recursive=True) for row in rows]
        before = {name: pa.concat_tables([before[name], new[name]]) for name in new}
    return {name: sorted(rows, key=repr) for name, rows in made.items()}


def cut(tables: Mapping[str, pa.Table], numbers: Sequence[int]) -> list[dict[str, pa.Table]]:
    """Tables divided into steps before the messages with these numbers."""
    bounds = [-(2**62), *sorted(numbers), 2**62]
    return [
        {
            name: table.filter(
                pa.compute.and_(pa.compute.greater_equal(table["seq"], low), pa.compute.less(table["seq"], high))
            )
            for name, table in tables.items()
        }
        for low, high in pairwise(bounds)
    ]
