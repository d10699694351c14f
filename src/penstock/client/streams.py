"""Subscribe to a distribution tree and publish on it as a client, with a token of its administration server."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from penstock.base.clock import random_bytes
from penstock.base.errors import LocalProtocolError
from penstock.capture.reading import Models
from penstock.client.config import ClientConfig
from penstock.client.holding import Holding, Manager
from penstock.client.service import Protection
from penstock.net.guard import Guard
from penstock.security.brokering import Brokered
from penstock.security.client import AdminClient
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
    """Opens the tree streams of a client. `adopt` adds a stream to the client, which then renews its token."""

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
        """Return a unique name, so that revoking one stream does not affect the others."""
        return f"{self._admin.credentials.client[:48]}-{random_bytes(6).hex()}"


def _places(agent: Places) -> tuple[str, ...]:
    places = tuple(each.strip() for each in agent.split(",")) if isinstance(agent, str) else tuple(agent)
    if not all(places):
        raise LocalProtocolError("no agent is named", hint='pass one, for example agent="127.0.0.1:7422"')
    return places


class StreamWays:
    """The methods of a client for distribution trees."""

    _streams: Streams

    def stream_publisher(self, *topics: str, agent: Places, name: str = "", **options: Any) -> HeldPublisher:
        """Open a publisher on the streams of a tree; `agent` names its root and the standby. Requires grants to send on
        `topics` (default: all granted topics).

        With a fixed `name`, a restarted publisher continues its numbering. `options`: tree, on, on_infostream,
        unconfirmed_max (docs/agents.md).
        """
        return self._streams.publisher(agent, topics or (">",), name=name, **options)
