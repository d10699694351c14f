"""Messages as rows of the archive's tables: one table per model, and `raw` for messages without a known model.

    tables = MessageTables(models)
    for table, batch, times_ns, streams in tables.rows(messages): ...
    tables.quarantined, tables.account

A row has the envelope, without the partition columns, and the model's fields. An invalid message is quarantined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.base.limits import MODEL_IN_BAND_SIZE_MAX
from penstock.capture.core.rows import EXCERPT_SIZE, MessageRows
from penstock.middleware.core.reserved_topics import MODEL_TOPIC
from penstock.model import MessageModel, shipped, shipped_names
from penstock.model.columns import beyond_spark, spark_arrow_schema, spark_schema, to_spark
from penstock.spark.envelope import envelope_array, envelope_schema
from penstock.spark.pipeline.archive.bounds import PartitionBound
from penstock.spark.pipeline.archive.commits import Account, TradingDay
from penstock.spark.pipeline.archive.sessiontags import SessionsSeen
from penstock.wire import Extension, MessageFlag, OriginFlag

ENVELOPE = ("topic", "seq", "source_seq", "part", "captured", "term", "origin", "publisher", "packet", "version")
"""Envelope columns that precede the model's fields; `stream` and `date` are partition columns."""

PARTITION = "`date` DATE, `stream` INT"

RAW = "raw"
"""The table of messages without a model, with an unknown model or version, or sealed. Column `payload` has their
content, `seal` the SEAL extension of a sealed message.
"""

DOCUMENTS_MAX = 64
"""Maximum number of distinct model documents that a slice takes from its messages."""

BY_DATE_ONLY = ("loss", "quarantine")
"""Tables whose rows belong to no stream."""

SEALED = int(MessageFlag.SEALED)
SEAL = int(Extension.SEAL)
IMAGE = int(OriginFlag.IMAGE)
DISCONTINUITY = int(OriginFlag.DISCONTINUITY)


class TableRows(NamedTuple):
    """Rows for one table, with the times and streams that determine their partitions."""

    table: str
    batch: pa.RecordBatch
    times_ns: NDArray[np.int64]
    streams: NDArray[np.int64]


class Quarantined(NamedTuple):
    """A source unit that could not become a row, and the reason."""

    position: int
    """The byte, record or message number in its source."""
    code: str
    reason: str
    excerpt: bytes
    time_ns: int = 0


@cache
def shipped_models() -> dict[int, MessageModel]:
    return {shipped(name).id: shipped(name) for name in shipped_names()}


@cache
def table_schema(model: MessageModel | None) -> str:
    """Return the columns of a model's table, or of `raw`, as Spark DDL."""
    if model is None:
        return f"{envelope_schema((*ENVELOPE, 'epoch'))}, `model_id` INT, `payload` BINARY, `seal` BINARY, {PARTITION}"
    fields = [field.name for field in model.fields]
    envelope = [name for name in ENVELOPE if name not in fields]
    return f"{envelope_schema(envelope)}, {spark_schema(model)}, {PARTITION}".replace(" NOT NULL", "")


