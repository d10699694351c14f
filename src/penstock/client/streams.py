"""Subscribe to a distribution tree and publish on it as a client, with a token of its administration server."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from penstock.base.errors import LocalProtocolError
from penstock.client.context import ClientContext
from penstock.client.holding import Holding, Manager
from penstock.security.core.brokering import Brokered
from penstock.tree.client.publication import StreamPublisher, publisher_config
from penstock.tree.client.subscription import Since, StreamSubscription, subscriber_config

Places: TypeAlias = str | Sequence[str]
"""host:port of an agent, or of several in order of preference: the first that answers is used."""


class HeldStream(Holding, StreamSubscription):
    """A subscription to a tree, opened by Client.subscribe(agent=…). One thread or task reads; any may cancel()."""

    close = StreamSubscription.close
    renew = StreamSubscription.renew
    fail = StreamSubscription.fail
    is_over = StreamSubscription.is_over

    def __init__(self, *arguments: Any, brokered: Brokered, manager: Manager, **options: Any) -> None:
        self.hold(brokered, manager)
        StreamSubscription.__init__(self, *arguments, token=brokered.token, **options)

    def _check(self) -> None:
        self._check_expiry()
        super()._check()


class HeldPublisher(Holding, StreamPublisher):
    """A publisher on a tree, opened by Client.stream_publisher(). Thread-safe."""

    is_sending = True
    close = StreamPublisher.close
    renew = StreamPublisher.renew
    fail = StreamPublisher.fail
    is_over = StreamPublisher.is_over

    def __init__(
        self, *arguments: Any, topics: tuple[str, ...], brokered: Brokered, manager: Manager, **options: Any
    ) -> None:
        self.topics = topics
        self.hold(brokered, manager)
        StreamPublisher.__init__(self, *arguments, token=brokered.token, **options)


class Streams:
    """Opens the tree streams of a client."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context

    def subscribe(
        self, agent: Places, topics: tuple[str, ...], *, where: str | None, since: Since, **options: Any
    ) -> HeldStream:
        context, places = self._context, _places(agent)
        config, others = subscriber_config(
            places, topics, where=where, since=since, name=context.new_party(), **options
        )

        def made(brokered: Brokered) -> HeldStream:
            return HeldStream(
                config,
                context.models,
                guard=context.guard,
                losses_max=context.config.losses_max,
                brokered=brokered,
                manager=context.manager,
                **others,
            )

        return context.open(topics, made)

    def publisher(self, agent: Places, topics: tuple[str, ...], *, name: str, **options: Any) -> HeldPublisher:
        context = self._context
        config, others = publisher_config(
            _places(agent), name=name or context.new_party(), is_named=bool(name), **options
        )

        def made(brokered: Brokered) -> HeldPublisher:
            return HeldPublisher(
                config, guard=context.guard, topics=topics, brokered=brokered, manager=context.manager, **others
            )

        return context.open((), made, send=topics)


def _places(agent: Places) -> tuple[str, ...]:
    places = tuple(each.strip() for each in agent.split(",")) if isinstance(agent, str) else tuple(agent)
    if not all(places):
        raise LocalProtocolError("no agent is named", hint='pass one, for example agent="127.0.0.1:7422"')
    return places
