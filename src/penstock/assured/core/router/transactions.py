"""Transactions: publishes and settlements that take effect together or not at all (REPL-10).

Until the commit, the published messages are kept here, and settled ones stay in flight, held. The commit is one record
of the log: after a crash it is complete or absent. All its messages have the same treatment: the highest of all, and
synchronous if the transaction consumes messages that the standby has too.
"""

from typing import Literal

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.assured.config import RouterConfig
from penstock.assured.core.pair.transaction_stream import TransactionStream
from penstock.assured.core.router._groups import (
    begin_group,
    confirm,
    consume,
    end_group,
    group_size,
    group_treatment,
    is_at_one,
    last_transaction,
    undo_group,
)
from penstock.assured.core.router._intake import PublishBatch, settle_numbers
from penstock.assured.core.router._records import LOG_RECORD_SIZE_MAX, TREATMENT_ASYNC, TREATMENT_SYNC
from penstock.assured.core.router._settling import Settling, hold, settle, treatment_settled
from penstock.assured.core.router._tables import Tables
from penstock.assured.core.router.events import Instruction, SendMessage
from penstock.assured.core.router.intake import Intake
from penstock.assured.core.router.links import Link, RefusedRequest
from penstock.assured.wire._layout import (
    OUTCOME_ASYNC,
    OUTCOME_BAD_TOPIC,
    OUTCOME_DEGRADED,
    OUTCOME_DISK,
    OUTCOME_FULL,
    OUTCOME_KNOWN,
    OUTCOME_LIMIT,
    OUTCOME_NO_ENDPOINT,
    OUTCOME_NOT_ENTITLED,
    OUTCOME_STORED,
    OUTCOME_SYNC,
    OUTCOME_TOO_LARGE,
    OUTCOME_TRANSACTION,
    SETTLE_RETURNED,
)
from penstock.assured.wire.control import Ended
from penstock.base.clock import NS_PER_MS
from penstock.net.core.control import TEXT_SIZE_MAX

ASKERS_MAX = 16
"""Maximum number of clients that ask for the outcome of a transaction before it is known."""

SETTLED_SPACE = 40
"""Maximum size of a settled message in a record."""

WHY = {
    OUTCOME_KNOWN: "a message of it was published before",
    OUTCOME_DISK: "the disk accepts no data",
    OUTCOME_TOO_LARGE: "a message of it is too large",
    OUTCOME_BAD_TOPIC: "a message of it has an invalid topic",
    OUTCOME_LIMIT: "the router has no room",
    OUTCOME_NOT_ENTITLED: "a message of it may not be published",
    OUTCOME_NO_ENDPOINT: "no endpoint wants a message of it",
}


class Transaction(msgspec.Struct):
    link: Link
    handle: int
    publisher: int
    number: int
    deadline_ns: int
    batches: list[PublishBatch] = []
    held: list[tuple[int, int, NDArray[numpy.uint64], NDArray[numpy.uint8]]] = []
    """(flow, endpoint, ids, settlements)"""
    runs: list[tuple[int, int]] = []
    """(first number, count) of published messages."""
    size: int = 0
    count: int = 0
    settled: int = 0
    why: str = ""
    """The reason why it cannot be committed."""


class _Ended(msgspec.Struct):
    """A transaction that waits for the disk, then possibly for the standby."""

    publisher: int
    number: int
    sequence: int
    last_id: int
    treatment: int
    is_publishing: bool
    askers: list[tuple[int, int]]
    """(link, request)"""
    is_committed: bool = True
    published: tuple[int, int] = (1, 0)
    """The range of its message ids."""
    is_at_one: bool = False
    """True if some of it may be at the other router only."""


