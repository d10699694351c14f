"""The demo plant's handle to the archiving process."""

from pathlib import Path

import msgspec

from penstock.demo.layout import Layout
from penstock.demo.reports import ArchiveReport, ArchiveResult, ArchiveTask
from penstock.node.process import STOP
from penstock.node.supervisor import Supervisor

END_SECONDS = 180.0
"""Maximum time to archive the rest, derive and audit; Spark is slow on small machines."""

ARCHIVE = "archive"
REPORT = "audit.html"


class Archiving:
    """Starts when the journals exist; `result` is available after finish()."""

    def __init__(self, supervisor: Supervisor, layout: Layout, directory: Path) -> None:
        self.archive = directory / ARCHIVE
        self.page = directory / REPORT
        self.report: ArchiveReport | None = None
        self.result: ArchiveResult | None = None
        self._supervisor = supervisor
        task = ArchiveTask(
            journals=[str(path) for path in layout.journals],
            accounts=[str(path) for path in layout.accounts],
            archive=str(self.archive),
            report=str(self.page),
            audit_log=str(layout.audit_log),
        )
        arguments = [msgspec.json.encode(task).decode()]
        self._member = supervisor.start("pipeline", "penstock.demo.pipeline:main", arguments, self._take)

    @property
    def fault(self) -> str:
        return self._member.fault

    @property
    def messages(self) -> int:
        return self.report.messages if self.report else 0

    def finish(self) -> None:
        """Archive the rest, audit everything, and end the process. The plant must be idle."""
        self._member.order(STOP)
        self._supervisor.wait(lambda: self.result is not None or bool(self.fault), END_SECONDS)
        self._supervisor.stop([self._member] if self._member.is_running else [])

    def _take(self, line: bytes) -> None:
        told = msgspec.json.decode(line, type=ArchiveReport | ArchiveResult)
        if isinstance(told, ArchiveResult):
            self.result = told
        else:
            self.report = told
