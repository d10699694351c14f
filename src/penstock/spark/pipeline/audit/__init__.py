"""The audit: what was delivered, lost, repeated, agreed upon and used, as a table and as a page that a person reads.

    report = run_audit(archive, spark, dates=["2024-01-02"])
    report.is_good; write_html(report, Path("report.html"))

A section (section.py) takes tables of the archive and answers with a verdict, measures and plots. SECTIONS is the list;
whoever has something to prove adds a section to it.
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
