"""Publish and consume assured messages as a client, with a token of its administration server."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from penstock.assured.client.connection import Assured
from penstock.assured.core.session.places import SessionConfig
from penstock.base.clock import random_bytes
from penstock.capture.reading import Models
from penstock.client.config import ClientConfig
from penstock.client.holding import Holding, Manager
from penstock.client.service import Protection
from penstock.net.guard import Guard
from penstock.security.brokering import Brokered
from penstock.security.client import AdminClient

Routers: TypeAlias = str | Sequence[str]
"""host:port of both routers of a pair, in any order; a text separates them by a comma."""


class HeldAssured(Holding, Assured):
    """An assured session, opened by Client.assured(). Thread-safe."""

    close = Assured.close
    renew = Assured.renew
    fail = Assured.fail
    is_over = Assured.is_over

    def __init__(
        self,
        config: SessionConfig,
        *,
        receive: tuple[str, ...],
        send: tuple[str, ...],
        brokered: Brokered,
        manager: Manager,
        **options: Any,
    ) -> None:
        self.topics = receive
        self.send = send
        self.hold(brokered, manager)
        Assured.__init__(self, config, token=brokered.token, **options)


class AssuredSessions:
    """Opens the assured sessions of a client. `adopt` adds a session to the client, which then renews its token."""

    def __init__(
        self,
        admin: AdminClient,
        protection: Protection,
        config: ClientConfig,
        models: Models,
        manager: Manager,
        adopt: Callable[[Brokered, HeldAssured], None],
    ) -> None:
        self._admin = admin
        self._guard = Guard(protection.secret, protection.tls)
        self._manager = manager
        self._adopt = adopt

    def open(self, routers: Routers, receive: tuple[str, ...], send: tuple[str, ...], **options: Any) -> HeldAssured:
        places = routers.split(",") if isinstance(routers, str) else routers
        name = f"{self._admin.credentials.client[:48]}-{random_bytes(6).hex()}"
        of_config = {key: options.pop(key) for key in list(options) if key in SessionConfig.__struct_fields__}
        config = SessionConfig(name=name, routers=tuple(each.strip() for each in places), **of_config)
        brokered = self._admin.subscribe(receive, send=send)
        try:
            made = HeldAssured(
                config,
                receive=receive,
                send=send,
                brokered=brokered,
                manager=self._manager,
                guard=self._guard,
                **options,
            )
        except BaseException:
            self._admin.cancel(brokered.subscription_id)
            raise
        self._adopt(brokered, made)
        return made


class AssuredWays:
    """The methods of a client for assured messages."""

    _assured: AssuredSessions

    def assured(
        self, routers: Routers, *, receive: Sequence[str] = (), send: Sequence[str] = (">",), **options: Any
    ) -> HeldAssured:
        """Open publishers, endpoints and transactions at a pair of message routers (docs/assured.md).

        Requires grants to send on the topics of `send` and to receive those of `receive`; topics without a grant are
        left out. `options`: role, silence_ms, backoff_ms and others of SessionConfig.
        """
        return self._assured.open(routers, tuple(receive), tuple(send), **options)
