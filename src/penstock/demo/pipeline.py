"""A process that archives what the adapters published, while they publish it, and audits it at the end."""

import sys
from pathlib import Path

import msgspec
import pyarrow.dataset

from penstock.base.errors import PenstockError
from penstock.base.log import configure
from penstock.demo.reports import ArchiveReport, ArchiveResult, ArchiveTask, BarLine
from penstock.node.process import Supervised
from penstock.spark import session
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.archive.commits import Account
from penstock.spark.pipeline.audit import AuditReport, run_audit
from penstock.spark.pipeline.audit.page import write_html
from penstock.spark.pipeline.derive import DERIVATIONS
from penstock.spark.pipeline.runner import RunReport, balance, cores_of, follow, run
from penstock.spark.pipeline.sources.capture import STEP_RECORDS, JournalSource

BARS_SHOWN = 5
ACCOUNT_TABLES = (
    *("filter_intake", "filter_account", "engine_intake", "engine_account"),
    *("agent_run", "agent_intake", "agent_account"),
    *("router_run", "router_account"),
)
"""What nodes tell of themselves, which is not market data."""

BAR_TABLE = "bar_time"


class _Progress:
    """Tells the demo how far the archive is."""

    def __init__(self, supervised: Supervised) -> None:
        self._supervised = supervised
        self._messages = 0

    def begin(self, slices: int) -> None:
        """How many slices a step has does not matter to the demo."""

    def advance(self, slices: int, account: Account) -> None:
        self._messages = sum(rows for table, rows in account.rows.items() if table not in ACCOUNT_TABLES)
        self._supervised.tell(ArchiveReport(self._messages))

    def derive(self, name: str) -> None:
        self._supervised.tell(ArchiveReport(self._messages, name))


def main() -> None:
    """What the process runs; its task is its only argument."""
    configure(level="ERROR")
    task = msgspec.json.decode(sys.argv[1], type=ArchiveTask)
    supervised = Supervised()
    try:
        spark = session("local[2]", app="penstock demo")
        try:
            with Archive.writing(Path(task.archive)) as archive:
                supervised.tell(ArchiveReport(0))
                progress = _Progress(supervised)
                cores = cores_of(spark)
                following = [JournalSource(JournalPlace(each), cores, STEP_RECORDS) for each in task.journals]
                report = follow(spark, archive, following, DERIVATIONS, progress, is_ended=supervised.stop.is_set)
                rest = [JournalSource(JournalPlace(each), cores) for each in (*task.journals, *task.accounts)]
                last = run(spark, archive, rest, DERIVATIONS, progress, cores=cores, is_closing=True)
                audit = run_audit(archive, spark, audit_log=Path(task.audit_log))
                write_html(audit, Path(task.report))
                supervised.tell(_result(archive, audit, report, last))
        finally:
            spark.stop()
    except PenstockError as error:
        sys.stderr.write(f"error [{error.code}]: {error}\n")
        sys.exit(1)


def _result(archive: Archive, audit: AuditReport, followed: RunReport, last: RunReport) -> ArchiveResult:
    account = Account()
    account.add(followed.account)
    account.add(last.account)
    return ArchiveResult(
        messages=sum(rows for table, rows in account.rows.items() if table not in ACCOUNT_TABLES),
        balance=balance(account),
        delays_s=followed.delays_s,
        tables={info.name: info.rows for info in archive.tables()},
        bars=_bars(archive),
        verdict=audit.verdict,
        findings=[f"{section.title}: {result.summary}" for section, result in audit.sections],
    )


def _bars(archive: Archive) -> list[BarLine]:
    """The bars with the most volume, as anybody reads them: with plain Parquet."""
    if not archive.catalogue.files.get(BAR_TABLE):
        return []
    columns = ["symbol", "event_time", "open", "high", "low", "close", "volume", "vwap", "trade_count"]
    table = pyarrow.dataset.dataset(archive.paths(BAR_TABLE)).to_table(columns=columns)
    rows = table.sort_by([("volume", "descending"), ("symbol", "ascending")])[:BARS_SHOWN].to_pylist()
    return [
        BarLine(
            symbol=row["symbol"],
            start_ns=row["event_time"],
            prices=[
                f"{row[name]:.2f}" if row[name] is not None else "-"
                for name in ("open", "high", "low", "close", "vwap")
            ],
            volume=row["volume"],
            trades=row["trade_count"],
        )
        for row in rows
    ]
