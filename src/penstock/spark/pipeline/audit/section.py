"""What a section of the audit is given, and what it answers."""

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
    """A number of the report: a row of the table `audit`."""

    section: str
    subject: str
    """What it is about: a stream, a publisher, a client."""
    name: str
    value: float
    unit: str = ""
    verdict: Verdict = "good"


class TextTable(msgspec.Struct, frozen=True):
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """The first column is on the left, the others on the right."""
    bad: Collection[int] = ()
    """Rows that stand out."""


class Plot(msgspec.Struct, frozen=True):
    title: str
    svg: str


class SectionResult(msgspec.Struct, frozen=True):
    verdict: Verdict
    summary: str
    """One sentence with the numbers that matter."""
    measures: Sequence[Measure] = ()
    blocks: Sequence[TextTable | Plot] = ()


class AuditTables:
    """The archive's tables, for the dates that are audited."""

    def __init__(
        self, archive: Archive, spark: SparkSession, dates: Collection[str] | None, audit_log: Path | None
    ) -> None:
        self.archive = archive
        self.spark = spark
        self.dates = dates
        self.audit_log = audit_log
        """Of an administration server, if one was named."""
        self._answers: dict[str, list[dict[str, Any]]] = {}

    def has(self, tables: Iterable[str]) -> bool:
        """Whether all of them have rows for these dates."""
        schemas = self.archive.catalogue.schemas
        return all(table in schemas and self.archive.files(table, dates=self.dates) for table in tables)

    def view(self, table: str) -> DataFrame:
        """The table, also to be asked in SQL by its name; without rows if the archive has none."""
        frame = self.archive.frame(self.spark, table, dates=self.dates)
        frame.createOrReplaceTempView(table)
        return frame

    def sql(self, query: str) -> list[dict[str, Any]]:
        """The rows of the answer; what was asked before is remembered."""
        if query not in self._answers:
            self._answers[query] = [row.asDict() for row in self.spark.sql(query).collect()]
        return self._answers[query]


class AuditSection(Protocol):
    name: str
    title: str
    needs: tuple[str, ...]
    """Tables without which there is nothing to say; they are views when compute() is called."""

    def compute(self, tables: AuditTables) -> SectionResult: ...


def publisher_text(publisher: int) -> str:
    """As commands write it."""
    return f"{publisher % 2**64:016x}"


def count_text(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def share_text(part: float, whole: float) -> str:
    return f"{part / whole:.4%}" if whole else "–"


def newest_sql(table: str, who: str, *about: str) -> str:
    """The last account of each subject in each run of whoever gives them."""
    key = ", ".join(f"`{each}`" for each in (who, "started", *about))
    return f"""
    SELECT * FROM (
        SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY event_time DESC, state) AS age FROM {table}
    ) WHERE age = 1 ORDER BY {key}"""


def runs_killed(runs: list[dict[str, Any]], who: str) -> list[dict[str, Any]]:
    """Runs without a last account that others of the same one follow."""
    newest = {row[who]: row["started"] for row in sorted(runs, key=lambda row: row["started"])}
    return [row for row in runs if row["state"] != "closed" and row["started"] < newest[row[who]]]
