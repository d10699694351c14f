"""Access control of a node, without I/O: which consumers it serves, and what they may ask for.

A consumer is known from enter() to leave().
"""

from collections.abc import Sequence

from penstock.base.errors import (
    ConnectionLostError,
    HandoverError,
    LimitError,
    ModelError,
    NotEntitledError,
    PenstockError,
    RefusedError,
    RevokedError,
    SharedMemoryError,
    TokenError,
    TokenExpiredError,
    TopicError,
    UnreachableError,
)
from penstock.base.free_rows import FreeRows
from penstock.engine import control
from penstock.engine.control import ClassName, RefusalCode, Refused
from penstock.engine.core.metering_limits import MeteringLimits
from penstock.net.place import is_loopback
from penstock.security.core.access_control import AccessControl, Rights
from penstock.security.core.refusal import RefusalError, Refusals
from penstock.topics import Interest

CODES: tuple[tuple[type[PenstockError], RefusalCode], ...] = (
    (TokenExpiredError, RefusalCode.EXPIRED),
    (RevokedError, RefusalCode.REVOKED),
    (NotEntitledError, RefusalCode.ENTITLEMENT),
    (TokenError, RefusalCode.TOKEN),
    (TopicError, RefusalCode.TOPIC),
    (ModelError, RefusalCode.MODEL),
    (LimitError, RefusalCode.LIMIT),
    (HandoverError, RefusalCode.SEGMENT),
    (SharedMemoryError, RefusalCode.SEGMENT),
    (UnreachableError, RefusalCode.UPSTREAM),
    (ConnectionLostError, RefusalCode.UPSTREAM),
)
PASSED_ON = frozenset(
    {
        RefusalCode.TOKEN, RefusalCode.EXPIRED, RefusalCode.REVOKED, RefusalCode.ENTITLEMENT, RefusalCode.TOPIC,
        RefusalCode.MODEL, RefusalCode.RATE, RefusalCode.LIMIT,
    }
)  # fmt: skip
"""Refusals of the upstream node that concern the consumer of the request. Any other refusal concerns this node: for the
consumer, the upstream node is unavailable."""


class NodeRefusals(Refusals[Refused]):
    """The refusals of a node: its own, and those of the upstream node."""

    def code_of(self, error: PenstockError) -> str:
        return refused_upstream(error) if isinstance(error, RefusedError) else super().code_of(error)


REFUSALS = NodeRefusals(Refused, CODES, RefusalCode.PROTOCOL)


def refused_upstream(error: RefusedError) -> RefusalCode:
    """The refusal code for a consumer whose request the upstream node refused."""
    return next((code for code in PASSED_ON if code == error.peer_code), RefusalCode.UPSTREAM)


class Consumer:
    """A consumer that is served. Its rights are known once it was admitted."""

    def __init__(self, number: int, login: control.Login, host: str, classes: Sequence[ClassName]) -> None:
        self.number = number
        self.name = login.name
        self.transport = login.transport
        self.is_node = login.is_node
        self.host = host
        self.port = login.port
        self.takes_group = login.takes_group
        self.classes = tuple(classes)
        self.token = login.token
        self.rights = Rights()
        self.subscriptions: dict[int, control.Subscribe] = {}
        """By number; each subscription as the consumer requested it."""

    @property
    def destination(self) -> str:
        """The destination, for rules that classify by it."""
        return f"{self.transport}.{self.host}"


class ConsumerAccess(AccessControl[Consumer]):
    """Consumers of a node; `classes` are the delivery classes that the node serves."""

    def __init__(self, classes: Sequence[ClassName], metering: MeteringLimits, *, consumers_max: int) -> None:
        super().__init__()
        self._classes = tuple(classes)
        self._metering = metering
        self._consumers_max = consumers_max
        self._free = FreeRows(consumers_max)
        self._names: set[str] = set()

    @property
    def rate_max(self) -> float:
        """The highest rate that consumers can request; 0: no limit, including unmetered updates."""
        return self._metering.per_second_max

    # Consumers

    def enter(self, host: str, login: control.Login) -> Consumer:
        """`host` is the remote host of the connection. The rights of the consumer are determined afterwards."""
        if login.transport == "datagram" and (login.host not in ("", host) or not login.port):
            raise RefusalError(
                RefusalCode.TRANSPORT, "datagrams need a port, and go only to the host that requests them"
            )
        if login.transport == "local" and not is_loopback(host):
            raise RefusalError(RefusalCode.TRANSPORT, "shared memory is only available on the node's host")
        if login.name in self._names:
            raise RefusalError(
                RefusalCode.TAKEN, f"a consumer {login.name} is already connected; choose another name with --name"
            )
        if not self._free:
            raise LimitError(f"the limit of {self._consumers_max} consumers is reached")
        classes = [each for each in self._classes if not login.classes or each in login.classes]
        if not classes:
            raise RefusalError(
                RefusalCode.CLASS, f"this node serves none of the classes {', '.join(login.classes)}", is_final=True
            )
        consumer = Consumer(self._free.take(), login, host, classes)
        self._names.add(consumer.name)
        self.add(consumer)
        return consumer

    def leave(self, number: int) -> None:
        if (consumer := self.parties.get(number)) is not None:
            super().leave(number)
            self._names.discard(consumer.name)
            self._free.give_back(number)

    # Requests

    def check(self, consumer: Consumer, request: control.Subscribe) -> float:
        """Return the granted rate of a request. Raise an error if the request cannot be served."""
        if request.number in consumer.subscriptions:
            raise RefusalError(RefusalCode.TAKEN, f"subscription {request.number} already exists")
        if request.cls != "auto" and request.cls not in consumer.classes:
            raise RefusalError(RefusalCode.CLASS, f"this node does not serve the {request.cls} class")
        for topic in request.topics:
            if Interest.parse(topic).negative:
                raise TopicError(f"{topic!r} is negative", hint="request only positive interests")
        return self.granted_rate(request.cls, request.per_second)

    def granted_rate(self, cls: control.ClassWish, per_second: float) -> float:
        """The rate granted to a request; 0 for classes without a rate."""
        if cls not in ("metered", "auto") or "metered" not in self._classes:
            return 0.0
        try:
            return self._metering.granted(per_second, is_explicit=cls == "metered")
        except LimitError as error:
            raise RefusalError(RefusalCode.RATE, error.what, hint=error.hint) from None

    def subscription(self, consumer: Consumer, number: int) -> control.Subscribe:
        try:
            return consumer.subscriptions[number]
        except KeyError:
            raise RefusalError(RefusalCode.SUBSCRIPTION, f"subscription {number} does not exist") from None
