"""The sink `penstock`: the rows of a DataFrame, batch or streaming, published as messages on topics.

    bars.writeStream.format("penstock").option("connect", "penstock://10.0.0.7:7400").option("credentials", "desk.toml")
        .option("stream", "desk").option("topics", "derived.desk.>").option("model", "bar").start()
    frame.write.format("penstock").mode("append").option("channel", "239.255.74.1:7401").option("model", "bar").save()

Every row has a column `topic`, and the fields of the model or a column `payload`. Tasks only check and encode their
rows; the driver publishes the encoded rows when all tasks are done, in the order of the partitions. A retried task
therefore publishes no row twice, and a failed batch publishes nothing. A batch must fit into the driver's memory
(option max_rows).

Guarantee: every batch is published at least once, and exactly once unless the process is killed while publishing. With
the option `progress` (a file), a restarted query does not publish a completed batch again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError, LimitError, PenstockError, UnreachableError
from penstock.base.log import logger
from penstock.client import connect
from penstock.middleware.live import MulticastPublisher
from penstock.model import MessageModel
from penstock.net.udp import Channel
from penstock.spark.envelope import COLUMNS
from penstock.spark.options import read_options
from penstock.spark.rowplan import PAYLOAD, load_model
from penstock.topics import check_topic

if TYPE_CHECKING:
    import pyarrow as pa

WHERE = "format penstock"
FLUSH_EVERY = 1_000
"""Contributed messages between two waits for the adapters' acknowledgements."""

log = logger("spark.sink")


class SinkOptions(Config, frozen=True):
    """Options of the sink: publish through a plant (connect, credentials, stream, topics), or on a channel."""

    path: str = ""
    connect: str = ""
    credentials: str = ""
    stream: str = ""
    topics: tuple[str, ...] = ()
    channel: str = ""
    interface: str = "127.0.0.1"
    model: str = ""
    progress: str = ""
    max_rows: Annotated[int, msgspec.Meta(ge=1)] = 1_000_000
    patience_seconds: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    checkpointlocation: str = ""

    def check(self) -> None:
        if bool(self.connect) == bool(self.channel):
            raise ConfigurationError(
                "no destination is given", where=WHERE, hint="set option connect or option channel"
            )
        if self.connect and not (self.credentials and self.stream and self.topics):
            hint = "option connect also needs credentials (a file), stream and topics"
            raise ConfigurationError("credentials, stream or topics are missing", where=WHERE, hint=hint)
        if self.channel:
            Channel.parse(self.channel, interface=self.interface)


class EncodedMessage(msgspec.Struct, frozen=True, array_like=True):
    """An encoded row, ready to be published."""

    topic: str
    model_id: int
    model_version: int
    payload: bytes


class EncodedRows(WriterCommitMessage):
    """The encoded rows of one task."""

    def __init__(self, data: bytes, count: int) -> None:
        self.data = data
        self.count = count


_rows_decoder = msgspec.msgpack.Decoder(list[EncodedMessage])

Send = Callable[[EncodedMessage], None]


class RowEncoder:
    """Encodes rows as messages; created by the driver, used in tasks."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        options.check()
        self._options = options
        self._model = load_model(options.model)
        names = [field.name for field in schema.fields]
        self._fields = _check_columns(names, self._model)

    def encode(self, batches: Iterable[pa.RecordBatch]) -> EncodedRows:
        made: list[EncodedMessage] = []
        for batch in batches:
            made += self._messages(batch)
            if len(made) > self._options.max_rows:
                raise LimitError(
                    f"a task has more than {self._options.max_rows} rows",
                    hint="raise option max_rows, or write smaller batches",
                )
        return EncodedRows(msgspec.msgpack.encode(made), len(made))

    def _messages(self, batch: pa.RecordBatch) -> Iterator[EncodedMessage]:
        topics = batch.column("topic").to_pylist()
        columns = {name: batch.column(name).to_pylist() for name in self._fields}
        for index, topic in enumerate(topics):
            if topic is None:
                raise ConfigurationError("a row has no topic", where=WHERE)
            check_topic(topic)
            if self._model is None:
                yield EncodedMessage(topic, 0, 0, columns[PAYLOAD][index] or b"")
                continue
            model = self._model
            values = {name: _value(model, name, values[index]) for name, values in columns.items()}
            message = model.new(**{name: value for name, value in values.items() if value is not None})
            yield EncodedMessage(topic, model.id, model.version, bytes(message))


class _Publishing:
    """Common part of the batch and streaming writers."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._encoder = RowEncoder(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> EncodedRows:
        return self._encoder.encode(iterator)

    def publish(self, messages: list[WriterCommitMessage | None]) -> int:
        """Publish all messages, in the order of the tasks."""
        rows = [each for each in messages if isinstance(each, EncodedRows)]
        count = sum(each.count for each in rows)
        if count > self._options.max_rows:
            raise LimitError(f"the batch has {count} rows, above the limit of {self._options.max_rows}",
                             hint="raise option max_rows, or write smaller batches")  # fmt: skip
        if count:
            everything = (message for each in rows for message in _rows_decoder.decode(each.data))
            if self._options.channel:
                _publish_on_channel(self._options, everything)
            else:
                _contribute(self._options, everything)
        log.info("rows_published", rows=count)
        return count


