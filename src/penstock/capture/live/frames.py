"""Messages as tables: Arrow, pandas and Polars.

A table has the columns `topic`, `seq` and the fields of one model. Times are timestamps with nanoseconds in UTC; prices
are exact decimals or floats, as the caller chooses.
"""

import importlib
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.display import ROWS_MAX, Display, Displayed
from penstock.base.errors import ConfigurationError, LocalProtocolError, ModelError
from penstock.capture.core.rows import MessageRows
from penstock.model import Field, Message, MessageModel
from penstock.model.schema import Prices
from penstock.wire import MESSAGE_DTYPE

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

ModelOrClass: TypeAlias = MessageModel | type[Message]

CHUNK_MESSAGES = 8_192
"""Messages that are kept as objects before they become columns."""
WAIT_SECONDS = 0.1


class Frames(Displayed):
    """Messages that can be read as one table."""

    def arrow(self, model: ModelOrClass | None = None, *, prices: Prices = "decimal") -> "pa.RecordBatch":
        """Return the messages of a model, or of the only model, as an Arrow batch with `topic`, `seq` and the fields.
        Prices are exact decimals, or floats.
        """
        raise NotImplementedError

    def to_pandas(self, model: ModelOrClass | None = None, *, prices: Prices = "float") -> "pandas.DataFrame":
        """Return the same as arrow() as a pandas frame. Prices are floats unless asked otherwise, because pandas has no
        decimals.
        """
        return pandas_frame(self.arrow(model, prices=prices))

    def to_polars(self, model: ModelOrClass | None = None, *, prices: Prices = "decimal") -> "polars.DataFrame":
        """Return the same as arrow() as a Polars frame."""
        return polars_frame(self.arrow(model, prices=prices))

    def _sample(self, count: int) -> list[Message]:
        """Return the first messages, at most this many."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def _title(self) -> str:
        return f"{type(self).__name__}: {len(self):,} messages"

    def _display(self) -> Display:
        sample = self._sample(ROWS_MAX)
        names = list(sample[0].model.fields_by_name) if sample else []
        rows = [[message.topic, message.seq, *_values(message, names)] for message in sample]
        return Display(["topic", "seq", *names], rows, len(self) - len(rows) if rows else 0)


def _values(message: Message, names: Sequence[str]) -> list[object]:
    known = message.model.fields_by_name
    return [_value(known[name], getattr(message, name)) if name in known else "" for name in names]


def _value(field: Field, value: Any) -> object:
    if field.type == "timestamp" and value is not None:
        return numpy.datetime64(value, "ns")
    return " ".join(sorted(value)) if field.type == "flags" and value is not None else value


class CollectedFrames(Displayed):
    """A subscription whose next messages can be read as one table."""

    topics: tuple[str, ...]

    def next(self, timeout: float | None = None) -> Any:
        raise NotImplementedError

    def arrow(
        self,
        *,
        seconds: float | None = None,
        count: int | None = None,
        model: ModelOrClass | None = None,
        prices: Prices = "decimal",
    ) -> "pa.Table":
        """Read messages for this many seconds or until there are `count`, whichever is first, and return them as an
        Arrow table with `topic`, `seq` and the fields. All must be of one model; with `model`, messages of other models
        are dropped.
        """
        import pyarrow as pa

        if seconds is None and count is None:
            raise LocalProtocolError("a table of a subscription needs a bound", hint="pass seconds=…, count=…, or both")
        collected = _Collected(None if model is None else model_of(model), prices)
        deadline = None if seconds is None else time.monotonic() + seconds
        while count is None or collected.count < count:
            left = WAIT_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                break
            message = self.next(min(left, WAIT_SECONDS))
            if message is not None:
                collected.add(message)
            elif self.is_over:
                break
        return pa.Table.from_batches(collected.batches(), schema=collected.schema())

    def to_pandas(
        self,
        *,
        seconds: float | None = None,
        count: int | None = None,
        model: ModelOrClass | None = None,
        prices: Prices = "float",
    ) -> "pandas.DataFrame":
        """Return the same as arrow() as a pandas frame. Prices are floats unless asked otherwise, because pandas has no
        decimals.
        """
        require("pandas")
        return pandas_frame(self.arrow(seconds=seconds, count=count, model=model, prices=prices))

    def to_polars(
        self,
        *,
        seconds: float | None = None,
        count: int | None = None,
        model: ModelOrClass | None = None,
        prices: Prices = "decimal",
    ) -> "polars.DataFrame":
        """Return the same as arrow() as a Polars frame."""
        require("polars")
        return polars_frame(self.arrow(seconds=seconds, count=count, model=model, prices=prices))

    @property
    def is_over(self) -> bool:
        raise NotImplementedError

    def statistics(self) -> Any:
        raise NotImplementedError

    def _title(self) -> str:
        return f"{type(self).__name__} to {', '.join(self.topics)}{' (closed)' if self.is_over else ''}"

    def _display(self) -> Display:
        return Display(["counter", "value"], list(msgspec.structs.asdict(self.statistics()).items()))


class _Collected:
    """Messages of one model, in columns as soon as there are many."""

    def __init__(self, model: MessageModel | None, prices: Prices) -> None:
        self.count = 0
        self._model = model
        self._is_chosen = model is not None
        self._prices: Prices = prices
        self._messages: list[Message] = []
        self._batches: list[pa.RecordBatch] = []

    def add(self, message: Any) -> None:
        if not isinstance(message, Message):
            return
        if self._model is None:
            self._model = message.model
        if message.model.id != self._model.id:
            if self._is_chosen:
                return
            raise several([self._model, message.model])
        self._messages.append(message)
        self.count += 1
        if len(self._messages) >= CHUNK_MESSAGES:
            self._flush()

    def batches(self) -> "list[pa.RecordBatch]":
        if self._messages:
            self._flush()
        return self._batches

    def schema(self) -> "pa.Schema":
        return frame_schema(self._model, self._prices)

    def _flush(self) -> None:
        assert self._model is not None
        self._batches.append(batch_of_messages(self._messages, self._model, self._prices))
        self._messages = []


def frame_schema(model: MessageModel | None, prices: Prices) -> "pa.Schema":
    """Return the schema of a table; without a model, `topic` and `seq` only."""
    import pyarrow as pa

    ours = [pa.field("topic", pa.string()), pa.field("seq", pa.uint64())]
    if model is None:
        return pa.schema(ours)
    fields = model.arrow_schema(prices)
    return pa.schema([*ours, *fields], metadata=fields.metadata)


def batch_of_rows(rows: MessageRows, numbers: NDArray[Any], model: MessageModel, prices: Prices) -> "pa.RecordBatch":
    """Return the messages of a model; `numbers` are those of all rows."""
    import pyarrow as pa

    is_sound = rows.sound(model)
    chosen = rows.select(is_sound)
    return _joined(chosen.topics(), pa.array(numbers[is_sound], pa.uint64()), chosen.records(model), model, prices)


def batch_of_messages(messages: Sequence[Message], model: MessageModel, prices: Prices) -> "pa.RecordBatch":
    """Return these messages, which are of one model."""
    import pyarrow as pa

    payloads = b"".join(messages)
    rows = numpy.zeros(len(messages), MESSAGE_DTYPE)
    sizes = numpy.fromiter(map(len, messages), numpy.int64, len(messages))
    rows["payload_size"] = sizes
    rows["payload_offset"] = numpy.cumsum(sizes) - sizes
    rows["model_id"] = model.id
    rows["model_version"] = [message.version for message in messages]
    read = MessageRows(numpy.empty(0, numpy.uint8), numpy.frombuffer(payloads, numpy.uint8), rows)
    is_sound = read.sound(model)
    if not is_sound.all():
        raise ModelError(f"{len(messages) - is_sound.sum()} messages do not fit model {model.name!r}")
    topics = pa.array([message.topic for message in messages], pa.string())
    numbers = pa.array([message.seq for message in messages], pa.uint64())
    return _joined(topics, numbers, read.records(model), model, prices)


def _joined(
    topics: "pa.Array", numbers: "pa.Array", records: NDArray[Any], model: MessageModel, prices: Prices
) -> "pa.RecordBatch":
    import pyarrow as pa

    fields = model.to_arrow(records, prices)
    return pa.RecordBatch.from_arrays([topics, numbers, *fields.columns], schema=frame_schema(model, prices))


def model_of(model: ModelOrClass) -> MessageModel:
    """Return the model, or the model of a class of messages."""
    return model if isinstance(model, MessageModel) else model.model


def only_model(models: Iterable[MessageModel], chosen: ModelOrClass | None) -> MessageModel:
    """Return the chosen model, or the only one."""
    if chosen is not None:
        return model_of(chosen)
    found = list(models)
    if len(found) != 1:
        raise several(found)
    return found[0]


def several(models: Sequence[MessageModel]) -> ModelError:
    names = ", ".join(sorted(model.name for model in models))
    return ModelError(
        f"a table has messages of one model, not of {len(models)}", hint=f"pass model=…{names and f', one of: {names}'}"
    )


def pandas_frame(table: Any) -> "pandas.DataFrame":
    require("pandas")
    frame: pandas.DataFrame = table.to_pandas()
    return frame


def polars_frame(table: Any) -> "polars.DataFrame":
    frame: polars.DataFrame = require("polars").from_arrow(table)
    return frame


def require(package: str, *, extra: str = "frames") -> Any:
    """Import a package that an extra installs."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        raise ConfigurationError(
            f"the package {package} is not installed", hint=f"pip install 'penstock[{extra}]'"
        ) from None
