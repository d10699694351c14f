"""Source formats: where the fields of a feed's messages lie, as a TOML document says.

A format knows no meaning: that 4 bytes are shares is the document's word, what shares are for is a converter table's.
The shipped ones are in the directory formats/ of this package.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.base.config import Config, load_toml
from penstock.base.errors import TableError
from penstock.convert.core.names import NAME, guess

DIRECTORY = Path(__file__).parents[1] / "formats"

SIZE_MAX = 65_535
"""Bytes of a source message."""

COLUMNS_MAX = 64
"""Columns of a line that are looked at."""

TYPE_SIZE_MAX = 8
"""Bytes of what tells a message's type."""

Size = Annotated[int, Meta(ge=1, le=SIZE_MAX)]
Offset = Annotated[int, Meta(ge=0, le=SIZE_MAX)]
Column = Annotated[int, Meta(ge=0, lt=COLUMNS_MAX)]


class FieldDocument(Config, frozen=True):
    """Where a field lies: at an offset, after another field up to the end, or in a column."""

    at: Offset | None = None
    size: Size | None = None
    size_field: str | None = None
    after: str | None = None
    column: Column | None = None
    kind: Literal["unsigned", "signed", "text"] | None = None
    decimals: Annotated[int, Meta(ge=0, le=18)] | None = None


class MessageDocument(Config, frozen=True):
    type: Annotated[str, Meta(max_length=TYPE_SIZE_MAX)] | int | None = None
    size: Size | None = None
    size_min: Size | None = None
    columns: Annotated[int, Meta(ge=1, le=COLUMNS_MAX)] | None = None
    fields: dict[str, FieldDocument] = msgspec.field(default_factory=dict)


class FormatDocument(Config, frozen=True):
    name: str
    layout: Literal["binary", "csv"]
    message: dict[str, MessageDocument]
    description: str = ""
    byte_order: Literal["big", "little"] = "big"
    separator: Annotated[str, Meta(min_length=1, max_length=1)] = ","
    type: FieldDocument | None = None
    common: dict[str, FieldDocument] = msgspec.field(default_factory=dict)


class SourceField(msgspec.Struct, frozen=True, kw_only=True):
    """One field of one message. Exactly one of `at`, `after` and `column` is given."""

    name: str
    kind: Literal["unsigned", "signed", "text"]
    at: int | None = None
    size: int | None = None
    """None where the size is only known from the message."""
    size_field: str = ""
    after: str = ""
    column: int | None = None
    decimals: int | None = None

    @property
    def place(self) -> str:
        """Where it lies, for people."""
        if self.column is not None:
            return f"column {self.column}"
        if self.after:
            return f"after {self.after}, to the end"
        return f"{self.at}:{self.size or self.size_field}"


class SourceMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message type. `key` are the bytes that tell it, or None if the format has one type only."""

    name: str
    key: bytes | None
    size_min: int
    size_max: int
    columns: int
    fields: dict[str, SourceField]


class SourceFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A checked format."""

    name: str
    description: str
    layout: Literal["binary", "csv"]
    byte_order: Literal["big", "little"]
    separator: str
    type_field: SourceField | None
    messages: dict[str, SourceMessage]

    @staticmethod
    def load(name: str) -> SourceFormat:
        """A shipped format, by its name."""
        return _shipped(name)

    @staticmethod
    def read(path: Path) -> SourceFormat:
        """The format in a TOML file."""
        return _checked(load_toml(path, FormatDocument), str(path))


def shipped_formats() -> list[str]:
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


@cache
def _shipped(name: str) -> SourceFormat:
    if name not in shipped_formats():
        raise TableError(f"no format {name!r} is shipped", hint=guess(name, shipped_formats()))
    return SourceFormat.read(DIRECTORY / f"{name}.toml")


def _checked(document: FormatDocument, where: str) -> SourceFormat:
    if not document.message:
        raise TableError("has no message", where=where, hint="expected at least one [message.NAME]")
    type_field = None
    if document.type is not None:
        type_field = _field("type", document.type, document, f"{where}: type")
        if document.layout == "binary" and not 1 <= (type_field.size or 0) <= TYPE_SIZE_MAX:
            raise TableError(f"needs a size of 1 to {TYPE_SIZE_MAX}", where=f"{where}: type")
    messages = {name: _message(name, each, document, type_field, where) for name, each in document.message.items()}
    keys: dict[bytes | None, str] = {}
    for message in messages.values():
        other = keys.setdefault(message.key, message.name)
        if other != message.name:
            raise TableError(f"has the same type as {other!r}", where=f"{where}: message.{message.name}")
    return SourceFormat(
        name=document.name,
        description=document.description,
        layout=document.layout,
        byte_order=document.byte_order,
        separator=document.separator,
        type_field=type_field,
        messages=messages,
    )


