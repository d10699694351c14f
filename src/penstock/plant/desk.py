"""Who is served by a node, and with what: the rules of the control connection, without I/O.

A consumer is known from enter() to leave(). A refusal is an error; refusal_of() says it in the protocol's words.
"""

from collections.abc import Sequence

from penstock.base.errors import (
    ConnectionLostError,
    HandoverError,
    LimitError,
    LocalProtocolError,
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
from penstock.engine import control
from penstock.engine.control import ClassName, RefusalCode
from penstock.engine.core.metering_limits import MeteringLimits
from penstock.net.stream import is_loopback
from penstock.plant.rights import Rights
from penstock.topics import Interest

REASON_SIZE_MAX = 256
_CODES: tuple[tuple[type[PenstockError], RefusalCode], ...] = (
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


class RefusalError(PenstockError):
    """What a consumer asked for is against the rules, or cannot be done; `refusal` says why. With `is_final` it cannot
    be served any longer."""

    def __init__(self, refusal: RefusalCode, what: str, *, hint: str = "", is_final: bool = False) -> None:
        super().__init__(what, hint=hint)
        self.refusal = refusal
        self.is_final = is_final


def refusal_of(error: PenstockError, number: int = 0) -> control.Refused:
    if isinstance(error, RefusalError):
        code = error.refusal
    elif isinstance(error, RefusedError):
        code = refused_above(error)
    else:
        code = next((code for kind, code in _CODES if isinstance(error, kind)), RefusalCode.PROTOCOL)
    return control.Refused(code, str(error)[:REASON_SIZE_MAX], number)


def refused_above(error: RefusedError) -> RefusalCode:
    """The refusal code for a consumer whose request the upstream node refused."""
    return next((code for code in PASSED_ON if code == error.peer_code), RefusalCode.UPSTREAM)


class Party:
    """A consumer that is served."""

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
        self.rights: Rights | None = None
        self.wanted: dict[int, control.Subscribe] = {}  # by the subscription's number, as it was asked for

    @property
    def entitled(self) -> str:
        """Equal for those who may have the same."""
        return "" if self.rights is None else self.rights.text

    @property
    def is_revocable(self) -> bool:
        """Whether what it may have can be taken back, or ends by itself."""
        return self.rights is not None and bool(self.rights.subscription_id or self.rights.expires_ns)

    @property
    def destination(self) -> str:
        """What classification by destination looks at."""
        return f"{self.transport}.{self.host}"


class Desk:
    """`classes` are those that the node serves."""

    def __init__(self, classes: Sequence[ClassName], metering: MeteringLimits, *, consumers_max: int) -> None:
        self.parties: dict[int, Party] = {}
        self._classes = tuple(classes)
        self._metering = metering
        self._consumers_max = consumers_max
        self._free = list(range(consumers_max - 1, -1, -1))
        self._names: set[str] = set()

    @property
    def rate_max(self) -> float:
        """What consumers can ask for at most; 0: also unmetered updates."""
        return self._metering.per_second_max

    # Consumers

    def enter(self, host: str, login: control.Login) -> Party:
        """`host` is where the connection comes from. Its rights are found out afterwards."""
        if login.transport == "datagram" and (login.host not in ("", host) or not login.port):
            raise RefusalError(RefusalCode.TRANSPORT, "datagrams go to the host that asks for them, to a port")
        if login.transport == "local" and not is_loopback(host):
            raise RefusalError(RefusalCode.TRANSPORT, "shared memory is for consumers on the node's own host")
        if login.name in self._names:
            raise RefusalError(
                RefusalCode.TAKEN, f"a consumer {login.name} is there already; a node of another name: --name"
            )
        if not self._free:
            raise LimitError(f"{self._consumers_max} consumers are served already")
        classes = [each for each in self._classes if not login.classes or each in login.classes]
        if not classes:
            raise RefusalError(
                RefusalCode.CLASS, f"of the classes {', '.join(login.classes)} none is served here", is_final=True
            )
        party = Party(self._free.pop(), login, host, classes)
        self._names.add(party.name)
        self.parties[party.number] = party
        return party

    def leave(self, party: Party) -> None:
        if self.parties.pop(party.number, None) is not None:
            self._names.discard(party.name)
            self._free.append(party.number)

    def expired(self, now_ns: int) -> list[Party]:
        """Those whose rights' time is over."""
        return [each for each in self.parties.values() if each.rights and 0 < each.rights.expires_ns <= now_ns]

    def bearers(self, subscription_id: str) -> list[Party]:
        """Those whose rights come from this subscription at the administration server."""
        found = self.parties.values()
        return [each for each in found if each.rights and each.rights.subscription_id == subscription_id]

    # What they ask for

    def check(self, party: Party, request: control.Subscribe) -> float:
        """Whether the request can be; the rate that is granted."""
        if request.number in party.wanted:
            raise RefusalError(RefusalCode.TAKEN, f"there is a subscription {request.number} already")
        if request.cls != "auto" and request.cls not in party.classes:
            raise RefusalError(RefusalCode.CLASS, f"the {request.cls} class is not served here")
        for topic in request.topics:
            if Interest.parse(topic).negative:
                raise TopicError(f"{topic!r} is negative", hint="subscribe to what is wanted only")
        return self.granted_rate(request.cls, request.per_second)

    def granted_rate(self, cls: control.ClassWish, per_second: float) -> float:
        """Of a consumer's wish; 0 where no rate is kept."""
        if cls not in ("metered", "auto") or "metered" not in self._classes:
            return 0.0
        try:
            return self._metering.granted(per_second, is_explicit=cls == "metered")
        except LimitError as error:
            raise RefusalError(RefusalCode.RATE, error.what, hint=error.hint) from None

    def subscription(self, party: Party, number: int) -> control.Subscribe:
        try:
            return party.wanted[number]
        except KeyError:
            raise RefusalError(RefusalCode.SUBSCRIPTION, f"there is no subscription {number}") from None


def check_number(number: int) -> None:
    """Of a request that is answered."""
    if not number:
        raise LocalProtocolError("a request has a number from 1 on")
