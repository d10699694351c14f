"""Publish and consume assured messages as a client, with a token of its administration server."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from penstock.assured.client.connection import Assured
from penstock.assured.core.session.places import SessionConfig
from penstock.client.context import ClientContext
from penstock.client.holding import Holding, Manager
from penstock.security.core.brokering import Brokered

Routers: TypeAlias = str | Sequence[str]
"""host:port of both routers of a pair, in any order; separated by a comma if given as one string."""


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
    """Opens the assured sessions of a client."""

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
