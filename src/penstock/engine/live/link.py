"""A consumer's control connection to a node, in an asyncio loop (net/live/control_client.py).

    link = NodeLink(("127.0.0.1", 7411), Login("app", "local"), listener)
    running = asyncio.create_task(link.run())
    number = await link.subscribe(["md.us.eq.>"], "critical")

Applications and downstream nodes use the same link. Messages of the node other than answers go to the listener, in the
thread of the loop. Subscriptions are repeated on a new connection, from the consumer's position, before `attached` is
set.
"""

import ssl
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from penstock.base.errors import (
    ConnectionLostError,
    LimitError,
    PenstockError,
    RefusedError,
    RemoteProtocolError,
    UnreachableError,
)
from penstock.base.log import logger
from penstock.engine.control import (
    CONNECTION,
    EVENTS_SIZE_MAX,
    PROTOCOL,
    TOPICS_MAX,
    AskModel,
    ClassWish,
    ControlMessage,
    Events,
    GroupKeys,
    Held,
    Login,
    Missed,
    ModelDocument,
    Modify,
    OpenRegion,
    Overrun,
    Records,
    RefusalCode,
    Refused,
    RenewToken,
    Restarted,
    RingName,
    Snapshot,
    Subscribe,
    Unsubscribe,
    Vouch,
    Vouched,
    Welcome,
    Withdrawn,
)
from penstock.net.core.control import Refused as AnyRefused
from penstock.net.live.control_client import ControlClient
from penstock.net.live.control_driver import ControlConnection
from penstock.net.secret import Secret
from penstock.net.udp import Address

SNAPSHOT_SIZE_MAX = 256 * 1024 * 1024
REFUSES = "the node refuses: "

FINAL_CODES = frozenset(
    {RefusalCode.REVOKED, RefusalCode.ENTITLEMENT, RefusalCode.TRANSPORT, RefusalCode.CLASS, RefusalCode.PROTOCOL}
)
"""Refusals of the whole consumer that another attempt would not change."""

Told: TypeAlias = Events | OpenRegion | Withdrawn | GroupKeys

log = logger("engine.link")


class Listener(Protocol):
    """The consumer's side of a link; called in the thread of the loop."""

    async def welcomed(self, welcome: Welcome) -> None:
        """Connected. When this returns, segments must be open; subscriptions are requested next."""

    async def told(self, message: Told) -> None:
        """Handle a message. Later messages, including answers, wait until this returns."""

    def lost(self, error: PenstockError) -> None:
        """The connection was lost; no messages follow until the next welcomed()."""

    def position(self) -> int:
        """Number of the last event that was taken in the epoch of the last welcome; 0: none."""


