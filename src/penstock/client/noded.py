"""Consumers of a distribution node that a client holds: with the token of a subscription at the administration server,
renewed in time."""

import time
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.base.errors import ConnectionLostError, PenstockError, UnreachableError
from penstock.engine.application import NodeMessages, Records
from penstock.engine.application.consumption import Consumption
from penstock.engine.application.sources import EventSource, RecordSource
from penstock.security import StreamKey
from penstock.security.brokering import Brokered, BrokeredStream


class NodeManager(Protocol):
    """What such a consumer needs of its client."""

    def cancel(self, subscription: "Noded") -> None: ...

    def expire(self, subscription: "Noded") -> None:
        """Its grants are over: fail it, unless newer ones have come in the meantime."""


class Noded(Consumption):
    """The client's part of it."""

    topics: tuple[str, ...]

    def hold(self, brokered: Brokered, manager: NodeManager) -> None:
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

    def keyed(self, feed: str, keys: list[StreamKey]) -> None:
        """A node gives everything as it was before it was sealed."""

    def cancel(self) -> None:
        """End it, here and at the administration server."""
        if not self._is_closed:
            self._manager.cancel(self)
            self.close()

    def _check(self) -> None:
        if not self.is_over and time.time_ns() >= self.expires_ns:
            self._manager.expire(self)
        super()._check()


class NodeSubscription(Noded, NodeMessages):
    """Made by Client.subscribe() and Client.metered(), through a node. One thread or task reads; any may cancel()."""

    def __init__(
        self, source: EventSource, topics: Sequence[str], brokered: Brokered, manager: NodeManager, **options: Any
    ) -> None:
        NodeMessages.__init__(self, source, topics, **options)
        self.hold(brokered, manager)


class NodeRecords(Noded, Records):
    """Made by Client.records(). Any thread may read."""

    def __init__(self, source: RecordSource, topics: Sequence[str], brokered: Brokered, manager: NodeManager) -> None:
        Records.__init__(self, source)
        self.topics = tuple(topics)
        self.hold(brokered, manager)
