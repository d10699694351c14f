"""Access control of a filter module, without I/O: the applications that it serves, and what they may request.

An application is known from register() to leave(). Its requests become events of the core, which the driver carries
out and answers.
"""

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from penstock.base.errors import (
    ConfigurationError,
    FilterExpressionError,
    HandoverError,
    LimitError,
    ModelError,
    NotEntitledError,
    PenstockError,
    RevokedError,
    SharedMemoryError,
    TokenError,
    TokenExpiredError,
    TopicError,
)
from penstock.filter.core import control
from penstock.filter.core.control import RefusalCode
from penstock.filter.core.entitled_interests import EntitledInterests, Plan
from penstock.filter.core.events import Attach, Interests, Want
from penstock.filter.module_config import FilterModuleConfig
from penstock.model import MessageModel
from penstock.net.place import is_loopback
from penstock.net.udp import Channel
from penstock.security import Token
from penstock.security.core.access_control import AccessControl, Rights, Verify, check_same_subject
from penstock.security.core.direct_address import NUMBERS, direct_address, is_address_of
from penstock.security.core.refusal import RefusalError, Refusals

DRAWS_MAX = 1_000
"""Maximum number of attempts to find a free address."""

PORTS_MAX = 65_536

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


REFUSALS = Refusals(control.Refused, _CODES, RefusalCode.PROTOCOL)


class Registrant:
    """An application that is served; `number` is its id."""

    def __init__(self, number: int, message: control.Register, host: str, token: Token | None) -> None:
        self.number = number
        self.name = message.application
        self.delivery = message.delivery
        self.address = (host, message.port)
        self.rights = Rights() if token is None else Rights.of_token(token)
        self.entitled = None if token is None else EntitledInterests(token.grants)
        self.models: set[tuple[int, int]] = set()
        """The models that the application has registered, by id and version."""

    def attach(self) -> Attach:
        return Attach(self.number, self.address, self.delivery, self.address[0], self.rights.text, self.name)


