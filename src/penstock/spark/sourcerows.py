"""Rows of unconverted source messages: numbers, receive times, types, bytes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy

from penstock.convert import SourceBatch
from penstock.feed.core.lines.events import LineInstruction, SourceReady
from penstock.feed.recorded._tape import gather

if TYPE_CHECKING:
    import pyarrow as pa

SOURCE_SCHEMA = (
    "source_seq BIGINT COMMENT 'sequence number of the message in its source stream', "
    "receive_time BIGINT COMMENT 'capture time, nanoseconds since 1970-01-01 UTC', "
    "type STRING COMMENT 'first byte of the message, as a character', "
    "message BINARY"
)


def source_batch(event: LineInstruction) -> pa.RecordBatch | None:
    """Return the rows of an event, if the event has messages."""
    if not isinstance(event, SourceReady) or not len(event.batch):
        return None
    return rows_of_source(event.batch)


def rows_of_source(batch: SourceBatch) -> pa.RecordBatch:
    import pyarrow as pa

    numbers, times, offsets, data = gather(batch)
    messages = pa.Array.from_buffers(pa.binary(), len(batch), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    first = numpy.zeros(len(batch), numpy.uint8)
    filled = offsets[1:] > offsets[:-1]
    first[filled] = data[offsets[:-1][filled]]
    types = _characters().take(pa.array(first, mask=~filled))
    return pa.RecordBatch.from_arrays(
        [pa.array(numbers.view("i8")), pa.array(times, mask=times == 0), types, messages],
        names=["source_seq", "receive_time", "type", "message"],
    )


@cache
def _characters() -> pa.Array:
    import pyarrow as pa

    return pa.array([chr(number) for number in range(256)])