class PenstockWriter(_Publishing, DataSourceArrowWriter):
    """Publishes a DataFrame once."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.publish(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning("nothing_published", tasks=len(messages))


class PenstockStreamWriter(_Publishing, DataSourceStreamArrowWriter):
    """Publishes a streaming query batch by batch."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # Spark defines the name
        progress = Path(self._options.progress) if self._options.progress else None
        if progress is not None and batchId <= _published_before(progress):
            log.info("batch_published_before", batch=batchId)
            return
        self.publish(messages)
        if progress is not None:
            _remember(progress, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        log.warning("nothing_published", batch=batchId, tasks=len(messages))


def read_sink_options(options: Any) -> SinkOptions:
    return read_options(options, SinkOptions, WHERE)


def _check_columns(names: list[str], model: MessageModel | None) -> list[str]:
    """Return the columns that become fields; envelope columns other than `topic` are allowed and ignored."""
    if "topic" not in names:
        raise ConfigurationError("the rows have no column 'topic'", where=WHERE)
    known = [PAYLOAD] if model is None else list(model.fields_by_name)
    for name in names:
        if name not in known and name not in COLUMNS:
            hint = f"{'set option model, or use payload; ' if model is None else ''}valid columns: {', '.join(known)}"
            raise ConfigurationError(f"column {name!r} is not a field of the messages", where=WHERE, hint=hint)
    fields = [name for name in names if name in known]
    if model is None and PAYLOAD not in names:
        raise ConfigurationError("the rows have no column 'payload'", where=WHERE, hint="add it, or set option model")
    return fields


def _value(model: MessageModel, name: str, value: Any) -> Any:
    """Convert a BIGINT to a u64 with the same bits."""
    field = model.fields_by_name[name]
    return value + (1 << 64) if field.storage == "u8" and isinstance(value, int) and value < 0 else value


def _publish_on_channel(options: SinkOptions, messages: Iterable[EncodedMessage]) -> None:
    channel = Channel.parse(options.channel, interface=options.interface)
    with MulticastPublisher(channel) as publisher:
        for each in messages:
            publisher.publish(each.topic, each.payload, model_id=each.model_id, model_version=each.model_version)


def _contribute(options: SinkOptions, messages: Iterable[EncodedMessage]) -> None:
    with (
        connect(options.connect, credentials=options.credentials) as client,
        client.contribute(options.stream, *options.topics) as contributor,
    ):
        for number, each in enumerate(messages, 1):
            contributor.send(each.topic, each.payload, model_id=each.model_id, model_version=each.model_version)
            if number % FLUSH_EVERY == 0:
                _flush(contributor.flush, options)
        _flush(contributor.flush, options)


def _flush(flush: Callable[[float], bool], options: SinkOptions) -> None:
    if not flush(options.patience_seconds):
        raise UnreachableError(f"no adapter acknowledged the messages within {options.patience_seconds} s", where=WHERE)


def _published_before(progress: Path) -> int:
    """Return the number of the last batch that was published completely; -1 for none."""
    try:
        return int(progress.read_text())
    except FileNotFoundError:
        return -1
    except (OSError, ValueError):
        raise PenstockError(
            "the progress file is damaged",
            where=str(progress),
            hint="remove it; the next batch may then be published twice",
        ) from None


def _remember(progress: Path, batch: int) -> None:
    with tempfile.NamedTemporaryFile("w", dir=progress.parent, delete=False) as file:
        file.write(str(batch))
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, progress)
