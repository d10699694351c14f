"""Converter tables: documents that say what becomes of each source message.

    table = ConverterTable.load("itch")                 # one that comes with Penstock
    table = ConverterTable.read(Path("my-feed.toml"))
    table = ConverterTable.find(TableChoice(name="itch", venue="XBOS", prefix="md.us.bx"))
    converter = Converter(table.compile(), stream_id=1)

docs/how-to/converting.md describes the language. What is wrong with a table is said when it is compiled, with the file,
the key and what was expected.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import msgspec

from penstock.base.calendar import locate
from penstock.base.config import load_toml, parse_toml
from penstock.base.errors import TableError, TopicError
from penstock.base.extensions import load_entry_points, load_modules
from penstock.convert.core.document import MapValue, QuantityDecimals, TableChoice, TableDocument
from penstock.convert.core.format import SourceFormat
from penstock.convert.core.names import guess
from penstock.convert.core.plan import Plan, compile_plan
from penstock.topics import check_topic

DIRECTORY = Path(__file__).parent / "tables"
OWN_MARKET = "own_market"
"""The map that follows from a table's markets and its venue."""

_registered: dict[str, Path] = {}


def shipped_tables() -> list[str]:
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


def register_table(path: Path) -> None:
    """Register a custom table under the name of its file, without the suffix."""
    if path.stem in shipped_tables() or _registered.get(path.stem, path) != path:
        raise TableError(f"there is a table called {path.stem!r} already", where=str(path))
    _registered[path.stem] = path


class ConverterTable:
    """A table's document with its parameters filled in, and its format."""

    def __init__(self, document: TableDocument, where: str, directory: Path) -> None:
        if document.markets and OWN_MARKET in document.map:
            what = f"the map {OWN_MARKET!r} is declared, and also follows from markets"
            raise TableError(what, where=f"{where}: map.{OWN_MARKET}", hint="give the map another name")
        self.document = _filled_in(document)
        self.where = where
        self._declared = document
        self._directory = directory

    @staticmethod
    def find(choice: str | TableChoice, beside: Path = Path()) -> ConverterTable:
        """The table of a configuration or a command line: a shipped one by its name, else the file of that path.

        Relative paths begin at `beside`.
        """
        chosen = TableChoice(name=choice) if isinstance(choice, str) else choice
        path = beside / chosen.name
        is_file = chosen.name not in shipped_tables() and (path.suffix == ".toml" or path.is_file())
        table = ConverterTable.read(path) if is_file else ConverterTable.load(chosen.name)
        return table.with_parameters(
            venue=chosen.venue,
            prefix=chosen.prefix,
            quantity_decimals=chosen.quantity_decimals,
            calendar=locate(chosen.calendar, beside),
        )

    @staticmethod
    def load(name: str) -> ConverterTable:
        """A table that comes with Penstock, or that a loaded module or an installed package registered, by its name."""
        if name in shipped_tables():
            return ConverterTable.read(DIRECTORY / f"{name}.toml")
        if name not in _registered:
            load_entry_points()
        if name not in _registered:
            hint = guess(name, [*shipped_tables(), *_registered])
            raise TableError(f"no table {name!r} is shipped or registered", hint=hint)
        return ConverterTable.read(_registered[name])

    @staticmethod
    def read(path: Path) -> ConverterTable:
        """The table in a TOML file; other files it names are looked for beside it."""
        return ConverterTable(load_toml(path, TableDocument), path.name, path.parent)

    @staticmethod
    def parse(text: str, where: str = "table", directory: Path = Path()) -> ConverterTable:
        """The table that a TOML text declares."""
        return ConverterTable(parse_toml(text, TableDocument, where=where), where, directory)

    def with_parameters(
        self,
        *,
        venue: str = "",
        prefix: str = "",
        quantity_decimals: QuantityDecimals | None = None,
        calendar: str = "",
    ) -> ConverterTable:
        """The same table for another venue, below another topic prefix, with other decimals of its quantities, or with
        another trading calendar; an empty value keeps the table's own.

        A parameter that the table does not use is refused: it would change nothing.
        """
        declared = self._declared
        if venue and not _uses_venue(declared):
            raise TableError(f"the table does not use venue {venue!r}", where=self.where, hint="no output has a venue")
        if prefix:
            if not any("{prefix}" in output.topic for output in declared.output.values()):
                raise TableError(
                    f"the table does not use prefix {prefix!r}", where=self.where, hint="no topic of it has {prefix}"
                )
            _check_prefix(prefix, self.where)
        changed = msgspec.structs.replace(
            declared,
            venue=venue or declared.venue,
            prefix=prefix or declared.prefix,
            quantity_decimals=declared.quantity_decimals if quantity_decimals is None else quantity_decimals,
            calendar=calendar or declared.calendar,
        )
        return ConverterTable(changed, self.where, self._directory)

    @property
    def name(self) -> str:
        return self.document.name

    @cached_property
    def format(self) -> SourceFormat:
        """The source format: a shipped one by its name, or a file beside the table's."""
        name = self.document.format
        if name.endswith(".toml"):
            return SourceFormat.read(self._directory / name)
        try:
            return SourceFormat.load(name)
        except TableError as error:
            raise TableError(error.what, where=f"{self.where}: format", hint=error.hint) from None

    def compile(self) -> Plan:
        """The plan, or a TableError that says what is wrong with the table and where."""
        load_modules(self.document.modules, self._directory)
        return compile_plan(self.document, self.format, self.where, self._directory)


def _filled_in(document: TableDocument) -> TableDocument:
    """The document with its parameters in place of {venue} and {prefix}; a parameter without value is left as it is,
    and refused when the table is compiled."""
    given = {name: value for name in ("venue", "prefix") if (value := getattr(document, name))}
    outputs = {}
    for name, output in document.output.items():
        topic = output.topic
        for parameter, value in given.items():
            topic = topic.replace(f"{{{parameter}}}", value)
        outputs[name] = msgspec.structs.replace(output, topic=topic)
    maps = {**document.map, OWN_MARKET: _own_market(document)} if document.markets else document.map
    return msgspec.structs.replace(document, output=outputs, map=maps)


def _own_market(document: TableDocument) -> dict[str, MapValue]:
    """1 for the codes of messages that concern the table's venue."""
    code = document.markets.get(document.venue)
    return {"otherwise": 1} if code is None else {code: 1, "otherwise": 0}


def _uses_venue(document: TableDocument) -> bool:
    def values() -> Iterator[object]:
        for output in document.output.values():
            yield from output.fields.values()
        for steps in (*document.message.values(), document.image):
            for step in steps:
                yield from step.values()

    is_in_topic = any("{venue}" in output.topic for output in document.output.values())
    return is_in_topic or any(value == "venue" for value in values())


def _check_prefix(prefix: str, where: str) -> None:
    try:
        if "{" in prefix or "}" in prefix:
            raise TopicError("a prefix is without placeholders")
        check_topic(prefix)
    except TopicError as error:
        raise TableError(f"prefix {prefix!r}: {error}", where=where, hint="levels with dots: md.us.bx") from None
