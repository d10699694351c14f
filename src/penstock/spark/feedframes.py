"""DataFrames of recorded feeds: slices into rows of a model, by the converter that live adapters run.

    rows = normalise(slices_frame(spark, slices), RowPlan(("topic", "seq", "price"), shipped("trade")))

Every task converts its slices in compiled code, from the state that the index kept, and only the columns that are asked
for go to the JVM. A message that cannot be converted is left out, told in the log, and a row of quarantine().
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.base.errors import RemoteProtocolError
from penstock.base.log import logger
from penstock.spark.feedslices import FeedReader, FeedSlice, SourceEvents
from penstock.spark.rowplan import RowPlan, plan_schema
from penstock.spark.sourcerows import SOURCE_SCHEMA, source_batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

QUARANTINE_SCHEMA = (
    "slice STRING COMMENT 'the slice of the run', place STRING COMMENT 'the file', "
    "position BIGINT COMMENT 'byte offset in the file, or number of the message', "
    "code STRING, reason STRING, excerpt BINARY COMMENT 'first bytes of the message'"
)

log = logger("spark.feed")


def normalise(slices: DataFrame, plan: RowPlan, *, bad: Literal["skip", "fail"] = "skip") -> DataFrame:
    """Return the messages of all slices that the plan selects, as rows."""
    schema = plan_schema(plan.columns, plan.model)
    return slices.mapInArrow(partial(_each_slice, work=partial(normalised_batches, plan=plan, bad=bad)), schema)


def source_messages(slices: DataFrame) -> DataFrame:
    """Return the source messages of all slices, unconverted."""
    return slices.mapInArrow(partial(_each_slice, work=source_batches), SOURCE_SCHEMA)


def quarantine(slices: DataFrame) -> DataFrame:
    """Return the messages that could not be read or converted, each with its reason."""
    return slices.mapInArrow(partial(_each_slice, work=quarantine_batches), QUARANTINE_SCHEMA)


def _each_slice(
    batches: Iterator[pa.RecordBatch], work: Callable[[FeedSlice], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for text in batch.column(0).to_pylist():
            yield from work(decode_feed_slice(text))


def decode_feed_slice(text: str) -> FeedSlice:
    return msgspec.json.decode(text, type=FeedSlice)


def normalised_batches(
    piece: FeedSlice, plan: RowPlan, bad: Literal["skip", "fail"] = "skip"
) -> Iterator[pa.RecordBatch]:
    """Yield the row batches of one task."""
    reader = FeedReader(piece, None if plan.model is None else [plan.model.name])
    for rows in reader:
        _refuse_bad(reader, bad)
        batch = plan.batch(rows)
        if len(batch):
            yield batch
    _refuse_bad(reader, bad)
    if reader.bad:
        account = reader.account
        log.warning("messages_left_out", slice=piece.name, malformed=account.malformed, damages=account.damages)


def _refuse_bad(reader: FeedReader, bad: str) -> None:
    if bad == "fail" and reader.bad:
        first = reader.bad[0]
        raise RemoteProtocolError(
            first.reason, where=f"{reader.piece.path}: {first.position}", hint="set bad=skip to skip bad messages"
        )


def source_batches(piece: FeedSlice) -> Iterator[pa.RecordBatch]:
    for event in SourceEvents(piece):
        batch = source_batch(event)
        if batch is not None:
            yield batch


def quarantine_batches(piece: FeedSlice) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    reader = FeedReader(piece, [])
    for _ in reader:
        """Read the slice without building rows, and record its bad messages."""
    bad = reader.bad
    if bad:
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([piece.name] * len(bad)),
                pa.array([piece.path] * len(bad)),
                pa.array([each.position for each in bad], pa.int64()),
                pa.array([each.code for each in bad]),
                pa.array([each.reason for each in bad]),
                pa.array([each.excerpt for each in bad], pa.binary()),
            ],
            names=["slice", "place", "position", "code", "reason", "excerpt"],
        )
