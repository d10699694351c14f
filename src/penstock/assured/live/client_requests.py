"""ClientRequests: handles clients' requests to a live router, and checks their rights."""

import time

from penstock.assured.core.router import events
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.live.access import REFUSALS, ClientAccess, ClientRights
from penstock.assured.live.client_links import ClientLinks
from penstock.assured.live.observation import endpoints_of, role_of
from penstock.assured.live.pair import LivePair
from penstock.assured.node_config import RouterNodeConfig
from penstock.assured.wire.control import (
    Degrade,
    EndpointInfo,
    Endpoints,
    ListEndpoints,
    Login,
    Message,
    Refused,
    RenewToken,
    RouterRequest,
    SteppedDown,
    Switch,
    Welcome,
)
from penstock.base.errors import PenstockError, RemoteProtocolError, TokenError
from penstock.runtime.core_node import CoreNode
from penstock.security.core.brokering import Revoked


class ClientRequests:
    """Handles events of ClientLinks, which use() sets. `router` runs the core, or the core of the pair around it."""

    def __init__(
        self,
        config: RouterNodeConfig,
        core: MessageRouter,
        router: CoreNode[events.Event, events.Instruction],
        access: ClientAccess,
        pair: LivePair | None,
    ) -> None:
        self._config = config
        self._core = core
        self._router = router
        self._access = access
        self._pair = pair
        self._links: ClientLinks

    def use(self, links: ClientLinks) -> None:
        self._links = links

    @property
    def place(self) -> str:
        """The address where clients connect."""
        return self._config.control.advertised or f"{self._config.control.host}:{self._links.port}"

    @property
    def other_place(self) -> str:
        return self._config.pair.clients if self._config.pair is not None else ""

    def tell(self, event: events.Event) -> None:
        """Pass an event to the core. A client that violates the protocol is refused and counted."""
        error = self._router.tell(event)
        if error is not None and (link := getattr(event, "link", 0)) and not isinstance(event, events.LinkClosed):
            self._links.refuse(link, REFUSALS.of(error))

    # Events of links

    def arrived(self, link: int, login: Login, rights: ClientRights) -> None:
        core = self._core
        if login.role == "client" and not core.is_active:
            self.step_down(link)
            return
        if login.role == "client" and login.epoch > core.epoch:  # another router has taken over
            self._links.refuse(link, Refused("stale", f"{self._config.name} is of epoch {core.epoch}"))
            return
        places = tuple(each for each in (self.place, self.other_place) if each)
        self._links.say(
            link, Welcome(self._config.name, role_of(core), core.epoch, places, self._config.message_bytes_max)
        )
        self.tell(events.LinkOpened(link, rights.subject, rights.grants, rights.is_operator, rights.may_define))

    def step_down(self, link: int) -> None:
        """Clients belong to the active router: data that is still on its way to them here is dropped."""
        self._links.dismiss(link, SteppedDown(self._core.epoch, self.other_place))

    def brought(self, link: int, data: bytes) -> None:
        self.tell(events.Data(link, data))

    def left(self, link: int) -> None:
        self.tell(events.LinkClosed(link))

    def said(self, link: int, message: Message) -> None:
        match message:
            case RenewToken(token):
                self._renew(link, token)
            case ListEndpoints(number, name):
                self._links.say(link, Endpoints(number, self._endpoints_for(link, name)))
            case Switch(number) | Degrade(number):
                if not self._access.rights_of(link).is_operator:
                    self._links.say(link, Refused("not_entitled", "this order needs an operator", number))
                elif self._pair is None:
                    self._links.say(link, Refused("not_active", "this router runs alone", number))
                else:
                    self._pair.order(link, message)
            case _ if isinstance(message, RouterRequest):
                self.tell(events.RequestReceived(link, message))
            case _:
                raise RemoteProtocolError(f"clients must not send {type(message).__name__}")

    def _endpoints_for(self, link: int, name: str) -> tuple[EndpointInfo, ...]:
        """The endpoints that the client may consume from."""
        if (client := self._core.links.get(link)) is None:
            return ()
        return tuple(each for each in endpoints_of(self._core, name) if client.may_consume(each.endpoint.name))

    # Rights of clients

    def _renew(self, link: int, token: str) -> None:
        """Refuse a token with other rights: the client must reconnect with it."""
        before = self._access.rights_of(link)
        try:
            rights = self._access.renew(link, token, time.time_ns())
            if (rights.subject, rights.grants) != (before.subject, before.grants):
                raise TokenError("the newer token has other grants", hint="log in again with it")
        except PenstockError as error:
            self._links.refuse(link, REFUSALS.of(error))

    def revoke(self, event: Revoked) -> None:
        for party in self._access.bearers(event.subscription_id):
            self._links.refuse(party.number, Refused("revoked", f"its authority was revoked: {event.reason}"[:256]))
