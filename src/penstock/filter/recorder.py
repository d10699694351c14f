"""The module's accounts in a journal of its own, which the pipeline archives as it archives captures.

Every so often what became of all packets (accounting.py) is written down: messages of the models `filter_intake` and
`filter_account`, in packets, as docs/protocol/capture.md says. What has not changed is not written again. The data path
never waits for the disk; when that fails, the module goes on, the operator is told, and what is missing
is written when the disk is well again.
"""

from collections.abc import Iterable

import msgspec

from penstock.base.counters import Cause, Counters
from penstock.base.ids import format_group
from penstock.capture.accounts import AccountBook, AccountJournal, AccountsConfig
from penstock.filter.accounting import Entry, Intake, Sent
from penstock.model import Message, shipped

INTAKE, ACCOUNT = shipped("filter_intake"), shipped("filter_account")

LOST_FIELDS = {
    Cause.GONE: "lost_gone",
    Cause.NO_ANSWER: "lost_no_answer",
    Cause.WINDOW: "lost_window",
    Cause.UNREPAIRED: "left_to_receivers",
}


class AccountRecorder:
    """One run's accounts, from start() to close(); used by one thread at a time."""

    def __init__(self, name: str, config: AccountsConfig, counters: Counters) -> None:
        self._name = name
        self._journal = AccountJournal(config, counters)
        self._book: AccountBook[Entry] = AccountBook(
            self._journal, f"penstock.filter.{name}.{{}}", lambda entry: entry, self._messages
        )

    def start(self) -> None:
        """JournalError when the journal cannot be opened now: that is a mistake, later trouble is not."""
        self._journal.start()

    def record(self, entries: Iterable[Entry]) -> None:
        """Write down what is new."""
        self._book.record(entries)

    def close(self, entries: Iterable[Entry]) -> None:
        """The last accounts, which close what is open."""
        self.record([msgspec.structs.replace(entry, is_closed=True) for entry in entries])
        self._journal.close()

    def _messages(self, entry: Entry, now_ns: int) -> list[Message]:
        return [self._intake(entry, now_ns) if isinstance(entry, Intake) else self._sent(entry, now_ns)]

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
            "started": self._journal.started_ns,
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
