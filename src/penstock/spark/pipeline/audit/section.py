"""The interface of audit sections: their input and their result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.pipeline.archive.archive import Archive

Verdict: TypeAlias = Literal["good", "bad", "unknown"]


class Measure(msgspec.Struct, frozen=True):
    """One number of the report; a row of the table `audit`."""

    section: str
    subject: str
    """The subject of the number: a stream, a publisher, a client."""
    name: str
    value: float
    unit: str = ""
    verdict: Verdict = "good"


class TextTable(msgspec.Struct, frozen=True):
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """Rows of cells; the first column is left-aligned, the others right-aligned."""
    bad: Collection[int] = ()
    """Indexes of rows to highlight."""


class Plot(msgspec.Struct, frozen=True):
    title: str
    svg: str


class SectionResult(msgspec.Struct, frozen=True):
    verdict: Verdict
    summary: str
    """One sentence with the most important numbers."""
    measures: Sequence[Measure] = ()
    blocks: Sequence[TextTable | Plot] = ()


class AuditTables:
    """The archive's tables, restricted to the audited dates."""

    def __init__(
        self, archive: Archive, spark: SparkSession, dates: Collection[str] | None, audit_log: Path | None
    ) -> None:
        self.archive = archive
        self.spark = spark
        self.dates = dates
        self.audit_log = audit_log
        """The audit log of an administration server, if given."""
        self._answers: dict[str, list[dict[str, Any]]] = {}

    def has(self, tables: Iterable[str]) -> bool:
        """True if all of these tables have rows for these dates."""
        schemas = self.archive.catalogue.schemas
        return all(table in schemas and self.archive.files(table, dates=self.dates) for table in tables)

    def view(self, table: str) -> DataFrame:
        """Return the table, and register it as a SQL view; empty if the archive has no such table."""
        frame = self.archive.frame(self.spark, table, dates=self.dates)
        frame.createOrReplaceTempView(table)
        return frame

    def sql(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query; results are cached."""
        if query not in self._answers:
            self._answers[query] = [row.asDict() for row in self.spark.sql(query).collect()]
        return self._answers[query]


class AuditSection(Protocol):
    name: str
    title: str
    needs: tuple[str, ...]
    """Tables that the section requires; they are registered as views when compute() is called."""

    def compute(self, tables: AuditTables) -> SectionResult: ...


def publisher_text(publisher: int) -> str:
    """Format a publisher id as the commands do."""
    return f"{publisher % 2**64:016x}"


def count_text(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def share_text(part: float, whole: float) -> str:
    return f"{part / whole:.4%}" if whole else "–"


def newest_sql(table: str, who: str, *about: str) -> str:
    """Query the last account of each subject in each run of its sender."""
    key = ", ".join(f"`{each}`" for each in (who, "started", *about))
    return f"""
    SELECT * FROM (
        SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY event_time DESC, state) AS age FROM {table}
    ) WHERE age = 1 ORDER BY {key}"""


def runs_killed(runs: list[dict[str, Any]], who: str) -> list[dict[str, Any]]:
    """Return runs without a final account that are followed by another run of the same sender."""
    newest = {row[who]: row["started"] for row in sorted(runs, key=lambda row: row["started"])}
    return [row for row in runs if row["state"] != "closed" and row["started"] < newest[row[who]]]
