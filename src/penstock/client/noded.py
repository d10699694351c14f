"""Consumers of a distribution node that a client holds."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from penstock.client.holding import Holding, Manager
from penstock.engine.client import NodeMessages, Records
from penstock.engine.client.handle import ConsumerHandle
from penstock.engine.client.sources import EventSource, RecordSource
from penstock.security.core.brokering import Brokered

NodeManager: TypeAlias = Manager


class Noded(ConsumerHandle, Holding):
    """The client's part of it."""

    def cancel(self) -> None:
        """End it, here and at the administration server."""
        if not self._is_closed:
            self._manager.cancel(self)
            self.close()

    def _check(self) -> None:
        self._check_expiry()
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