def _message(
    name: str, message: MessageDocument, document: FormatDocument, type_field: SourceField | None, where: str
) -> SourceMessage:
    here = f"{where}: message.{name}"
    if not NAME.fullmatch(name):
        raise TableError(f"{name!r} is not a name", where=here, hint="lower-case letters, digits and _")
    given = {**document.common, **message.fields}
    fields = {key: _field(key, each, document, f"{here}.fields.{key}") for key, each in given.items()}
    if document.layout == "csv":
        if message.columns is None:
            raise TableError("needs columns", where=here, hint="how many columns a line has")
        size_min, size_max = 0, SIZE_MAX
    else:
        if (message.size is None) == (message.size_min is None):
            raise TableError("needs either size or size_min", where=here)
        size_min = message.size or message.size_min or 0
        size_max = message.size or SIZE_MAX
    made = SourceMessage(
        name=name,
        key=_key(message.type, type_field, document, here),
        size_min=size_min,
        size_max=size_max,
        columns=message.columns or 0,
        fields=fields,
    )
    for field in fields.values():
        _check_within(field, made, f"{here}.fields.{field.name}")
    return made


def _key(given: str | int | None, type_field: SourceField | None, document: FormatDocument, here: str) -> bytes | None:
    if (given is None) != (type_field is None):
        raise TableError(
            "needs a type" if given is None else "has a type, but the format says nowhere where types are",
            where=here,
            hint="the format's type says where in a message it lies",
        )
    if given is None or type_field is None:
        return None
    if isinstance(given, int):
        if type_field.size is None or not 0 <= given < 1 << 8 * type_field.size:
            raise TableError(f"type {given} does not fit {type_field.size} bytes", where=here)
        return given.to_bytes(type_field.size, document.byte_order)
    key = given.encode()
    if not 1 <= len(key) <= TYPE_SIZE_MAX or (type_field.size is not None and len(key) != type_field.size):
        raise TableError(f"type {given!r} has not {type_field.size or f'1 to {TYPE_SIZE_MAX}'} bytes", where=here)
    return key


def _field(name: str, field: FieldDocument, document: FormatDocument, here: str) -> SourceField:
    if not NAME.fullmatch(name):
        raise TableError(f"{name!r} is not a name", where=here, hint="lower-case letters, digits and _")
    if document.layout == "csv":
        if field.column is None or field.at is not None or field.after is not None or field.size is not None:
            raise TableError("a field of a line has a column, and nothing else", where=here)
        return SourceField(name=name, kind="text", column=field.column)
    if field.column is not None or (field.at is None) == (field.after is None):
        raise TableError("needs either at (an offset) or after (a field)", where=here)
    if field.after is None and (field.size is None) == (field.size_field is None):
        raise TableError("needs either size or size_field", where=here)
    kind = field.kind or "unsigned"
    if kind != "text" and (field.size is None or field.size > 8):
        raise TableError("a number has a size of 1 to 8", where=here)
    if kind == "text" and field.decimals is not None:
        raise TableError("a text has no decimals", where=here, hint="the table's decimal() reads a number from it")
    return SourceField(
        name=name,
        kind=kind,
        at=field.at,
        size=field.size,
        size_field=field.size_field or "",
        after=field.after or "",
        decimals=field.decimals,
    )


def _check_within(field: SourceField, message: SourceMessage, here: str) -> None:
    if field.column is not None:
        if field.column >= message.columns:
            raise TableError(f"column {field.column} is beyond the {message.columns} columns", where=here)
        return
    for other in filter(None, (field.size_field, field.after)):
        if other not in message.fields:
            raise TableError(f"there is no field {other!r}", where=here, hint=guess(other, message.fields))
    if field.size_field and message.fields[field.size_field].kind == "text":
        raise TableError(f"size_field {field.size_field!r} is not a number", where=here)
    if field.after and not message.fields[field.after].size_field and not message.fields[field.after].size:
        raise TableError(f"{field.after!r} has no end", where=here)
    if field.at is not None and field.at + (field.size or 0) > message.size_min:
        raise TableError(f"ends beyond the message's {message.size_min} bytes", where=here)
