"""Converter tables: documents that say what becomes of each source message.

    table = ConverterTable.load("itch")                 # one that comes with Penstock
    table = ConverterTable.read(Path("my-feed.toml"))
    converter = Converter(table.compile(), stream_id=1)

docs/converting.md describes the language. What is wrong with a table is said when it is compiled, with the file, the
key and what was expected.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from penstock.base.config import load_toml, parse_toml
from penstock.base.errors import TableError
from penstock.convert.document import TableDocument
from penstock.convert.format import SourceFormat
from penstock.convert.names import guess
from penstock.convert.plan import Plan, compile_plan

DIRECTORY = Path(__file__).parent / "tables"


def shipped_tables() -> list[str]:
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


class ConverterTable:
    """A table's document, and its format."""

    def __init__(self, document: TableDocument, where: str, directory: Path) -> None:
        self.document = document
        self.where = where
        self._directory = directory

    @staticmethod
    def load(name: str) -> ConverterTable:
        """A table that comes with Penstock, by its name."""
        if name not in shipped_tables():
            raise TableError(f"no table {name!r} is shipped", hint=guess(name, shipped_tables()))
        return ConverterTable.read(DIRECTORY / f"{name}.toml")

    @staticmethod
    def read(path: Path) -> ConverterTable:
        """The table in a TOML file; other files it names are looked for beside it."""
        return ConverterTable(load_toml(path, TableDocument), path.name, path.parent)

    @staticmethod
    def parse(text: str, where: str = "table", directory: Path = Path()) -> ConverterTable:
        """The table that a TOML text declares."""
        return ConverterTable(parse_toml(text, TableDocument, where=where), where, directory)

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
        return compile_plan(self.document, self.format, self.where, self._directory)
