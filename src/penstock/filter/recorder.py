"""The module's accounts in a journal of its own, which the pipeline archives as it archives captures.

Every so often what became of all packets (accounting.py) is written down: messages of the models `filter_intake` and
`filter_account`, in packets, as docs/protocol/capture.md says. What has not changed is not written again. The data path
never waits for the disk; when that fails, the module goes on, the operator is told, and what is missing
is written when the disk is well again.
"""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from penstock.base.clock import SystemRandomness
from penstock.base.counters import Cause, Counters
from penstock.base.errors import JournalError
from penstock.base.ids import format_group
from penstock.base.log import logger
from penstock.filter.accounting import Entry, Intake, Sent
from penstock.filter.module_config import AccountsConfig
from penstock.journal import JournalWriter
from penstock.model import Message, shipped
from penstock.wire import Packer

INTAKE, ACCOUNT = shipped("filter_intake"), shipped("filter_account")
TOPIC = "penstock.filter.{}.{}"
UNWRITTEN_MAX = 65_536

LOST_FIELDS = {
    Cause.GONE: "lost_gone",
    Cause.NO_ANSWER: "lost_no_answer",
    Cause.WINDOW: "lost_window",
    Cause.UNREPAIRED: "left_to_receivers",
}

log = logger("filter.recorder")


class AccountRecorder:
    """One run's accounts, from start() to close(); used by one thread at a time."""

    def __init__(self, name: str, config: AccountsConfig, counters: Counters) -> None:
        self._name = name
        self._config = config
        self._counters = counters
        self._started_ns = time.time_ns()
        self._packer = Packer(1 + SystemRandomness().below(2**64 - 1), group=0, epoch=1)
        self._journal: JournalWriter | None = None
        self._written: set[Entry] = set()
        self._unwritten: list[Entry] = []  # last accounts, which nobody gives again
        self._is_failing = False

    def start(self) -> None:
        """JournalError when the journal cannot be opened now: that is a mistake, later trouble is not."""
        self._journal = JournalWriter.open(Path(self._config.path), self._config.journal, counters=self._counters)

    def record(self, entries: Iterable[Entry]) -> None:
        """Write down what is new."""
        now_ns = time.time_ns()
        current = {*entries, *self._unwritten}
        self._unwritten = []
        data = [each for entry in current - self._written for each in self._packets(entry, now_ns)]
        if (last := self._packer.flush()) is not None:
            data.append(last)
        if not data:
            return
        try:
            if self._journal is None:
                self.start()
            assert self._journal is not None
            for each in data:
                self._journal.append(each, now_ns)
        except JournalError as error:
            self._fail(error, len(data))
            self._unwritten = [entry for entry in current if entry.is_closed][:UNWRITTEN_MAX]
            return
        self._written = {entry for entry in current if not entry.is_closed}
        self._is_failing = False

    def close(self, entries: Iterable[Entry]) -> None:
        """The last accounts, which close what is open."""
        self.record([msgspec.structs.replace(entry, is_closed=True) for entry in entries])
        if self._journal is not None:
            try:
                self._journal.close()
            except JournalError as error:
                log.error("journal_not_closed", path=self._config.path, error=str(error))

    def _packets(self, entry: Entry, now_ns: int) -> Iterator[bytes]:
        message = self._intake(entry, now_ns) if isinstance(entry, Intake) else self._sent(entry, now_ns)
        model = message.model
        yield from self._packer.add(
            TOPIC.format(self._name, model.name),
            bytes(message),
            model_id=model.id,
            model_version=model.version,
        )

    def _intake(self, entry: Intake, now_ns: int) -> Message:
        lost = dict.fromkeys([*LOST_FIELDS.values(), "lost_otherwise"], 0)
        for cause, count in entry.lost:
            lost[LOST_FIELDS.get(cause, "lost_otherwise")] += count
        return INTAKE.new(
            **self._common(entry, now_ns),
            **lost,
            repaired=entry.repaired,
            unwanted=entry.unwanted,
            messages=entry.messages,
        )

    def _sent(self, entry: Sent, now_ns: int) -> Message:
        names = " ".join(entry.applications).encode()[: ACCOUNT.fields_by_name["application"].size]
        return ACCOUNT.new(
            **self._common(entry, now_ns),
            application=names.decode(errors="ignore"),
            delivery=entry.delivery,
            lost=entry.lost,
            late=entry.late,
            offered=entry.offered,
            passed=entry.messages,
            repairs=entry.repairs,
        )

    def _common(self, entry: Entry, now_ns: int) -> dict[str, object]:
        return {
            "filter": self._name,
            "event_time": now_ns,
            "started": self._started_ns,
            "publisher_id": entry.stream.publisher_id,
            "group_address": format_group(entry.stream.group),
            "epoch": entry.epoch,
            "first_packet": entry.first_packet,
            "next_packet": entry.next_packet,
            "packets": entry.packets,
            "left_out": entry.left_out,
            "nacks": entry.nacks,
            "state": "closed" if entry.is_closed else "open",
        }

    def _fail(self, error: JournalError, packets: int) -> None:
        self._counters.add("packets_unrecorded", packets, cause=error.code)
        if not self._is_failing:
            log.error("accounts_not_recorded", path=self._config.path, code=error.code, error=str(error))
        self._is_failing = True
