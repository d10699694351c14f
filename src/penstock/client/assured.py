"""How a client publishes and consumes assured messages: with a token of its administration server."""

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
from penstock.security.core.brokering import Brokered
from penstock.security.live.client import AdminClient

Routers: TypeAlias = str | Sequence[str]
"""host:port of the routers of a pair, in any order; as one text with commas between."""


class HeldAssured(Holding, Assured):
    """Made by Client.assured(). Any thread may use it."""

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
    """Of one client. `adopt` makes what is opened the client's own, whose token is renewed."""

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
    """The part of a client that speaks of assured messages."""

    _assured: AssuredSessions

    def assured(
        self, routers: Routers, *, receive: Sequence[str] = (), send: Sequence[str] = (">",), **options: Any
    ) -> HeldAssured:
        """Publishers, endpoints and transactions at the message routers of a pair (docs/how-to/assured.md).

        Needs grants to send on the topics of `send`, and to receive those of `receive`, as far as they are granted.
        `options`: role, silence_ms, backoff_ms and others of SessionConfig.
        """
        return self._assured.open(routers, tuple(receive), tuple(send), **options)
