"""The futures of those who wait for a record without a thread of their own."""

import heapq
from concurrent.futures import Future

from penstock.base.errors import JournalError

Outcome = tuple["Future[int]", int | JournalError]


class Promises:
    """Futures by sequence number; used with the writer's lock held."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Future[int]]] = []
        self._count = 0
        self._due: list[Outcome] = []

    def __len__(self) -> int:
        """How many are to be kept now."""
        return len(self._due)

    def make(self, sequence: int) -> "Future[int]":
        future: Future[int] = Future()
        self._count += 1
        heapq.heappush(self._waiting, (sequence, self._count, future))
        return future

    def find_due(self, durable: int, error: JournalError | None) -> None:
        """Those of records that are on the disk; all of them, if there is an error."""
        while self._waiting and (error is not None or self._waiting[0][0] <= durable):
            sequence, _, future = heapq.heappop(self._waiting)
            self._due.append((future, durable if sequence <= durable or error is None else error))

    def take_due(self) -> list[Outcome]:
        due, self._due = self._due, []
        return due


def keep(due: list[Outcome]) -> None:
    """Without the lock, because the futures' callbacks may append."""
    for future, outcome in due:
        if not future.set_running_or_notify_cancel():
            continue
        if isinstance(outcome, JournalError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
