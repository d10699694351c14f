"""MessageModel: one declaration of a message, from which every other form of it comes."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.base.config import parse_toml, read_document
from penstock.base.errors import ModelError
from penstock.model import columns, compatibility, jsontext, schema
from penstock.model._message import RecordLayout
from penstock.model.document import ModelDocument
from penstock.model.layout import Field, Part, lay_out
from penstock.model.message import Message

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer


@dataclasses.dataclass(frozen=True, repr=False)
class MessageModel:
    """A message model, compiled: made by parse() or load(), never changed.

    `id` and `version` travel with every message. `fields` are in the order of their offsets; `parts` are the stretches
    of the record that can be written and checked on their own; `conflate` is whether an update may replace one that is
    still waiting.
    """

    id: int
    name: str
    version: int
    fields: tuple[Field, ...]
    parts: tuple[Part, ...]
    conflate: bool = True
    description: str = ""
    text: str = dataclasses.field(default="", compare=False)
    """The document as it was declared, to be handed on."""

    @staticmethod
    def parse(text: str, where: str = "model") -> MessageModel:
        """The model that a TOML text declares; `where` names the text in errors."""
        return _compile(parse_toml(text, ModelDocument, where=where), text, where)

    @staticmethod
    def load(path: str | Path) -> MessageModel:
        """The model in a TOML file."""
        return MessageModel.parse(read_document(Path(path)), where=str(path))

    def __repr__(self) -> str:
        return f"<MessageModel {self.name} version {self.version} (id {self.id}, {len(self.fields)} fields)>"

    def __hash__(self) -> int:
        return hash((self.id, self.name, self.version))

    def __reduce__(self) -> tuple[Any, ...]:
        # Without what is derived: the generated class cannot be pickled, and the receiver makes its own.
        return MessageModel, tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    @property
    def record_size(self) -> int:
        """Bytes of a record, a multiple of 8."""
        return self.parts[-1].offset + self.parts[-1].size

    @cached_property
    def fields_by_name(self) -> dict[str, Field]:
        return {field.name: field for field in self.fields}

    def new(self, **values: Any) -> Message:
        """A message of its own, writable; fields that are not given are missing if optional, else zero or empty."""
        message = self._message_class(self._layout, bytearray(self._blank))
        for name, value in values.items():
            if name not in self.fields_by_name:
                raise ModelError(f"model {self.name!r} has no field {name!r}")
            setattr(message, name, value)
        return message

    def view(self, data: Buffer, version: int | None = None) -> Message:
        """A message over the bytes of a record, which are not copied and are held as long as the message lives.

        `version` is the model version that the record was written with. Fields that an older version does not have
        read as None; what a newer version has added is not looked at. Without a version the length of the data tells,
        which cannot see a field that was added inside padding or reserved room. Data too short for the fields of its
        version is a ModelError.
        """
        return self._message_class(self._layout, data, version)

    def from_json(self, text: str | bytes) -> Message:
        """A message of its own from one JSON object, as Message.to_json() writes it."""
        return jsontext.decode(self, text)

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The numpy dtype of a record: np.frombuffer(data, model.dtype) reads many without copying."""
        return schema.numpy_dtype(self)

    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema: prices are decimals, timestamps nanoseconds in UTC, enums strings, missing values null."""
        return schema.arrow_schema(self)

    def to_arrow(self, records: np.ndarray[Any, Any]) -> pa.RecordBatch:
        """Records of this model's dtype, or of an older version's (what that lacks is null), as an Arrow batch."""
        return schema.to_arrow(self, records)

    def spark_schema(self) -> str:
        """The columns in Spark's DDL. A timestamp is a BIGINT of nanoseconds: Spark's own type ends at microseconds."""
        return columns.spark_schema(self)

    def incompatibilities(self, older: MessageModel) -> list[str]:
        """Why programs that know only `older` cannot read this model's records, as sentences; empty if they can."""
        return compatibility.incompatibilities(self, older)

    @cached_property
    def _layout(self) -> RecordLayout:
        return RecordLayout(self.record_size, self.version, self.fields)

    @cached_property
    def _message_class(self) -> type[Message]:
        name = "".join(word.capitalize() for word in self.name.split("_"))
        accessors = {accessor.name: accessor for accessor in self._layout.accessors}
        return type(name, (Message,), {"__slots__": (), "__doc__": self.description, "model": self, **accessors})

    @cached_property
    def _blank(self) -> bytes:
        message = self._message_class(self._layout, bytearray(self.record_size))
        for field in self.fields:
            if field.optional:
                setattr(message, field.name, None)
        return bytes(message)


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