class MessageTables:
    """Converts the messages of one slice. Images for late subscribers repeat known state: they are skipped and
    counted.
    """

    def __init__(self, models: Mapping[int, MessageModel] | None = None) -> None:
        self.models = dict(shipped_models() if models is None else models)
        self.account = Account()
        self.quarantined: list[Quarantined] = []
        self.covered: Sequence[TradingDay] = ()
        """Days whose captured messages were replaced by those of a file."""
        self.documents: set[bytes] = set()
        """Documents of models received in band."""
        self.sessions = SessionsSeen()
        self._bound = PartitionBound()
        self.on_records: Callable[[MessageModel, NDArray[Any], MessageRows], None] | None = None
        """Called with the records of each model before their conversion to columns."""

    def rows(self, messages: MessageRows) -> Iterator[TableRows]:
        """Yield the rows of these messages; afterwards the account contains all of them."""
        self.account.taken += len(messages)
        flags = messages.origins["flags"] & (IMAGE | DISCONTINUITY)
        if flags.any():
            is_image = flags == IMAGE
            if skipped := int(np.count_nonzero(is_image)):
                self.account.skipped["image"] = self.account.skipped.get("image", 0) + skipped
                messages = messages.select(~is_image)
        ids = messages.rows["model_id"]
        for number in np.flatnonzero(np.bincount(ids)).tolist():
            chosen = messages.select(ids == number) if len(messages) else messages
            if number == 0 or (model := self.models.get(number)) is None:
                yield from self._raw(chosen, number)
                continue
            is_sealed = (chosen.rows["flags"] & SEALED) != 0
            if is_sealed.any():
                yield from self._raw(chosen.select(is_sealed), number)
                chosen = chosen.select(~is_sealed)
            is_newer = chosen.rows["model_version"] > model.version
            if is_newer.any():
                yield from self._raw(chosen.select(is_newer), number)
                chosen = chosen.select(~is_newer)
            if len(good := self._sound(chosen, model)):
                yield from self._of_model(good, model)

    def _sound(self, messages: MessageRows, model: MessageModel) -> MessageRows:
        is_sound = messages.sound(model)
        if is_sound.all():
            return messages
        self._refuse(messages.select(~is_sound), "record", f"the record of {model.name} is too short")
        return messages.select(is_sound)

    def _of_model(self, messages: MessageRows, model: MessageModel) -> Iterator[TableRows]:
        records = messages.records(model)
        is_covered = self._is_covered(model, records)
        if is_covered.any():
            skipped = int(np.count_nonzero(is_covered))
            self.account.skipped["replaced"] = self.account.skipped.get("replaced", 0) + skipped
            messages, records = messages.select(~is_covered), records[~is_covered]
        is_beyond = beyond_spark(model, records)
        if is_beyond.any():
            self._refuse(
                messages.select(is_beyond), "price", f"a price in the record of {model.name} has more than 18 digits"
            )
            messages, records = messages.select(~is_beyond), records[~is_beyond]
        is_placed, times = self._placed(messages, event_times(model, records))
        messages, records = messages.select(is_placed), records[is_placed]
        if not len(messages):
            return
        if "event_time" in model.fields_by_name:
            self.sessions.note(messages.origins, times)
        if self.on_records is not None:
            self.on_records(model, records, messages)
        fields = to_spark(model, records)
        arrays = [envelope_array(messages, name) for name in ENVELOPE if name not in model.fields_by_name]
        batch = pa.RecordBatch.from_arrays([*arrays, *fields.columns], schema=arrow_schema(model))
        yield self._made(model.name, batch, times, messages)

    def _is_covered(self, model: MessageModel, records: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask of messages whose venue and day are covered by a file."""
        found = np.zeros(len(records), np.bool_)
        if "venue" in model.fields_by_name and "event_time" in model.fields_by_name:
            times, venues = records["event_time"], records["venue"]
            for day in self.covered:
                found |= (times >= day.begin_ns) & (times < day.end_ns) & (venues == day.venue.encode())
        return found

    def _raw(self, messages: MessageRows, model_id: int) -> Iterator[TableRows]:
        """Yield messages without a model, of an unknown model, or of a version newer than the known one; and sealed
        messages of any model. Their full content is kept, so that a later run can read them.
        """
        is_placed, times = self._placed(messages, np.zeros(len(messages), np.int64))
        messages = messages.select(is_placed)
        contents = pa.array([messages.payload(index) for index in range(len(messages))], pa.binary())
        ids = pa.array(np.full(len(messages), model_id, np.int32))
        if not len(messages):
            return
        is_sealed = (messages.rows["flags"] & SEALED) != 0
        sealed = int(np.count_nonzero(is_sealed))
        seals = pa.array(
            [messages.extensions(index).get(SEAL, b"") if is_sealed[index] else None for index in range(len(messages))],
            pa.binary(),
        )
        self.account.sealed += sealed
        if not model_id:
            self._learn(messages, contents)
        elif sealed < len(messages):
            unknown = self.account.unknown_models
            unknown[str(model_id)] = unknown.get(str(model_id), 0) + len(messages) - sealed
        names = [*ENVELOPE, "epoch", "model_id", "payload", "seal"]
        arrays = [*(envelope_array(messages, name) for name in names[:-3]), ids, contents, seals]
        yield self._made(RAW, pa.RecordBatch.from_arrays(arrays, names=names), times, messages)

    def _learn(self, messages: MessageRows, contents: pa.BinaryArray) -> None:
        """Record the models sent in band; a model message belongs to no source and has no ORIGIN."""
        is_model = pc.equal(messages.topics(), MODEL_TOPIC).to_numpy(zero_copy_only=False)
        is_model &= (messages.rows["flags"] & SEALED) == 0
        for index in np.flatnonzero(is_model & (messages.origins["stream_id"] == 0)).tolist():
            document = contents[index].as_py()
            if len(document) <= MODEL_IN_BAND_SIZE_MAX and len(self.documents) < DOCUMENTS_MAX:
                self.documents.add(document)

    def _placed(self, messages: MessageRows, times: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        """Return a mask of messages that have a partition, and their times: event time, or capture time if that is
        0.
        """
        places = messages.places
        if places is not None and not times.all():
            times = np.where(times == 0, places["captured_ns"], times)
        is_dated = times >= 0
        if not is_dated.all():
            self._refuse(messages.select(~is_dated), "time", "the time is before 1970 or after 2262")
        is_placed = is_dated.copy()
        is_placed[is_dated] = self._bound.admit(times[is_dated], messages.origins["stream_id"][is_dated])
        if (is_beyond := is_dated & ~is_placed).any():
            self._refuse(messages.select(is_beyond), "partitions", "the slice has too many dates and streams")
        return is_placed, times[is_placed]

    def _made(self, table: str, batch: pa.RecordBatch, times: NDArray[Any], messages: MessageRows) -> TableRows:
        self.account.rows[table] = self.account.rows.get(table, 0) + len(batch)
        return TableRows(table, batch, times, messages.origins["stream_id"].astype(np.int64))

    def _refuse(self, messages: MessageRows, code: str, reason: str) -> None:
        count = len(messages)
        self.account.quarantined[code] = self.account.quarantined.get(code, 0) + count
        places, origins = messages.places, messages.origins
        for index in range(count):
            position = int(origins[index]["source_seq"] if places is None else places[index]["record"])
            excerpt = messages.payload(index)[:EXCERPT_SIZE]
            time_ns = 0 if places is None else int(places[index]["captured_ns"])
            self.quarantined.append(Quarantined(position, code, reason, excerpt, time_ns))


def event_times(model: MessageModel, records: NDArray[Any]) -> NDArray[Any]:
    """Return the event times; 0 for a message without one."""
    field = model.fields_by_name.get("event_time")
    if field is None:
        return np.zeros(len(records), np.int64)
    times = records["event_time"]
    return times if field.missing is None else np.where(times == field.missing, 0, times)


@cache
def arrow_schema(model: MessageModel) -> pa.Schema:
    """Return a schema of nullable columns, because plain readers combine files of several model versions."""
    fields = spark_arrow_schema(model)
    kinds = {"topic": pa.string(), "part": pa.int32(), "origin": pa.int32(), "version": pa.int32()}
    envelope = [
        pa.field(name, kinds.get(name, pa.int64())) for name in ENVELOPE if name not in model.fields_by_name
    ]  # fmt: skip
    return pa.schema([*envelope, *(field.with_nullable(True) for field in fields)], metadata=fields.metadata)
