"""A journal's messages as a DataFrame, without Spark's data source interface, which costs as much as all other steps.

    messages(spark, journal="captured.d", model="trade", columns="quantity,event_time")

The rows equal those of the format `penstock` with the same options. Only the options select rows and columns; filters
and projections of the query are applied by Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from penstock.spark.slices import decode_slice, slices_frame

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.source import JournalReader


def messages(spark: SparkSession, **options: object) -> DataFrame:
    """Return the messages currently in the journals; `from_` stands for the option `from`."""
    from pyspark.sql.types import StructType

    from penstock.spark.source import PenstockSource, SlicePartition

    source = PenstockSource({name.rstrip("_"): str(value) for name, value in options.items()})
    schema = source.schema()
    kind = StructType.fromDDL(schema)
    assert isinstance(kind, StructType)
    reader = source.reader(kind)
    texts = [each.text for each in reader.partitions() if isinstance(each, SlicePartition) and each.text]
    return slices_frame(spark, [decode_slice(text) for text in texts]).mapInArrow(partial(_read, reader), schema)


def _read(reader: JournalReader, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from penstock.spark.source import SlicePartition

    for batch in batches:
        for text in batch.column("slice").to_pylist():
            yield from reader.read(SlicePartition(text))
