"""What a client holds at somebody else's with the token of a subscription at the administration server, renewed in
time: consumers of distribution nodes, subscribers and publishers of trees."""

import time
from typing import Any, Protocol

from penstock.base.errors import ConnectionLostError, PenstockError, UnreachableError
from penstock.security import StreamKey
from penstock.security.core.brokering import Authentication, Brokered, BrokeredStream


class Manager(Protocol):
    """What such a holding needs of its client."""

    def cancel(self, subscription: Any) -> None: ...

    def expire(self, subscription: Any) -> None:
        """Its grants are over: fail it, unless newer ones have come in the meantime."""


class Holding:
    """The client's part of it; the class beside it shows tokens, ends and fails."""

    topics: tuple[str, ...]
    is_sending = False
    """Whether its grants are to send."""

    def hold(self, brokered: Brokered, manager: Manager) -> None:
        self.id = brokered.subscription_id
        self._brokered = brokered
        self._manager = manager

    @property
    def token(self) -> str:
        return self._brokered.token

    @property
    def expires_ns(self) -> int:
        """Until when the grants are good that are held now, by the wall clock."""
        return self._brokered.expires_ns

    def renewed(self, brokered: Brokered) -> None:
        """The administration server's newest answer."""
        self._brokered = brokered
        try:
            self.renew(brokered.token)
        except (UnreachableError, ConnectionLostError):
            return  # it is shown when the node is back
        except PenstockError as error:
            self.fail(error)

    def moved(self, streams: list[BrokeredStream]) -> None:
        """Where streams flow is the node's business."""

    def authenticated(self, told: Authentication) -> None:
        """Its messages do not come by multicast."""

    def keyed(self, feed: str, keys: list[StreamKey]) -> None:
        """A node gives everything as it was before it was sealed."""

    def cancel(self) -> None:
        """End it, here and at the administration server."""
        if not self.is_over:
            self._manager.cancel(self)
        self.close()

    def _check_expiry(self) -> None:
        if not self.is_over and time.time_ns() >= self.expires_ns:
            self._manager.expire(self)

    # Of the class beside it

    @property
    def is_over(self) -> bool:
        raise NotImplementedError

    def renew(self, token: str) -> None:
        raise NotImplementedError

    def fail(self, error: PenstockError) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
