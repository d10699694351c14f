"""How a client publishes and consumes assured messages: with a token of its administration server."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from penstock.assured.client.connection import Assured
from penstock.assured.core.session.places import SessionConfig
from penstock.client.context import ClientContext
from penstock.client.holding import Holding, Manager
from penstock.security.core.brokering import Brokered

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
    """Of one client."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context

    def open(self, routers: Routers, receive: tuple[str, ...], send: tuple[str, ...], **options: Any) -> HeldAssured:
        context = self._context
        places = routers.split(",") if isinstance(routers, str) else routers
        of_config = {key: options.pop(key) for key in list(options) if key in SessionConfig.__struct_fields__}
        config = SessionConfig(name=context.new_party(), routers=tuple(each.strip() for each in places), **of_config)

        def made(brokered: Brokered) -> HeldAssured:
            return HeldAssured(
                config,
                receive=receive,
                send=send,
                brokered=brokered,
                manager=context.manager,
                guard=context.guard,
                **options,
            )

        return context.open(receive, made, send=send)


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
