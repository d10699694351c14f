"""A node's accounts in a journal of its own, which the pipeline archives as it archives captures.

Every so often, and when a consumer leaves, what it was sent is written down: messages of the models `engine_intake` and
`engine_account`, in packets, as docs/protocol/capture.md says. What has not changed is not written again.
"""

from collections.abc import Iterable, Iterator

import msgspec

from penstock.base.counters import Counters
from penstock.capture.accounts import AccountBook, AccountJournal
from penstock.engine.records import ConsumerDistributionRecord
from penstock.model import Message, shipped
from penstock.plant.status import NodeKind
from penstock.runtime.accounts import AccountsConfig

INTAKE, ACCOUNT = shipped("engine_intake"), shipped("engine_account")


class Account(msgspec.Struct, frozen=True):
    """What one consumer has been sent since it was attached."""

    record: ConsumerDistributionRecord
    attachment: int
    is_closed: bool = False


class Intake(msgspec.Struct, frozen=True):
    """What the node has taken."""

    updates: int
    items: int
    losses: int
    consumers: int


class AccountRecorder:
    """One run's accounts, from start() to close(); used by one thread at a time."""

    def __init__(self, name: str, kind: NodeKind, config: AccountsConfig, counters: Counters) -> None:
        self._name = name
        self._kind = kind
        self._journal = AccountJournal(config, counters)
        self._book = AccountBook(self._journal, f"penstock.engine.{name}.{{}}", _attachment, self._messages)

    def start(self) -> None:
        """JournalError when the journal cannot be opened now: that is a mistake, later trouble is not."""
        self._journal.start()

    def record(self, intake: Intake, accounts: Iterable[Account], *, is_last: bool = False) -> None:
        """Write down what is new."""
        self._book.record(accounts, lambda now_ns: [self._intake(intake, now_ns, is_last)])

    def close(self, intake: Intake, accounts: Iterable[Account]) -> None:
        """The last accounts, which close what is open."""
        self.record(intake, [msgspec.structs.replace(each, is_closed=True) for each in accounts], is_last=True)
        self._journal.close()

    def _intake(self, intake: Intake, now_ns: int, is_last: bool) -> Message:
        return INTAKE.new(
            node=self._name,
            kind=self._kind,
            event_time=now_ns,
            started=self._journal.started_ns,
            **msgspec.structs.asdict(intake),
            state="closed" if is_last else "open",
        )

    def _messages(self, account: Account, now_ns: int) -> Iterator[Message]:
        record = account.record
        for name, of_class in record.classes.items():
            yield ACCOUNT.new(
                node=self._name,
                consumer=record.name,
                destination=record.destination[: ACCOUNT.fields_by_name["destination"].size],
                event_time=now_ns,
                started=self._journal.started_ns,
                attachment=account.attachment,
                overruns=record.overruns,
                receipts=record.receipts,
                items=record.items,
                state="closed" if account.is_closed else "open",
                class_name=name,
                **msgspec.structs.asdict(of_class),
            )


def _attachment(account: Account) -> int:
    return account.attachment