class NodeLink(ControlClient[ControlMessage]):
    """For a downstream node no refusal is final, because other nodes depend on it."""

    def __init__(
        self,
        address: Address,
        login: Login,
        listener: Listener,
        *,
        secret: Secret | None = None,
        tls: ssl.SSLContext | None = None,
        on_refused: Callable[[RefusedError], None] | None = None,
    ) -> None:
        """`on_refused` is called if the node refuses this consumer, or ends a subscription."""
        super().__init__(
            PROTOCOL, address, node=login.name, server="node", secret=secret, tls=tls, config=CONNECTION, log=log
        )
        self.welcome: Welcome | None = None
        """The last welcome message."""
        self._login = login
        self._listener = listener
        self._on_refused = on_refused
        self._after = 0  # the position from which subscriptions resume
        self._held: dict[int, Subscribe] = {}
        self._reserved: set[int] = set()

    # Requests; a refusal is a RefusedError with its code as peer_code

    def reserve(self) -> int:
        """Reserve a number for subscribe(), for callers that need it before its first event arrives."""
        number = self.next_number()
        self._reserved.add(number)
        return number

    async def subscribe(
        self, topics: Sequence[str], cls: ClassWish = "auto", per_second: float = 0.0, *, number: int = 0
    ) -> int:
        """Subscribe and return the number. While the node is disconnected, the subscription is stored and requested
        later."""
        number = number or self.next_number()
        self._reserved.discard(number)
        if len(topics) > TOPICS_MAX:
            raise LimitError(f"the subscription has {len(topics)} topics", hint=f"the limit is {TOPICS_MAX}")
        request = Subscribe(number, list(topics), cls, per_second)
        self._held[request.number] = request
        try:
            await self.hold(request)
        except (ConnectionLostError, UnreachableError):
            return request.number
        except BaseException:
            self._held.pop(request.number, None)
            raise
        return request.number

    def holds(self, subscription: int) -> bool:
        """True if the subscription was not refused."""
        return subscription in self._held

    async def unsubscribe(self, subscription: int) -> None:
        if self._held.pop(subscription, None) is not None and self.connection is not None:
            await self.ask(lambda number: Unsubscribe(number, subscription), Held)

    async def modify(self, subscription: int, per_second: float) -> float:
        """Change the rate and return the granted one."""
        held = await self.ask(lambda number: Modify(number, subscription, per_second), Held)
        if subscription in self._held:
            self._held[subscription] = msgspec.structs.replace(self._held[subscription], per_second=per_second)
        return held.per_second

    async def snapshot(self, topics: Sequence[str]) -> list[bytes]:
        """DEFINE and REFRESH events of the current records, in blocks."""
        parts: list[bytes] = []
        size = 0
        async with self.request(lambda number: Snapshot(number, list(topics))) as answers:
            while True:
                part = await answers.get(Records)
                parts.append(part.data)
                size += len(part.data)
                if size > SNAPSHOT_SIZE_MAX:
                    raise LimitError(f"a snapshot of more than {SNAPSHOT_SIZE_MAX} bytes", hint="ask for fewer topics")
                if part.is_last:
                    return parts

    async def overrun(self, last_number: int, ring: RingName = "events") -> None:
        await self.ask(lambda number: Overrun(number, last_number, ring), Restarted)

    async def missed(self, first_sequence: int, last_sequence: int) -> None:
        if self.connection is not None:
            await self.connection.send(Missed(first_sequence, last_sequence))

    async def model(self, model_id: int, version: int) -> str:
        """Its document."""
        return (await self.ask(lambda number: AskModel(number, model_id, version), ModelDocument)).document

    async def renew(self, token: str) -> None:
        self._login = msgspec.structs.replace(self._login, token=token)
        if self.connection is not None:
            await self.ask(lambda number: RenewToken(number, token), Held)

    async def vouch(self, name: str, token: str, topics: Sequence[str] = ()) -> Vouched:
        return await self.ask(lambda number: Vouch(number, name, token, list(topics)), Vouched)

    # The connection

    async def log_in(self, connection: ControlConnection[ControlMessage]) -> None:
        welcome = await self.first_answer(connection, self._login, Welcome)
        before, position = self.welcome, self._listener.position()
        self._after = position if before and before.epoch == welcome.epoch else 0
        self.welcome = welcome
        await self._listener.welcomed(welcome)

    async def resume(self) -> None:
        assert self.welcome is not None
        for request in list(self._held.values()):
            epoch = self.welcome.epoch if self._after else 0
            try:
                await self.hold(msgspec.structs.replace(request, after=self._after, epoch=epoch))
            except RefusedError as error:
                self._held.pop(request.number, None)
                self.note_refusal(error)

    async def hold(self, request: Subscribe) -> None:
        async with self.request(lambda _: request, request.number) as answers:
            await answers.get(Held)

    def is_used(self, number: int) -> bool:
        return super().is_used(number) or number in self._held or number in self._reserved

    async def read_message(self, message: ControlMessage, connection: ControlConnection[ControlMessage]) -> None:
        if self._login.is_node and isinstance(message, Events):
            message = _joined(message, connection)
        await super().read_message(message, connection)

    def answer(self, message: ControlMessage) -> bool:
        if not isinstance(message, Held | Restarted | Records | ModelDocument | Vouched | Refused):
            return False
        self.give_answer(message.number, message)
        return True

    async def take(self, message: ControlMessage) -> None:
        if not isinstance(message, Events | OpenRegion | Withdrawn | GroupKeys):
            raise RemoteProtocolError(f"the node says {type(message).__name__}", where=self.where)
        await self._listener.told(message)

    def is_final(self, error: RefusedError) -> bool:
        return error.peer_code in FINAL_CODES and not self._login.is_node

    def note_refusal(self, error: RefusedError) -> None:
        super().note_refusal(error)
        if self._on_refused is not None:
            self._on_refused(error)

    def lost(self, error: PenstockError) -> None:
        self._listener.lost(error)

    def refusal(self, message: AnyRefused) -> RefusedError:
        return refusal(message)


def _joined(first: Events, connection: ControlConnection[ControlMessage]) -> Events:
    """The message with all events that have arrived behind it: a node that takes them at once keeps up better.
    Applications get each message by itself, because they bound how many they read ahead."""
    parts, left = [first.data], EVENTS_SIZE_MAX - len(first.data)

    def fits(message: ControlMessage) -> bool:
        return isinstance(message, Events) and len(message.data) <= left

    while isinstance(more := connection.received(fits), Events):
        parts.append(more.data)
        left -= len(more.data)
    return Events(b"".join(parts))


def refusal(said: AnyRefused) -> RefusedError:
    reason = said.reason.removeprefix(REFUSES)  # a downstream node passes on the reason of its upstream node
    return RefusedError(f"{REFUSES}{reason}", peer_code=said.code)
