"""MessageModel: the declaration of a message, from which all its other forms are derived."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.base.config import parse_toml, read_document
from penstock.base.errors import ModelError
from penstock.model import columns, compatibility, jsontext, schema
from penstock.model._message import RecordLayout, RecordMaker
from penstock.model.document import ModelDocument
from penstock.model.layout import Field, Part, lay_out
from penstock.model.message import Message, MessageClass

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer


@dataclasses.dataclass(frozen=True, repr=False)
class MessageModel:
    """A compiled message model; created by parse() or load(), immutable.

    `id` and `version` travel with every message. `fields` are in the order of their offsets; `parts` are the stretches
    of the record that can be written and checked independently; `conflate` tells whether an update may replace a
    waiting one.
    """

    id: int
    name: str
    version: int
    fields: tuple[Field, ...]
    parts: tuple[Part, ...]
    conflate: bool = True
    description: str = ""
    text: str = dataclasses.field(default="", compare=False)
    """The document of the declaration, for sending to others."""

    @staticmethod
    def parse(text: str, where: str = "model") -> MessageModel:
        """Parse a model from TOML text; `where` names the text in errors."""
        return _compile(parse_toml(text, ModelDocument, where=where), text, where)

    @staticmethod
    def load(path: str | Path) -> MessageModel:
        """Load a model from a TOML file."""
        return MessageModel.parse(read_document(Path(path)), where=str(path))

    def __repr__(self) -> str:
        return f"<MessageModel {self.name} version {self.version} (id {self.id}, {len(self.fields)} fields)>"

    def __hash__(self) -> int:
        return hash((self.id, self.name, self.version))

    def __reduce__(self) -> tuple[Any, ...]:
        # Derived data is left out: the generated class cannot be pickled, and the receiver rebuilds it.
        return MessageModel, tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    @property
    def record_size(self) -> int:
        """Size of a record in bytes, a multiple of 8."""
        return self.parts[-1].offset + self.parts[-1].size

    @cached_property
    def fields_by_name(self) -> dict[str, Field]:
        return {field.name: field for field in self.fields}

    def new(self, **values: Any) -> Message:
        """Create a writable message; fields that are not given are missing if optional, else zero or empty."""
        message = self._over(bytearray(self._blank))
        for name, value in values.items():
            if name not in self.fields_by_name:
                raise ModelError(f"model {self.name!r} has no field {name!r}")
            setattr(message, name, value)
        return message

    def view(self, data: Buffer, version: int | None = None) -> Message:
        """Return a message over the bytes of a record, which are not copied and stay alive with the message.

        `version` is the model version that the record was written with. Fields that an older version lacks read as
        None; fields that a newer version added are ignored. Without `version`, the length of the data decides, which
        cannot detect a field that was added inside padding or reserved room. Data too short for the fields of its
        version raises ModelError.
        """
        return self._over(data, version)

    def record_maker(self, version: int) -> RecordMaker:
        """Return a maker of messages that were written with this model version, for compiled readers."""
        return RecordMaker(self.message_class, self._layout, version)

    def from_json(self, text: str | bytes) -> Message:
        """Create a message from one JSON object in the format of Message.to_json()."""
        return jsontext.decode(self, text)

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The numpy dtype of a record: np.frombuffer(data, model.dtype) reads many records without copying."""
        return schema.numpy_dtype(self)

    def arrow_schema(self, prices: schema.Prices = "decimal") -> pa.Schema:
        """Return the Arrow schema: prices are decimals or floats, timestamps nanoseconds in UTC, enums strings, missing
        values null.
        """
        return schema.arrow_schema(self, prices)

    def to_arrow(self, records: np.ndarray[Any, Any], prices: schema.Prices = "decimal") -> pa.RecordBatch:
        """Convert records of this model's dtype, or of an older version's (missing fields become null), to an Arrow
        batch.
        """
        return schema.to_arrow(self, records, prices)

    def spark_schema(self) -> str:
        """Return the columns as Spark DDL. A timestamp is a BIGINT of nanoseconds, because Spark's own type has
        microseconds.
        """
        return columns.spark_schema(self)

    def incompatibilities(self, older: MessageModel) -> list[str]:
        """Return the reasons why programs that know only `older` cannot read this model's records; empty if they
        can.
        """
        return compatibility.incompatibilities(self, older)

    @property
    def class_name(self) -> str:
        """The name of `message_class`: BookEvent for book_event."""
        return class_name(self.name)

    @cached_property
    def message_class(self) -> type[Message]:
        """The class of the model's messages. Calling the class with values by field name is new()."""
        accessors = {accessor.name: accessor for accessor in self._layout.accessors}
        inside = {"__slots__": (), "__doc__": self.description, "model": self, **accessors}
        return MessageClass(self.class_name, (Message,), inside)  # type: ignore[return-value]

    @cached_property
    def _layout(self) -> RecordLayout:
        return RecordLayout(self.record_size, self.version, self.fields)

    @cached_property
    def _over(self) -> Callable[..., Message]:
        """Makes a message over a buffer, given the buffer and the version."""
        return partial(self.message_class.__new__, self.message_class, self._layout)  # type: ignore[call-arg]

    @cached_property
    def _blank(self) -> bytes:
        message = self._over(bytearray(self.record_size))
        for field in self.fields:
            if field.optional:
                setattr(message, field.name, None)
        return bytes(message)


def class_name(model_name: str) -> str:
    return "".join(word.capitalize() for word in model_name.split("_"))


def _compile(document: ModelDocument, text: str, where: str) -> MessageModel:
    fields, parts = lay_out(document, where)
    return MessageModel(
        id=document.id,
        name=document.name,
        version=document.version,
        fields=fields,
        parts=parts,
        conflate=document.conflate,
        description=document.description,
        text=text,
    )
