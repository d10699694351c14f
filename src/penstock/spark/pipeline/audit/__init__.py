"""The audit: delivery, loss, duplicates, agreement and entitlement use, as a table and as an HTML report.

    report = run_audit(archive, spark, dates=["2024-01-02"])
    report.is_good; write_html(report, Path("report.html"))

A section (section.py) reads tables of the archive and returns a verdict, measures and plots. SECTIONS lists the
sections; add further ones there.
"""

from penstock.spark.pipeline.audit.report import SECTIONS, AuditReport, run_audit
from penstock.spark.pipeline.audit.section import (
    AuditSection,
    AuditTables,
    Measure,
    Plot,
    SectionResult,
    TextTable,
    Verdict,
)

__all__ = [
    "SECTIONS",
    "AuditReport",
    "AuditSection",
    "AuditTables",
    "Measure",
    "Plot",
    "SectionResult",
    "TextTable",
    "Verdict",
    "run_audit",
]