class Transactions:
    def __init__(self, config: RouterConfig, tables: Tables, intake: Intake) -> None:
        self._config = config
        self._tables = tables
        self._intake = intake
        self.streaming: TransactionStream | None = None
        """The stream to the standby, while it is connected."""
        self._open: dict[tuple[int, int], Transaction] = {}
        """By link and number."""
        self._storing: list[_Ended] = []
        self._replicating: list[_Ended] = []

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, link: Link, handle: int, number: int, now_ns: int) -> None:
        publisher, _, last, _ = self._state(link, handle)
        if any(each.handle == handle or each.number == number for each in self._of(link)):
            raise RefusedRequest("transaction_open", f"transaction {number}, or another of this publisher, is open")
        if not last < number < 2**32:
            raise RefusedRequest("malformed", f"transaction {number} is not above {last}")
        count = sum(not each.why for each in self._open.values())
        if count >= self._config.transactions_max:
            raise RefusedRequest("limit", f"{count} transactions are open already")
        deadline_ns = now_ns + self._config.transaction_ms_max * NS_PER_MS
        self._open[link.number, number] = Transaction(link, handle, publisher, number, deadline_ns)

    def _state(self, link: Link, handle: int) -> tuple[int, int, int, int]:
        state = self._tables.publishers.state(handle, link.number)
        if state is None:
            raise RefusedRequest("unknown_publisher", f"there is no publisher {handle} on this link")
        return state

    def _of(self, link: Link) -> list[Transaction]:
        return [each for each in self._open.values() if each.link is link]

    def publish(self, link: Link, batch: PublishBatch) -> None:
        transaction = self._open.get((link.number, batch.transaction))
        if transaction is None or transaction.handle != batch.publisher or transaction.why:
            settle_numbers(self._tables, batch.publisher, batch.first_number, len(batch), OUTCOME_TRANSACTION)
            return
        transaction.runs.append((batch.first_number, len(batch)))
        transaction.size += batch.content_size
        transaction.count += len(batch)
        if (
            transaction.size > self._config.transaction_bytes_max
            or transaction.count > self._config.transaction_messages_max
        ):
            limits = f"{self._config.transaction_bytes_max:,} bytes (transaction_bytes_max)"
            limits += f" or {self._config.transaction_messages_max:,} messages (transaction_messages_max)"
            self._give_up(transaction, f"it has more than {limits}")
        else:
            transaction.batches.append(batch)
            if self.streaming is not None:
                self.streaming.published((transaction.publisher, transaction.number), batch)

    def settle(self, settling: Settling, link: Link) -> None:
        if not settling.endpoint:
            return  # the flow was closed: its messages are in the queue again
        transaction = self._open.get((link.number, settling.transaction))
        ids, whats = settling.entries(self._tables)
        if not len(ids):
            return
        if transaction is None or transaction.why:
            self._return(settling.endpoint, ids)  # the transaction is rolled back, including this
            return
        transaction.settled += len(ids)
        if transaction.settled > self._config.transaction_messages_max:
            self._give_up(transaction, "it settles too many messages")
            self._return(settling.endpoint, ids)
            return
        hold(self._tables, settling.endpoint, ids)
        # copied, because these are views of reused arrays
        transaction.held.append((settling.flow, settling.endpoint, ids.copy(), whats.copy()))

    def commit(self, link: Link, handle: int, number: int, request: int) -> list[Instruction]:
        transaction = self._open.get((link.number, number))
        if transaction is None or transaction.handle != handle:
            return self._asked_again(link, handle, number, request)
        del self._open[link.number, number]
        why = transaction.why or self._log(transaction)
        if why:
            self._roll_back(transaction)
            return [SendMessage(link.number, Ended(request, "rolled_back", why=why[:TEXT_SIZE_MAX]))]
        self._storing[-1].askers.append((link.number, request))
        if self.streaming is not None:
            self.streaming.committed((transaction.publisher, number))
        return []

    def _asked_again(self, link: Link, handle: int, number: int, request: int) -> list[Instruction]:
        """Handle a repeated commit: the client does not know the outcome."""
        publisher, _, last, treatment = self._state(link, handle)
        for each in (*self._storing, *self._replicating):
            if (each.publisher, each.number) == (publisher, number):
                if len(each.askers) >= ASKERS_MAX:
                    raise RefusedRequest("limit", f"too many requests for the outcome of transaction {number}")
                each.askers.append((link.number, request))
                return []
        is_committed = number <= last
        tables = self._tables
        if tables.replication.has_secondary and (number > last or (number == last and treatment == TREATMENT_SYNC)):
            # The standby has the outcome as soon as it has everything that this router has now; not before.
            ended = _Ended(
                publisher, number, tables.log.next_sequence - 1, tables.next_id - 1, TREATMENT_SYNC, True, []
            )
            ended.askers.append((link.number, request))
            ended.is_committed = is_committed
            if is_committed:
                ended.published, ended.is_at_one = last_transaction(tables, publisher)
            self._storing.append(ended)
            return []
        return [SendMessage(link.number, Ended(request, "committed" if is_committed else "rolled_back"))]

    def _log(self, transaction: Transaction) -> str:
        """Log the transaction as one record; return an obstacle, or an empty text."""
        tables = self._tables
        if tables.is_refusing:
            return WHY[OUTCOME_DISK]
        begin_group(tables, transaction.publisher, transaction.number)
        for batch in transaction.batches:
            outcome = self._intake.accept(transaction.link, batch)
            if outcome:
                undo_group(tables)
                return self._intake.why_full() if outcome == OUTCOME_FULL else WHY[outcome]
        if group_size(tables) + transaction.settled * SETTLED_SPACE > LOG_RECORD_SIZE_MAX:
            undo_group(tables)
            return "it is too large for the log"
        published = group_treatment(tables)
        consumed = max(
            (treatment_settled(tables, endpoint, ids) for _, endpoint, ids, _ in transaction.held), default=0
        )
        treatment = max(published, consumed, 0)
        if consumed and tables.replication.has_secondary:
            # The standby has the consumed messages: a takeover without the transaction would leave half of it.
            treatment = TREATMENT_SYNC
        if published < 0:
            tables.skip_ids(tables.next_id)  # an id of its own
        last_id = tables.next_id - 1
        for _, endpoint, ids, whats in transaction.held:
            if treatment == TREATMENT_SYNC and tables.replication.has_secondary:
                consume(tables, last_id, endpoint, ids, whats)
            else:
                settle(tables, endpoint, ids, whats)
        sequence = end_group(tables, treatment, last_id)
        ended = _Ended(transaction.publisher, transaction.number, sequence, last_id, treatment, published >= 0, [])
        ended.published = last_id - transaction.count + 1, last_id
        self._storing.append(ended)
        return ""

    def rollback(self, link: Link, number: int) -> None:
        transaction = self._open.pop((link.number, number), None)
        if transaction is None:
            raise RefusedRequest("unknown_transaction", f"transaction {number} is not open")
        self._roll_back(transaction)

    def _roll_back(self, transaction: Transaction) -> None:
        self._give_up(transaction, transaction.why or "it was rolled back")

    def _give_up(self, transaction: Transaction, why: str) -> None:
        """Make the transaction uncommittable: consumed messages become undelivered again, published ones are
        dropped."""
        transaction.why = why
        transaction.batches.clear()
        if self.streaming is not None:
            self.streaming.rolled_back((transaction.publisher, transaction.number))
        if transaction.handle in transaction.link.publishers:
            for first, count in transaction.runs:
                settle_numbers(self._tables, transaction.handle, first, count, OUTCOME_TRANSACTION)
        transaction.runs.clear()
        for _, endpoint, ids, _ in transaction.held:
            self._return(endpoint, ids)
        transaction.held.clear()

    def _return(self, endpoint: int, ids: NDArray[numpy.uint64]) -> None:
        """Return consumed messages to the undelivered state."""
        settle(self._tables, endpoint, ids, numpy.full(len(ids), SETTLE_RETURNED, numpy.uint8))

    # External ends of transactions

    def link_closed(self, link: Link) -> None:
        for transaction in self._of(link):
            del self._open[link.number, transaction.number]
            self._roll_back(transaction)

    def publisher_closed(self, link: Link, handle: int) -> None:
        for transaction in self._of(link):
            if transaction.handle == handle:
                del self._open[link.number, transaction.number]
                self._roll_back(transaction)

    def flow_closed(self, link: Link, handle: int) -> None:
        for transaction in self._of(link):
            if any(flow == handle for flow, _, _, _ in transaction.held):
                self._give_up(transaction, "a flow was closed from which the transaction had consumed")

    def next_deadline_ns(self) -> int | None:
        return min((each.deadline_ns for each in self._open.values() if not each.why), default=None)

    def tick(self, now_ns: int) -> None:
        for transaction in self._open.values():
            if now_ns >= transaction.deadline_ns and not transaction.why:
                self._give_up(transaction, "it took too long")

    # What is on the disk

    def stored(self, through: int) -> list[Instruction]:
        found: list[Instruction] = []
        while self._storing and self._storing[0].sequence <= through:
            committed = self._storing.pop(0)
            if committed.treatment == TREATMENT_SYNC:
                self._replicating.append(committed)
                continue
            is_copied = self._tables.replication.has_secondary and committed.treatment == TREATMENT_ASYNC
            outcome = OUTCOME_ASYNC if is_copied else OUTCOME_STORED
            found += _told(committed, outcome if committed.is_publishing else 0)
        return found

    def replicated(self, through_id: int, outcome: int) -> list[Instruction]:
        confirm(self._tables, through_id)
        state = self._tables.replication
        found: list[Instruction] = []
        waiting: list[_Ended] = []
        while self._replicating and self._replicating[0].last_id <= through_id:
            ended = self._replicating.pop(0)
            is_awaited = outcome == OUTCOME_SYNC and is_at_one(self._tables, *ended.published)
            if is_awaited:
                state.note_absent_met()
            if is_awaited and state.waits_for_absent:
                waiting.append(ended)
            else:
                found += _told(ended, OUTCOME_DEGRADED if is_awaited or ended.is_at_one else outcome)
        self._replicating[:0] = waiting
        return found

    @property
    def is_waiting(self) -> bool:
        """True if some wait, finally for the standby."""
        return bool(self._storing or self._replicating or self._tables.replication.consumed)

    def forget(self) -> None:
        """Drop waiting answers: clients go to the other router, and ask there."""
        self._storing.clear()
        self._replicating.clear()


def _told(ended: _Ended, outcome: int) -> list[Instruction]:
    ending: Literal["committed", "rolled_back"]
    ending, treatment = ("committed", outcome) if ended.is_committed else ("rolled_back", 0)
    return [SendMessage(link, Ended(request, ending, treatment)) for link, request in ended.askers]
