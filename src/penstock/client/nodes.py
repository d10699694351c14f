"""Consume from a distribution node as a client, with a token of its administration server."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.base.errors import FilterExpressionError
from penstock.client.context import ClientContext
from penstock.client.holding import Holding, Manager
from penstock.engine.client import NodeMessages, Records
from penstock.engine.client.connect import consumer_request, event_source, record_source
from penstock.engine.client.consumer import ConsumerRequest
from penstock.engine.client.handle import ConsumerHandle
from penstock.engine.client.sources import EventSource, RecordSource
from penstock.engine.control import ClassWish
from penstock.model import MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.net.guard import Guard
from penstock.security.core.brokering import Brokered, BrokeredStream
from penstock.topics import Predicate


class NodeHandle(ConsumerHandle, Holding):
    """A consumer at a node, with the client's token handling."""

    def cancel(self) -> None:
        """Close the consumer, here and at the administration server."""
        if not self._is_closed:
            self._manager.cancel(self)
            self.close()

    def _check(self) -> None:
        self._check_expiry()
        super()._check()


class NodeSubscription(NodeHandle, NodeMessages):
    """Messages through a node, opened by Client.subscribe() and Client.metered(). One thread or task reads; any may
    cancel().
    """

    def __init__(
        self, source: EventSource, topics: Sequence[str], brokered: Brokered, manager: Manager, **options: Any
    ) -> None:
        NodeMessages.__init__(self, source, topics, **options)
        self.hold(brokered, manager)


class NodeRecords(NodeHandle, Records):
    """Records of a node, opened by Client.records(). Any thread may read."""

    def __init__(self, source: RecordSource, topics: Sequence[str], brokered: Brokered, manager: Manager) -> None:
        Records.__init__(self, source)
        self.topics = tuple(topics)
        self.hold(brokered, manager)


T = TypeVar("T", NodeSubscription, NodeRecords)


class NodeConsumers:
    """Opens the consumers of a client."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context

    def messages(
        self,
        topics: tuple[str, ...],
        cls: ClassWish,
        *,
        node: str | None,
        offload: bool | None,
        convert: bool,
        **options: Any,
    ) -> NodeSubscription:
        def opened(request: ConsumerRequest, brokered: Brokered) -> NodeSubscription:
            source = event_source(request, **self._way(request, offload))
            losses_max = self._context.config.losses_max
            return NodeSubscription(
                source, topics, brokered, self._context.manager, is_converting=convert, losses_max=losses_max
            )

        return self._opened(self._request(topics, node, cls=cls, is_converting=convert, **options), opened)

    def records(self, topics: tuple[str, ...], *, node: str | None, offload: bool | None, convert: bool) -> NodeRecords:
        def opened(request: ConsumerRequest, brokered: Brokered) -> NodeRecords:
            source = record_source(request, **self._way(request, offload))
            return NodeRecords(source, topics, brokered, self._context.manager)

        return self._opened(self._request(topics, node, cls="adaptive", is_converting=convert), opened)

    def _request(self, topics: tuple[str, ...], node: str | None, **options: Any) -> ConsumerRequest:
        config = self._context.config
        return consumer_request(
            node or config.node,
            topics,
            name=self._context.admin.credentials.client,
            wait=config.node_waits,
            timeout_s=config.node_wait_s,
            **options,
        )

    def _opened(self, request: ConsumerRequest, opened: Callable[[ConsumerRequest, Brokered], T]) -> T:
        def made(brokered: Brokered) -> T:
            if request.where:
                self._check_condition(request.where, brokered)
            return opened(request.with_token(brokered.token), brokered)

        return self._context.open(request.topics, made)

    def _check_condition(self, where: str, brokered: Brokered) -> None:
        """Refuse a condition that fits neither the feeds' models nor those of derived views."""
        try:
            self._context.models.check_condition(where, kinds_of(brokered.streams))
        except FilterExpressionError:
            if not any(_can_meet(shipped(name), where) for name in shipped_names()):
                raise

    def _way(self, request: ConsumerRequest, offload: bool | None) -> dict[str, Any]:
        """Return the arguments for creating the consumer. TLS is only for other hosts."""
        guard = self._context.guard
        return {
            "offload": self._context.config.offload if offload is None else offload,
            "models": self._context.models.get,
            "guard": Guard(guard.secret) if request.transport == "local" else guard,
        }


def kinds_of(streams: Sequence[BrokeredStream]) -> list[tuple[int, int]]:
    """Return the models of streams, as ids and versions."""
    return [(each.id, each.version) for stream in streams for each in stream.models]


def _can_meet(model: MessageModel, where: str) -> bool:
    try:
        Predicate.compile(where, model)
    except FilterExpressionError:
        return False
    return True