class ApplicationAccess(AccessControl[Registrant]):
    """`verify` checks tokens; None if the module requires no tokens. `ports` are the channels of the module's map."""

    def __init__(self, config: FilterModuleConfig, verify: Verify | None, ports: Sequence[Channel]) -> None:
        super().__init__(verify)
        self._config = config
        self._networks = config.networks()
        self._ports: dict[int, int] = {channel.group_id: channel.port for channel in ports}
        self._own_groups = set(self._ports)
        self._joined: set[int] = set()
        self._asked: Counter[int] = Counter()  # number of pending changes that need each group
        # number of applications that registered each model, by id and version
        self._models: Counter[tuple[int, int]] = Counter()

    # Applications

    def register(
        self, node: str, peer_host: str, message: control.Register, draw: Callable[[], int], now_ns: int
    ) -> Registrant:
        """Admit an application. `node` and `peer_host` are the connection's; `draw` returns random ids."""
        if message.application != node and node not in self._config.controllers:
            raise RefusalError(
                RefusalCode.CONTROLLER,
                f"{node} may not speak for {message.application}",
                hint="list the node under `controllers` in the filter's configuration",
            )
        host = self._host(peer_host, message)
        if self.is_taken(message.application):
            raise RefusalError(RefusalCode.TAKEN, f"an application {message.application} is already registered")
        token = self.verify(message.token, now_ns)
        if token is not None and message.application_id and not is_address_of(message.application_id, token.subject):
            raise RefusalError(
                RefusalCode.ENTITLEMENT,
                f"{message.application_id:#018x} is not an address of {token.subject}",
                hint="the address of an application begins with a hash of its client's name; with 0 the filter chooses",
            )
        if message.application_id in self.parties:
            raise RefusalError(RefusalCode.TAKEN, f"another application has the id {message.application_id}")
        if any(each.address == (host, message.port) for each in self.parties.values()):
            raise RefusalError(RefusalCode.TAKEN, f"another application listens at {host}:{message.port}")
        if len(self.parties) >= self._config.applications_max:
            raise LimitError(f"{len(self.parties)} applications are already registered")
        application_id = message.application_id or self._free_address(token, draw)
        registrant = Registrant(application_id, message, host, token)
        self.add(registrant)
        return registrant

    def _free_address(self, token: Token | None, draw: Callable[[], int]) -> int:
        """A free address; with a token, one of the token's client."""
        for _ in range(DRAWS_MAX):
            address = draw() if token is None else direct_address(token.subject, draw() % NUMBERS)
            if address and address not in self.parties:
                return address
        raise LimitError(f"found no free address in {DRAWS_MAX} attempts", hint="stop some applications")

    def release_models(self, registrant: Registrant, models: Iterable[tuple[int, int]]) -> tuple[int, ...]:
        """Unregister models of an application, by id and version. Return the ids that no application uses any more."""
        released = registrant.models & set(models)
        registrant.models -= released
        self._models.subtract(released)
        self._models = +self._models
        named = {model_id for model_id, _ in self._models}
        return tuple({model_id for model_id, _ in released} - named)

    def _host(self, peer_host: str, message: control.Register) -> str:
        """Return the application's address if the module serves that host."""
        host = message.host or peer_host
        address = _ipv4(host)
        is_local = self._is_local(peer_host)
        is_own = host == peer_host or (is_local and (is_loopback(host) or host == self._config.interface))
        if not is_own and not any(address in network for network in self._networks):
            raise RefusalError(
                RefusalCode.HOST,
                f"applications on {host} are not served",
                hint="list the host under `hosts` in the filter's configuration",
            )
        if message.delivery == "ring" and not is_local:
            raise RefusalError(RefusalCode.DELIVERY, "a ring is only available on the filter's host")
        return host

    def check_publisher(self, peer_host: str, offer: control.OfferRing) -> None:
        """Refuse a ring that a publisher on another host offers."""
        if not self._is_local(peer_host):
            raise RefusalError(RefusalCode.HOST, "a ring can only be offered on the filter's host")
        _ipv4(offer.host)

    def _is_local(self, peer_host: str) -> bool:
        return is_loopback(peer_host) or peer_host == self._config.interface

    # Interests

    def want(self, registrant: Registrant, message: control.Want) -> tuple[Want, Plan | None]:
        """Return the core's event and a plan. Call settled() with the event after the core's answer, and committed()
        with the plan if the event was carried out."""
        remove = [Interests(each.topics, each.where, each.content) for each in message.remove]
        ports: dict[int, int] = {}
        add = [self._interests(each, ports) for each in message.add]
        plan = None if registrant.entitled is None else registrant.entitled.plan(add, remove)
        if len(self._ports.keys() | ports.keys()) > PORTS_MAX:
            raise LimitError(f"the limit of {PORTS_MAX} named channels is reached")
        want = Want(registrant.number, *((add, remove) if plan is None else (plan.add, plan.remove)))
        self._ports |= ports
        self._asked.update(_groups(want))
        return want, plan

    def settled(self, want: Want) -> None:
        """The core has answered the event, with success or an error."""
        for group in _groups(want):
            self._asked[group] -= 1
            self._forget(group)

    def committed(self, registrant: Registrant, plan: Plan | None) -> None:
        if plan is not None and registrant.entitled is not None:
            registrant.entitled.commit(plan)

    def _interests(self, each: control.Interests, ports: dict[int, int]) -> Interests:
        """`ports` collects the ports of the named channels."""
        if each.where and each.content:
            raise RefusalError(RefusalCode.CONDITION, "a condition has either `where` or `content`, not both")
        channels = [Channel.parse(text, interface=self._config.interface) for text in each.channels]
        for channel in channels:
            port = self._ports.get(channel.group_id) or ports.setdefault(channel.group_id, channel.port)
            if port != channel.port:
                raise RefusalError(RefusalCode.CHANNEL, f"{channel.group} is already in use with port {port}")
        return Interests(each.topics, each.where, each.content, tuple(channel.group_id for channel in channels))

    def models(self, registrant: Registrant, message: control.Models) -> list[MessageModel]:
        """Check all models of the message. An error refuses all of them."""
        found = []
        for number, text in enumerate(message.documents):
            try:
                model = MessageModel.parse(text, where=f"documents[{number}]")
            except PenstockError as error:
                raise RefusalError(RefusalCode.MODEL, str(error)) from None
            found.append(model)
        new = {(model.id, model.version) for model in found} - registrant.models
        if len(self._models.keys() | new) > self._config.models_max:
            raise LimitError(
                f"the applications would register more than {self._config.models_max} models", hint="raise models_max"
            )
        registrant.models |= new
        self._models.update(new)
        return found

    # Groups

    def port_of(self, group: int) -> int | None:
        return self._ports.get(group)

    def use_map(self, channels: Sequence[Channel]) -> None:
        """Use the channels of a new map; the old ones stay known until left(). A group in use cannot change its
        port: that raises ConfigurationError, and nothing changes."""
        for channel in channels:
            port = self._ports.get(channel.group_id, channel.port)
            if port != channel.port and self._is_used(channel.group_id):
                raise ConfigurationError(f"{channel.group} is already in use with port {port}", hint="use other groups")
        self._own_groups = {channel.group_id for channel in channels}
        self._ports |= {channel.group_id: channel.port for channel in channels}

    def joined(self, group: int) -> None:
        self._joined.add(group)

    def left(self, group: int) -> None:
        """The group is no longer joined."""
        self._joined.discard(group)
        self._forget(group)

    def _is_used(self, group: int) -> bool:
        return group in self._joined or self._asked[group] > 0

    def _forget(self, group: int) -> None:
        """Forget a group's port if it is not needed."""
        if not self._asked[group]:
            del self._asked[group]
        if group not in self._own_groups and not self._is_used(group):
            self._ports.pop(group, None)

    # Tokens

    def renew(self, registrant: Registrant, text: str, now_ns: int) -> tuple[EntitledInterests, Plan] | None:
        """Return the plan for a new token, for renewed() after the plan was carried out; None if nothing changes.
        The new token applies at once, for the case that it is revoked meanwhile."""
        token = self.verify(text, now_ns)
        if token is None or registrant.entitled is None:
            return None
        rights = Rights.of_token(token)
        check_same_subject(registrant.rights, rights)
        if rights.text != registrant.rights.text and registrant.delivery == "shared":
            raise NotEntitledError("the new token has other grants than the previous one", hint="connect again")
        registrant.rights = rights
        return registrant.entitled.regranted(token.grants)

    def renewed(self, registrant: Registrant, entitled: EntitledInterests) -> None:
        registrant.entitled = entitled


def _ipv4(host: str) -> ipaddress.IPv4Address:
    try:
        return ipaddress.IPv4Address(host)
    except ValueError:
        raise RefusalError(RefusalCode.HOST, f"{host!r} is not an IPv4 address") from None


def _groups(want: Want) -> set[int]:
    """The groups that a Want names."""
    return {group for each in want.add for group in each.groups}
