"""Who may be served, and with what: the rules of the control connection, without I/O.

An application is known from register() to leave(). What it asks for becomes events of the core; the driver has them
carried out and tells the answers. A refusal is an error; refusal_of() says it in the protocol's words.
"""

import ipaddress
from collections.abc import Callable, Sequence

from penstock.base.errors import (
    ConfigurationError,
    FilterExpressionError,
    HandoverError,
    LimitError,
    LocalProtocolError,
    ModelError,
    NotEntitledError,
    PenstockError,
    RevokedError,
    SharedMemoryError,
    TokenError,
    TokenExpiredError,
    TopicError,
)
from penstock.filter import control
from penstock.filter.control import RefusalCode
from penstock.filter.entitled import EntitledInterests, Plan, entitlement_text
from penstock.filter.events import Attach, Interests, Want
from penstock.filter.module_config import FilterModuleConfig
from penstock.model import MessageModel
from penstock.net.stream import is_loopback
from penstock.net.udp import Channel
from penstock.security import Token

REASON_SIZE_MAX = 256
PORTS_MAX = 65_536

Verify = Callable[[str, int], Token]
"""Checks a token's text at a time of the wall clock; a PenstockError says why it is not good."""

_CODES: tuple[tuple[type[PenstockError], RefusalCode], ...] = (
    (TokenExpiredError, RefusalCode.EXPIRED),
    (RevokedError, RefusalCode.REVOKED),
    (NotEntitledError, RefusalCode.ENTITLEMENT),
    (TokenError, RefusalCode.TOKEN),
    (TopicError, RefusalCode.INTEREST),
    (FilterExpressionError, RefusalCode.CONDITION),
    (ModelError, RefusalCode.MODEL),
    (LimitError, RefusalCode.LIMIT),
    (ConfigurationError, RefusalCode.CHANNEL),
    (HandoverError, RefusalCode.RING),
    (SharedMemoryError, RefusalCode.RING),
)


class RefusalError(PenstockError):
    """What an application asked for is against the rules, or cannot be done; `refusal` says why. With `is_final` it
    cannot be served any longer."""

    def __init__(self, refusal: RefusalCode, what: str, *, hint: str = "", is_final: bool = False) -> None:
        super().__init__(what, hint=hint)
        self.refusal = refusal
        self.is_final = is_final


def refusal_of(error: PenstockError, number: int = 0) -> control.Refused:
    if isinstance(error, RefusalError):
        code = error.refusal
    else:
        code = next((code for kind, code in _CODES if isinstance(error, kind)), RefusalCode.PROTOCOL)
    return control.Refused(code, str(error)[:REASON_SIZE_MAX], number)


class Registrant:
    """An application that is served."""

    def __init__(self, application_id: int, message: control.Register, host: str, token: Token | None) -> None:
        self.application_id = application_id
        self.name = message.application
        self.delivery = message.delivery
        self.address = (host, message.port)
        self.token = token
        self.entitled = None if token is None else EntitledInterests(token.grants)

    def attach(self) -> Attach:
        text = "" if self.token is None else entitlement_text(self.token.grants)
        return Attach(self.application_id, self.address, self.delivery, self.address[0], text, self.name)


