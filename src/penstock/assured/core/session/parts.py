"""The publishers and flows of a session, over successive links, without I/O."""

from penstock.assured.core.session._inbox import Inbox, Settlements
from penstock.assured.core.session._publish_window import PublishWindow
from penstock.assured.wire._frames import encode_credit
from penstock.assured.wire._layout import OUTCOME_TRANSACTION
from penstock.assured.wire.control import CloseFlow, ClosePublisher, OpenFlow, OpenPublisher


class PublisherPart:
    """`id` is the publisher's own, kept over reconnects."""

    def __init__(self, publisher_id: int, *, window: int, bytes_max: int) -> None:
        self.id = publisher_id
        self.window = PublishWindow(window, bytes_max)
        self.handle = 0
        """On the current link; 0: not open there."""

        self.has_begun = False
        """True if a router has reported where its numbers continue."""

        self.is_closed = False
        """Closed by the application."""

        self.transaction = 0
        """The open transaction; 0: none."""

        self.transaction_last = 0
        """The highest transaction number used."""

    def open(self, handle: int, highest: int, committed: int) -> None:
        self.handle = handle
        if not self.has_begun:
            self.has_begun = True
            self.transaction_last = committed
            self.window.begin_at(highest + 1)
        self.window.rewind()

    def opening(self, number: int) -> OpenPublisher:
        return OpenPublisher(number, self.id)

    def closing(self, number: int, *, is_unread: bool) -> ClosePublisher:
        return ClosePublisher(number, self.handle)

    def end_transaction(self, treatment: int) -> None:
        """The transaction was committed with this treatment of its messages; 0: rolled back."""
        self.window.end_transaction(self.transaction, treatment or OUTCOME_TRANSACTION)
        self.transaction = 0

    def lose(self) -> None:
        self.handle = 0

    @property
    def unacknowledged(self) -> int:
        return self.window.next_number - self.window.unresolved

    @property
    def is_plain(self) -> bool:
        """True if it is open, without a transaction."""
        return self.handle != 0 and not self.transaction

    @property
    def is_idle(self) -> bool:
        """True if it is open, and waits for nothing."""
        return self.is_plain and not self.unacknowledged

    def frames(self) -> bytes:
        return self.window.take(self.handle) if self.handle and self.window.is_unsent else b""


class FlowPart:
    """At most `prefetch` unsettled messages are with the application."""

    def __init__(self, endpoint: str, *, prefetch: int) -> None:
        self.endpoint = endpoint
        self.prefetch = prefetch
        self.inbox = Inbox()
        self.settlements = Settlements()
        self.handle = 0
        self.is_active = False
        """True if it gets messages: at an exclusive endpoint only one flow does."""

        self._opened = 0
        self._credit = 0

    is_idle = is_closed = False
    """Messages may arrive at any time."""

    unacknowledged = 0

    def open(self, handle: int, *, is_active: bool) -> None:
        self.handle = handle
        self.is_active = is_active
        self._opened += 1
        self.inbox.reopen(self._opened)
        self.settlements.reopen(self._opened)
        self._credit = self.prefetch

    def opening(self, number: int) -> OpenFlow:
        return OpenFlow(number, self.endpoint, self.prefetch)

    def closing(self, number: int, *, is_unread: bool) -> CloseFlow:
        """Return the close request. `is_unread`: no received message was read."""
        read = self.inbox.end()
        return CloseFlow(number, self.handle, 0 if is_unread else read)

    def lose(self) -> None:
        self.handle = 0
        self.is_active = False

    def frames(self) -> bytes:
        """Return frames with settlements and the resulting credit: in portions, unless the router has no credit
        left."""
        if not self.handle:
            return b""
        data = self.settlements.take(self.handle)
        total = self.settlements.settled + self.prefetch
        portion = 1 if self.inbox.came >= self._credit else max(1, self.prefetch // 2)
        if total - self._credit >= portion:
            self._credit = total
            data += encode_credit(self.handle, total)
        return data
