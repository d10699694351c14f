"""What a converter table's TOML document may say; plan.py gives it its meaning and refuses what contradicts itself."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock.base.config import Config

Name = Annotated[str, Meta(min_length=1, max_length=64)]
Venue = Annotated[str, Meta(max_length=4)]
Prefix = Annotated[str, Meta(max_length=128)]
QuantityDecimals = Literal[0, 8]
Step = dict[str, Any]
MapValue = str | int | list[str]


class TableChoice(Config, frozen=True):
    """A table and its parameters: `{ name = "itch", venue = "XBOS", prefix = "md.us.bx" }` in a configuration."""

    name: Annotated[str, Meta(min_length=1)]
    """A shipped table by its name, or the path of a TOML file."""

    venue: Venue = ""
    """The market identifier code of the messages; empty keeps the table's own."""

    prefix: Prefix = ""
    """The first levels of every topic; empty keeps the table's own."""

    quantity_decimals: QuantityDecimals | None = None
    """0 for whole quantities, 8 for fractions; None keeps the table's own."""

    calendar: str = ""
    """A shipped trading calendar by its name, or the path of a TOML file; empty keeps the table's own."""


class InstrumentDocument(Config, frozen=True):
    """How a source message tells its instrument: `key` is a field (a locate code, or the symbol itself), `symbol` the
    field with the symbol. A message that has both makes an unknown instrument known."""

    key: Name
    symbol: Name


class SymbolsDocument(Config, frozen=True):
    """From the venue's symbol to the venue-independent one: first `same_as` and the reference file, then the suffixes.

    `suffixes` exchange the end of a symbol, the longest first. `topic` exchanges characters in topics only.
    """

    suffixes: dict[str, str] = msgspec.field(default_factory=dict)
    same_as: dict[str, str] = msgspec.field(default_factory=dict)
    topic: dict[Annotated[str, Meta(min_length=1, max_length=1)], str] = msgspec.field(default_factory=dict)
    file: str = ""


class OutputDocument(Config, frozen=True):
    """An application message: its model, where it goes, and the fields that are the same wherever it is emitted."""

    model: Name
    topic: Annotated[str, Meta(min_length=1)]
    fields: dict[str, str | int | float] = msgspec.field(default_factory=dict)


class TableDocument(Config, frozen=True):
    name: Name
    format: Name
    message: dict[str, list[Step]]
    description: str = ""
    modules: list[str] = msgspec.field(default_factory=list)
    """Python files beside the table, or modules by their dotted names, that are loaded before the table is compiled."""

    venue: Venue = ""
    prefix: Prefix = ""
    """Replaces {prefix} in topics. `venue` and `prefix` are defaults: a TableChoice overrides them."""

    quantity_decimals: QuantityDecimals = 0
    """Decimals of all quantities, in the conversion state and in messages: 8 if the venue trades fractions. A
    TableChoice overrides it as well."""

    calendar: str = ""
    """A shipped trading calendar by its name, or the path of a TOML file, relative to the table. Empty: the shipped
    calendar of the venue. A TableChoice overrides it."""

    timezone: str = "UTC"
    event_time: str = "constant(0)"
    instrument: InstrumentDocument | None = None
    symbols: SymbolsDocument = SymbolsDocument()
    map: dict[Name, dict[str, MapValue]] = msgspec.field(default_factory=dict)
    markets: dict[Venue, Annotated[str, Meta(min_length=1, max_length=8)]] = msgspec.field(default_factory=dict)
    """For a feed that several venues share: the code of each venue in the feed's messages. They make `map(own_market)`,
    which is 1 for the code of the table's venue and 0 for other codes. For a venue that is not listed it is always 1,
    because such a venue shares the feed with no listed one."""

    bits: dict[Name, dict[str, MapValue]] = msgspec.field(default_factory=dict)
    output: dict[Name, OutputDocument] = msgspec.field(default_factory=dict)
    image: list[Step] = msgspec.field(default_factory=list)