class Desk:
    """`verify` checks tokens; without it there are none, and everybody who can connect may have everything."""

    def __init__(self, config: FilterModuleConfig, verify: Verify | None, ports: Sequence[Channel]) -> None:
        self.registrants: dict[int, Registrant] = {}
        self._config = config
        self._verify = verify
        self._networks = config.networks()
        self._ports: dict[int, int] = {channel.group_id: channel.port for channel in ports}
        self._own_groups = set(self._ports)
        self._joined: set[int] = set()
        self._models: set[tuple[int, int]] = set()

    # Applications

    def register(
        self, node: str, peer_host: str, message: control.Register, draw: Callable[[], int], now_ns: int
    ) -> Registrant:
        """`node` and `peer_host` are the connection's; `draw` gives random ids."""
        if message.application != node and node not in self._config.controllers:
            raise RefusalError(
                RefusalCode.CONTROLLER,
                f"{node} may not speak for {message.application}",
                hint="the filter's configuration has the controllers",
            )
        host = self._host(peer_host, message)
        if any(each.name == message.application for each in self.registrants.values()):
            raise RefusalError(RefusalCode.TAKEN, f"an application {message.application} is there already")
        if message.application_id in self.registrants:
            raise RefusalError(RefusalCode.TAKEN, f"another application has the id {message.application_id}")
        if any(each.address == (host, message.port) for each in self.registrants.values()):
            raise RefusalError(RefusalCode.TAKEN, f"another application listens at {host}:{message.port}")
        if len(self.registrants) >= self._config.applications_max:
            raise LimitError(f"{len(self.registrants)} applications are served already")
        token = self._token(message.token, now_ns)
        application_id = message.application_id
        while not application_id or application_id in self.registrants:
            application_id = draw()
        registrant = Registrant(application_id, message, host, token)
        self.registrants[application_id] = registrant
        return registrant

    def leave(self, registrant: Registrant) -> None:
        self.registrants.pop(registrant.application_id, None)

    def _host(self, peer_host: str, message: control.Register) -> str:
        """The application's address, if it may be served there."""
        host = message.host or peer_host
        try:
            address = ipaddress.IPv4Address(host)
        except ValueError:
            raise RefusalError(RefusalCode.HOST, f"{host!r} is no IPv4 address") from None
        is_local = is_loopback(peer_host) or peer_host == self._config.interface
        is_own = host == peer_host or (is_local and (is_loopback(host) or host == self._config.interface))
        if not is_own and not any(address in network for network in self._networks):
            raise RefusalError(
                RefusalCode.HOST, f"{host} is not served here", hint="the filter's configuration has the hosts"
            )
        if message.delivery == "ring" and not is_local:
            raise RefusalError(RefusalCode.DELIVERY, "a ring is for applications on the filter's own host")
        return host

    # What they want

    def want(self, registrant: Registrant, message: control.Want) -> tuple[Want, Plan | None]:
        """The core's event; the plan is to be given to committed() when it was carried out."""
        remove = [Interests(each.topics, each.where, each.content) for each in message.remove]
        add = [self._interests(each) for each in message.add]
        if registrant.entitled is None:
            return Want(registrant.application_id, add, remove), None
        plan = registrant.entitled.plan(add, remove)
        return Want(registrant.application_id, plan.add, plan.remove), plan

    def withdrawn(self, want: Want) -> None:
        """The core has refused it."""
        for group in {group for each in want.add for group in each.groups} - self._joined:
            self.left(group)

    def committed(self, registrant: Registrant, plan: Plan | None) -> None:
        if plan is not None and registrant.entitled is not None:
            registrant.entitled.commit(plan)

    def _interests(self, each: control.Interests) -> Interests:
        if each.where and each.content:
            raise RefusalError(RefusalCode.CONDITION, "a condition is on fields or on a pattern, not on both")
        channels = [Channel.parse(text, interface=self._config.interface) for text in each.channels]
        for channel in channels:
            port = self._ports.setdefault(channel.group_id, channel.port)
            if port != channel.port:
                raise RefusalError(RefusalCode.CHANNEL, f"{channel.group} is listened to with port {port}")
        if len(self._ports) > PORTS_MAX:
            raise LimitError(f"more than {PORTS_MAX} channels were named")
        return Interests(each.topics, each.where, each.content, tuple(channel.group_id for channel in channels))

    def models(self, message: control.Models) -> list[MessageModel]:
        found = []
        for number, text in enumerate(message.documents):
            try:
                model = MessageModel.parse(text, where=f"documents[{number}]")
            except PenstockError as error:
                raise RefusalError(RefusalCode.MODEL, str(error)) from None
            self._models.add((model.id, model.version))
            if len(self._models) > self._config.models_max:
                raise LimitError(f"more than {self._config.models_max} models were named")
            found.append(model)
        return found

    # Where it flows

    def port_of(self, group: int) -> int | None:
        return self._ports.get(group)

    def use_map(self, channels: Sequence[Channel]) -> None:
        """A new map's channels; those of the one before are known until they are left()."""
        self._own_groups = {channel.group_id for channel in channels}
        self._ports |= {channel.group_id: channel.port for channel in channels}

    def joined(self, group: int) -> None:
        self._joined.add(group)

    def left(self, group: int) -> None:
        """Nobody listens to the group any more."""
        self._joined.discard(group)
        if group not in self._own_groups:
            self._ports.pop(group, None)

    # Tokens

    def renew(self, registrant: Registrant, text: str, now_ns: int) -> tuple[Token, EntitledInterests, Plan] | None:
        """What a new token means: for renewed(), once the plan was carried out. None: nothing."""
        token = self._token(text, now_ns)
        if token is None or registrant.token is None or registrant.entitled is None:
            return None
        if token.subject != registrant.token.subject:
            raise TokenError("the new token is somebody else's")
        is_changed = entitlement_text(token.grants) != entitlement_text(registrant.token.grants)
        if is_changed and registrant.delivery == "shared":
            raise NotEntitledError("the token grants something else than the one before", hint="connect again")
        return token, *registrant.entitled.regranted(token.grants)

    def renewed(self, registrant: Registrant, token: Token, entitled: EntitledInterests) -> None:
        registrant.token, registrant.entitled = token, entitled

    def expired(self, now_ns: int) -> list[Registrant]:
        """Those whose tokens' time is over."""
        found = self.registrants.values()
        return [each for each in found if each.token is not None and each.token.expires_ns <= now_ns]

    def bearers(self, subscription_id: str) -> list[Registrant]:
        """Those who were let in with a token of this subscription."""
        found = self.registrants.values()
        return [each for each in found if each.token is not None and each.token.subscription_id == subscription_id]

    def _token(self, text: str, now_ns: int) -> Token | None:
        if self._verify is None:
            return None
        if not text:
            raise TokenError("a token of the administration server is needed here")
        return self._verify(text, now_ns)


def check_number(number: int) -> None:
    """Of a request that is answered."""
    if not number:
        raise LocalProtocolError("a request has a number from 1 on")
