"""Envelope columns: the columns that rows of every model have, with the source and the journal position of a message.

topic stream seq source_seq part captured always term origin publisher group epoch packet record model version by the
option `columns`
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
from numpy.typing import NDArray

from penstock.capture.core.rows import MessageRows
from penstock.model import shipped, shipped_names

if TYPE_CHECKING:
    import pyarrow as pa


class EnvelopeColumn(NamedTuple):
    spark_type: str
    comment: str
    read: Callable[[MessageRows, Mapping[int, str]], pa.Array]
    """Build the column for these messages; the mapping gives model names by id."""


def envelope_array(rows: MessageRows, column: str, model_names: Mapping[int, str] | None = None) -> pa.Array:
    """Build one envelope column of the messages."""
    return COLUMNS[column].read(rows, shipped_model_names() if model_names is None else model_names)


def envelope_schema(columns: Iterable[str]) -> str:
    """Return the columns as Spark DDL."""
    return ", ".join(f"`{name}` {COLUMNS[name].spark_type} COMMENT '{COLUMNS[name].comment}'" for name in columns)


@cache
def shipped_model_names() -> dict[int, str]:
    return {shipped(name).id: name for name in shipped_names()}


def _numbers(values: NDArray[Any], kind: str) -> pa.Array:
    """Return integers as a Spark type; unsigned integers of the same width keep their bits."""
    import pyarrow as pa

    wide = numpy.ascontiguousarray(values)
    if wide.dtype.itemsize == numpy.dtype(kind).itemsize:
        return pa.array(wide.view(kind))
    return pa.array(wide.astype(kind))


def _of_origin(name: str, kind: str) -> Callable[[MessageRows, Mapping[int, str]], pa.Array]:
    return lambda rows, _: _numbers(rows.origins[name], kind)


def _of_place(name: str, kind: str) -> Callable[[MessageRows, Mapping[int, str]], pa.Array]:
    def read(rows: MessageRows, _: Mapping[int, str]) -> pa.Array:
        import pyarrow as pa

        places = rows.places
        if places is None:
            return pa.nulls(len(rows), pa.from_numpy_dtype(numpy.dtype(kind)))
        return _numbers(places[name], kind)

    return read


def _named(numbers: NDArray[Any], name_of: Callable[[int], str | None]) -> pa.Array:
    """Map numbers with few distinct values to text."""
    import pyarrow as pa

    different, which = numpy.unique(numbers, return_inverse=True)
    names = pa.array([name_of(number) for number in different.tolist()], pa.string())
    return names.take(pa.array(which.astype(numpy.int32)))


def _group(rows: MessageRows, _: Mapping[int, str]) -> pa.Array:
    import pyarrow as pa

    places = rows.places
    if places is None:
        return pa.nulls(len(rows), pa.string())
    return _named(places["group"], lambda group: str(ipaddress.IPv4Address(group)))


def _model(rows: MessageRows, model_names: Mapping[int, str]) -> pa.Array:
    return _named(rows.rows["model_id"], lambda number: model_names.get(number, str(number)) if number else None)


COLUMNS = {
    "topic": EnvelopeColumn("STRING", "the topic that the message was published on", lambda rows, _: rows.topics()),
    "stream": EnvelopeColumn("INT", "the source stream", _of_origin("stream_id", "i4")),
    "seq": EnvelopeColumn("BIGINT", "sequence number of the message in its source stream", _of_origin("seq", "i8")),
    "source_seq": EnvelopeColumn("BIGINT", "sequence number of the source message", _of_origin("source_seq", "i8")),
    "part": EnvelopeColumn(
        "INT", "index of the message among those made from one source message", _of_origin("part", "i4")
    ),
    "captured": EnvelopeColumn(
        "BIGINT", "capture time of the packet, nanoseconds since 1970-01-01 UTC", _of_place("captured_ns", "i8")
    ),
    "term": EnvelopeColumn("BIGINT", "the term in which seq was assigned", _of_origin("term", "i8")),
    "origin": EnvelopeColumn("INT", "flags of the ORIGIN extension", _of_origin("flags", "i4")),
    "publisher": EnvelopeColumn(
        "BIGINT", "id of the publisher, as a signed integer with the same bits", _of_place("publisher", "i8")
    ),
    "group": EnvelopeColumn("STRING", "the multicast group", _group),
    "epoch": EnvelopeColumn("BIGINT", "epoch of the publisher", _of_place("epoch", "i8")),
    "packet": EnvelopeColumn("BIGINT", "sequence number of the packet with the message", _of_place("packet", "i8")),
    "record": EnvelopeColumn("BIGINT", "sequence number of the journal record", _of_place("record", "i8")),
    "model": EnvelopeColumn("STRING", "the message model", _model),
    "version": EnvelopeColumn(
        "INT", "version of the message model", lambda rows, _: _numbers(rows.rows["model_version"], "i4")
    ),
}
"""All envelope columns, in column order."""

ALWAYS = ("topic", "stream", "seq", "source_seq", "part", "captured")
"""Columns that are present without the option `columns`."""
