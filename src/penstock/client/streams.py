"""How a client subscribes to a distribution tree and publishes on it: with a token of its administration server."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from penstock.base.clock import random_bytes
from penstock.base.errors import LocalProtocolError
from penstock.capture.reading import Models
from penstock.client.config import ClientConfig
from penstock.client.holding import Holding, Manager
from penstock.client.service import Protection
from penstock.net.guard import Guard
from penstock.security.core.brokering import Brokered
from penstock.security.live.client import AdminClient
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
    """Of one client. `adopt` makes what is opened the client's own, whose token is renewed."""

    def __init__(
        self,
        admin: AdminClient,
        protection: Protection,
        config: ClientConfig,
        models: Models,
        manager: Manager,
        adopt: Callable[[Brokered, HeldStream | HeldPublisher], None],
    ) -> None:
        self._admin = admin
        self._guard = Guard(protection.secret, protection.tls)
        self._config = config
        self._models = models
        self._manager = manager
        self._adopt = adopt

    def subscribe(
        self, agent: Places, topics: tuple[str, ...], *, where: str | None, since: Since, **options: Any
    ) -> HeldStream:
        places = _places(agent)
        config, others = subscriber_config(places, topics, where=where, since=since, name=self._name(), **options)
        brokered = self._admin.subscribe(topics)
        try:
            made = HeldStream(
                config,
                self._models,
                guard=self._guard,
                losses_max=self._config.losses_max,
                brokered=brokered,
                manager=self._manager,
                **others,
            )
        except BaseException:
            self._admin.cancel(brokered.subscription_id)
            raise
        self._adopt(brokered, made)
        return made

    def publisher(self, agent: Places, topics: tuple[str, ...], *, name: str, **options: Any) -> HeldPublisher:
        config, others = publisher_config(_places(agent), name=name or self._name(), is_named=bool(name), **options)
        brokered = self._admin.subscribe((), send=topics)
        try:
            made = HeldPublisher(
                config, guard=self._guard, topics=topics, brokered=brokered, manager=self._manager, **others
            )
        except BaseException:
            self._admin.cancel(brokered.subscription_id)
            raise
        self._adopt(brokered, made)
        return made

    def _name(self) -> str:
        """Each is a party of its own: what is revoked of one is nothing to the others."""
        return f"{self._admin.credentials.client[:48]}-{random_bytes(6).hex()}"


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
