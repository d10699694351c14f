"""Handles of a client at other nodes that use the token of a subscription, renewed in time: consumers of distribution
nodes, subscribers and publishers of trees.
"""

import time
from typing import Any, Protocol

from penstock.base.errors import ConnectionLostError, PenstockError, UnreachableError
from penstock.security import StreamKey
from penstock.security.core.brokering import Authentication, Brokered, BrokeredStream


class Manager(Protocol):
    """The part of the client that a handle uses."""

    def cancel(self, subscription: Any) -> None: ...

    def expire(self, subscription: Any) -> None:
        """The grants expired: fail the handle, unless newer grants have arrived meanwhile."""


class Holding:
    """The client's part of a handle; the class combined with it presents tokens, ends and fails."""

    topics: tuple[str, ...]
    is_sending = False
    """True if the grants are for sending."""

    def hold(self, brokered: Brokered, manager: Manager) -> None:
        self.id = brokered.subscription_id
        self._brokered = brokered
        self._manager = manager

    @property
    def token(self) -> str:
        return self._brokered.token

    @property
    def expires_ns(self) -> int:
        """Return the expiry of the current grants, by the wall clock."""
        return self._brokered.expires_ns

    def renewed(self, brokered: Brokered) -> None:
        """Apply the administration server's newest answer."""
        self._brokered = brokered
        try:
            self.renew(brokered.token)
        except (UnreachableError, ConnectionLostError):
            return  # the token is presented when the node is reachable again
        except PenstockError as error:
            self.fail(error)

    def moved(self, streams: list[BrokeredStream]) -> None:
        """Ignore new stream addresses, which only the node uses."""

    def authenticated(self, told: Authentication) -> None:
        """Ignore authentication keys: the messages do not come by multicast."""

    def keyed(self, feed: str, keys: list[StreamKey]) -> None:
        """Ignore stream keys: a node delivers decrypted messages."""

    def cancel(self) -> None:
        """Close the handle, here and at the administration server."""
        if not self.is_over:
            self._manager.cancel(self)
        self.close()

    def _check_expiry(self) -> None:
        if not self.is_over and time.time_ns() >= self.expires_ns:
            self._manager.expire(self)

    # Implemented by the class combined with this one

    @property
    def is_over(self) -> bool:
        raise NotImplementedError

    def renew(self, token: str) -> None:
        raise NotImplementedError

    def fail(self, error: PenstockError) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
