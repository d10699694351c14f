"""Symbols: from a venue's to the venue-independent one, and from that to a level of a topic.

A reference file has one row per instrument, as CSV with a header or as TOML with [[instrument]]: `symbol` as the venue
says it, and any of `same_as` (the venue-independent symbol), `round_lot`, `price_decimals` and `quantity_decimals` (the
instrument's own, for feeds that do not send them) and `key` (the venue's locate code, for feeds that have no
directory).
"""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.base.config import Config, convert
from penstock.base.errors import TableError
from penstock.convert.core.document import SymbolsDocument
from penstock.topics.topic import RESERVED

SYMBOL_SIZE = 16
"""Bytes of a symbol in models and in the state."""

REFERENCE_SIZE_MAX = 64 * 1024 * 1024


Decimals = Annotated[int, Meta(ge=0, le=18)]


class Reference(Config, frozen=True):
    """One row of a reference file."""

    symbol: str
    same_as: str = ""
    round_lot: int = 0
    price_decimals: Decimals | None = None
    quantity_decimals: Decimals | None = None
    key: int | None = None


class _ReferenceFile(Config, frozen=True):
    instrument: list[Reference]


class Symbology(msgspec.Struct, frozen=True):
    """What a table says of symbols."""

    suffixes: tuple[tuple[str, str], ...]
    topic: dict[str, str]
    references: dict[str, Reference]

    @staticmethod
    def of(document: SymbolsDocument, directory: Path, where: str) -> Symbology:
        references = read_references(directory / document.file, where) if document.file else {}
        for symbol, same_as in document.same_as.items():
            known = references.get(symbol, Reference(symbol=symbol))
            references[symbol] = msgspec.structs.replace(known, same_as=same_as)
        suffixes = sorted(document.suffixes.items(), key=lambda pair: -len(pair[0]))
        return Symbology(tuple(suffixes), dict(document.topic), references)

    def describe(self, venue_symbol: bytes) -> tuple[bytes, Reference]:
        """The venue-independent symbol in 16 bytes, and the row of the reference file, an empty one if there is none.

        ValueError says that the bytes are no symbol.
        """
        text = venue_symbol.strip(b" \0").decode("ascii")
        if not text or not text.isprintable():
            raise ValueError("no symbol")
        reference = self.references.get(text, Reference(symbol=text))
        symbol = reference.same_as or self._exchanged(text)
        encoded = symbol.encode()
        if len(encoded) > SYMBOL_SIZE:
            raise ValueError("too long")
        return encoded.ljust(SYMBOL_SIZE, b"\0"), reference

    def _exchanged(self, symbol: str) -> str:
        for suffix, other in self.suffixes:
            if symbol.endswith(suffix) and len(symbol) > len(suffix):
                return symbol.removesuffix(suffix) + other
        return symbol

    def topic_level(self, symbol: bytes) -> bytes:
        """The symbol as a level of a topic; what no level may have is written as % and two hexadecimal digits."""
        level = bytearray()
        for byte in symbol.rstrip(b"\0"):
            character = chr(byte)
            if character in self.topic:
                level += self.topic[character].encode()
            elif 32 < byte < 127 and character not in RESERVED and character != ".":
                level.append(byte)
            else:
                level += b"%%%02X" % byte
        return bytes(level)


def read_references(path: Path, where: str) -> dict[str, Reference]:
    here = f"{where}: symbols.file {path.name}"
    try:
        if path.stat().st_size > REFERENCE_SIZE_MAX:
            raise TableError(f"has more than {REFERENCE_SIZE_MAX} bytes", where=here)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TableError(f"cannot be read: {error.strerror}", where=here) from None
    except UnicodeDecodeError as error:
        raise TableError(f"is not UTF-8 text (byte {error.start})", where=here) from None
    rows = _toml_rows(text, here) if path.suffix == ".toml" else _csv_rows(text, here)
    return {row.symbol: row for row in rows}


def _toml_rows(text: str, here: str) -> list[Reference]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TableError(f"is not valid TOML: {error}", where=here) from None
    return convert(data, _ReferenceFile, where=here).instrument


def _csv_rows(text: str, here: str) -> list[Reference]:
    rows = []
    for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        given: dict[str, Any] = {name: value for name, value in row.items() if value}
        try:
            for name in {"round_lot", "price_decimals", "quantity_decimals", "key"} & given.keys():
                given[name] = int(given[name])
        except ValueError:
            raise TableError(f"{name} is no whole number", where=f"{here}, line {number}") from None
        rows.append(convert(given, Reference, where=f"{here}, line {number}"))
    return rows
