"""DeliveryRecord: the losses and session events of a subscription."""

from collections import deque
from typing import Generic, TypeVar

from penstock.middleware.core.events import SessionEvent

L = TypeVar("L")


class DeliveryRecord(Generic[L]):
    """The newest loss receipts (L) and session events, at most `size_max` of each. One thread adds, any may read."""

    def __init__(self, size_max: int) -> None:
        self.loss_count = 0
        """Total number of receipts; `losses` has the newest ones."""
        self._losses: deque[L] = deque(maxlen=size_max)
        self._sessions: deque[SessionEvent] = deque(maxlen=size_max)

    @property
    def losses(self) -> list[L]:
        """The newest receipts, oldest first."""
        return list(self._losses)

    @property
    def sessions(self) -> list[SessionEvent]:
        """The newest session events, oldest first."""
        return list(self._sessions)

    def add_loss(self, receipt: L) -> None:
        self._losses.append(receipt)
        self.loss_count += 1

    def add_session(self, event: SessionEvent) -> None:
        self._sessions.append(event)
