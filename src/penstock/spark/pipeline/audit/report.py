"""All sections of the audit, one after the other, and their measures as a table of the archive."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from penstock.base.errors import NotFoundError
from penstock.base.files import make_directory
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.archive.commits import FileEntry, sync_file
from penstock.spark.pipeline.archive.parquet import open_parquet
from penstock.spark.pipeline.audit.agreement import AgreementSection
from penstock.spark.pipeline.audit.delivery import DeliverySection, OrderSection
from penstock.spark.pipeline.audit.engine import EngineSection
from penstock.spark.pipeline.audit.entitlement import EntitlementSection
from penstock.spark.pipeline.audit.filters import FilterSection
from penstock.spark.pipeline.audit.latency import LatencySection
from penstock.spark.pipeline.audit.records import BalanceSection
from penstock.spark.pipeline.audit.routers import RouterSection
from penstock.spark.pipeline.audit.section import AuditSection, AuditTables, SectionResult, Verdict
from penstock.spark.pipeline.audit.trees import TreeSection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECTIONS: list[AuditSection] = [
    DeliverySection(),
    AgreementSection(),
    OrderSection(),
    LatencySection(),
    FilterSection(),
    EngineSection(),
    TreeSection(),
    RouterSection(),
    BalanceSection(),
    EntitlementSection(),
]
"""In the order of the report. Add yours."""

TABLE = "audit"
TABLE_DDL = (
    "`audited` BIGINT, `section` STRING, `subject` STRING, `measure` STRING, `value` DOUBLE, `unit` STRING, "
    "`verdict` STRING, `date` DATE"
)
TABLE_SCHEMA = pa.schema(
    [
        ("audited", pa.int64()), ("section", pa.string()), ("subject", pa.string()), ("measure", pa.string()),
        ("value", pa.float64()), ("unit", pa.string()), ("verdict", pa.string()),
    ]
)  # fmt: skip


class AuditReport(msgspec.Struct, frozen=True):
    archive: str
    dates: Sequence[str]
    audited_ns: int
    sections: Sequence[tuple[AuditSection, SectionResult]]

    @property
    def verdict(self) -> Verdict:
        """Bad if one section is; unknown if none has anything to say."""
        verdicts = [result.verdict for _, result in self.sections]
        return "bad" if "bad" in verdicts else "good" if "good" in verdicts else "unknown"


def run_audit(
    archive: Archive,
    spark: SparkSession,
    *,
    dates: Collection[str] | None = None,
    audit_log: Path | None = None,
    sections: Sequence[AuditSection] = SECTIONS,
    on_section: Callable[[AuditSection], None] = lambda section: None,
) -> AuditReport:
    """Compute the sections for these dates, or for all there are."""
    there = sorted({file.date for files in archive.catalogue.files.values() for file in files.values() if file.date})
    chosen = there if dates is None else [date for date in there if date in dates]
    if not chosen:
        raise NotFoundError(
            "nothing is archived for these dates", where=str(archive.path), hint=f"it has: {', '.join(there) or 'none'}"
        )
    tables = AuditTables(archive, spark, dates, audit_log)
    results = []
    for section in sections:
        on_section(section)
        results.append((section, _result(section, tables)))
    return AuditReport(str(archive.path), chosen, time.time_ns(), results)


def write_table(report: AuditReport, archive: Archive) -> None:
    """The measures as rows of the table `audit`, under the last date of the report. Reports add up, by `audited`."""
    measures = [measure for _, result in report.sections for measure in result.measures]
    rows = [
        (report.audited_ns, each.section, each.subject, each.name, float(each.value), each.unit, each.verdict)
        for each in measures
    ]
    rows += [
        (report.audited_ns, section.name, "", "verdict", float(result.verdict == "good"), "", result.verdict)
        for section, result in report.sections
    ]
    staging = archive.begin()
    date = report.dates[-1]
    name = staging.new_file(f"{TABLE}/date={date}")
    target = staging.path / name
    make_directory(target.parent)
    values = zip(*rows, strict=True)
    columns = [pa.array(column, field.type) for column, field in zip(values, TABLE_SCHEMA, strict=True)]
    with open_parquet(target, TABLE_SCHEMA) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=TABLE_SCHEMA))
    sync_file(target)
    entry = FileEntry(
        table=TABLE, path=name, rows=len(rows), size=target.stat().st_size, commit_first=staging.number,
        commit_last=staging.number, date=date,
    )  # fmt: skip
    archive.commit(staging, "derive", files=[entry], schemas={TABLE: TABLE_DDL})


def _result(section: AuditSection, tables: AuditTables) -> SectionResult:
    missing = [table for table in section.needs if not tables.has([table])]
    if missing:
        return SectionResult("unknown", f"the archive has no rows of {', '.join(missing)} for these dates")
    for table in section.needs:
        tables.view(table)
    return section.compute(tables)
