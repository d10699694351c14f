"""How a client subscribes to a distribution tree and publishes on it: with a token of its administration server."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from penstock.base.errors import LocalProtocolError
from penstock.client.context import ClientContext
from penstock.client.holding import Holding, Manager
from penstock.security.core.brokering import Brokered
from penstock.tree.client.publication import StreamPublisher, publisher_config
from penstock.tree.client.subscription import Since, StreamSubscription, subscriber_config

Places: TypeAlias = str | Sequence[str]
"""An agent's host:port, or several in their order: the first that answers is used."""


class HeldStream(Holding, StreamSubscription):
    """Made by Client.subscribe(agent=…). One thread or task reads; any may cancel()."""

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
    """Made by Client.stream_publisher(). Any thread may publish."""

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
    """Of one client."""

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
        raise LocalProtocolError("no agent is named", hint='agent="127.0.0.1:7422"')
    return places


class StreamWays:
    """The part of a client that speaks of trees."""

    _streams: Streams

    def stream_publisher(self, *topics: str, agent: Places, name: str = "", **options: Any) -> HeldPublisher:
        """A publisher on the streams of a tree, at its root; `agent` names the root, and its standby. Needs grants to
        send on `topics` (unless named: on all that are granted).

        With a `name` of its own, a publisher that is started again goes on in its numbering. `options`: tree, on,
        on_infostream, unconfirmed_max (docs/how-to/agents.md).
        """
        return self._streams.publisher(agent, topics or (">",), name=name, **options)
