"""The TOML document of a message model; layout.py interprets the document and refuses contradictions."""

from typing import Annotated, Literal

from msgspec import Meta

from penstock.base.config import Config
from penstock.base.limits import FIELD_COUNT_MAX, RECORD_SIZE_MAX

FieldType = Literal[
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
    "f32",
    "f64",
    "price",
    "quantity",
    "timestamp",
    "text",
    "enum",
    "flags",
]
Conflation = Literal["last", "first", "max", "min", "sum", "never"]

U16 = Annotated[int, Meta(ge=1, le=65_535)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]


class PartDocument(Config, frozen=True):
    """A stretch of the record that can be written and checked independently; `size` reserves room for later
    versions.
    """

    name: Name
    size: Annotated[int, Meta(ge=8, le=RECORD_SIZE_MAX, multiple_of=8)] | None = None


class FieldDocument(Config, frozen=True):
    name: Name
    type: FieldType
    description: str = ""
    part: str = ""
    since: U16 = 1
    optional: bool = False
    conflate: Conflation = "last"
    repeat: Annotated[int, Meta(ge=1, le=FIELD_COUNT_MAX)] | None = None
    decimals: Annotated[int, Meta(ge=0, le=18)] | None = None
    size: Annotated[int, Meta(ge=1, le=1024)] | None = None
    values: dict[Name, Annotated[int, Meta(ge=0, le=255)]] | None = None
    bits: dict[Name, Annotated[int, Meta(ge=0, le=31)]] | None = None


class ModelDocument(Config, frozen=True):
    id: U16
    name: Name
    version: U16
    field: Annotated[list[FieldDocument], Meta(min_length=1)]
    description: str = ""
    conflate: bool = True
    parts: tuple[PartDocument, ...] = ()


class VariantDocument(Config, frozen=True):
    """A model that differs from another one only in its id and in the decimals of its quantities."""

    like: Name
    id: U16
    quantity_decimals: Annotated[int, Meta(ge=1, le=18)]
