"""`penstock pipeline audit`: check the recorded data."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from penstock.base.errors import ArchiveLockedError

MARKS = {"good": "ok ", "bad": "BAD", "unknown": " – "}


def audit(
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="The archive's directory.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The report, one HTML file.")] = Path("audit.html"),
    date: Annotated[list[str] | None, typer.Option(help="Only this date; may be repeated.")] = None,
    audit_log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Output of `penstock admin audit --json`, or a stopped server's database."),
    ] = None,
    master: Annotated[str | None, typer.Option(help="Spark master. Default: this machine.")] = None,
) -> None:
    """Audit an archive: loss, agreement of active and backup, duplicates, latency, use of entitlements.

    Writes a readable report, and adds rows to the archive's table `audit`. The exit status is 1 if a check fails.
    """
    from penstock.spark import session
    from penstock.spark.pipeline.archive.archive import Archive
    from penstock.spark.pipeline.audit import run_audit
    from penstock.spark.pipeline.audit.page import write_html
    from penstock.spark.pipeline.audit.report import write_table

    opened = Archive.open(archive)
    with Console(stderr=True, highlight=False).status("starting Spark") as status:
        spark = session(master, app="penstock-audit")
        report = run_audit(
            opened,
            spark,
            dates=date,
            audit_log=audit_log,
            on_section=lambda section: status.update(section.title),
        )
    write_html(report, out)
    for section, result in report.sections:
        typer.echo(f"{MARKS[result.verdict]}  {section.title}: {result.summary}")
    try:
        with Archive.writing(archive) as writing:
            write_table(report, writing)
    except ArchiveLockedError as error:
        typer.echo(f"the table audit was not written: {error}", err=True)
    typer.echo(f"{out} has the report")
    if report.verdict == "bad":
        raise typer.Exit(1)
