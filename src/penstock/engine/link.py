"""A consumer's control connection to a node, in an asyncio loop: made, kept, and made again.

    link = NodeLink(("127.0.0.1", 7411), Login("app", "local"), listener)
    running = asyncio.create_task(link.run())
    number = await link.subscribe(["md.us.eq.>"], "critical")

Applications and nodes that chain use the same link. What the node says besides answers goes to the listener, in the
loop's thread. Subscriptions are remembered: on a new connection they are asked for again, with where
the consumer was, before `attached` is set.
"""

import asyncio
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from penstock.base.backoff import Backoff
from penstock.base.clock import SystemRandomness
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
from penstock.net.control_driver import ControlConnection, connect_control
from penstock.net.secret import Secret
from penstock.net.udp import Address

SNAPSHOT_SIZE_MAX = 256 * 1024 * 1024
U32_MAX = 2**32 - 1
REFUSES = "the node refuses: "

FINAL_CODES = frozenset(
    {RefusalCode.REVOKED, RefusalCode.ENTITLEMENT, RefusalCode.TRANSPORT, RefusalCode.CLASS, RefusalCode.PROTOCOL}
)
"""Refusals of the whole consumer that another attempt would not change."""

Told: TypeAlias = Events | OpenRegion | Withdrawn
Answer: TypeAlias = Held | Restarted | Records | ModelDocument | Vouched | Refused

A = TypeVar("A", Held, Restarted, Records, ModelDocument, Vouched)

log = logger("engine.link")


class Listener(Protocol):
    """Whoever consumes; called in the loop's thread."""

    async def welcomed(self, welcome: Welcome) -> None:
        """There is a connection. When this returns, segments are open and subscriptions are asked for."""

    async def told(self, message: Told) -> None:
        """What comes after it, answers too, waits until this returns."""

    def lost(self, error: PenstockError) -> None:
        """The connection is gone; nothing more comes until the next welcomed()."""

    def position(self) -> int:
        """The number of the last event that was taken in the epoch of the last welcome; 0 for none."""


class NodeLink:
    """Runs in a loop from run() until close(), or until a final refusal. For a node no refusal is final, because other
    nodes depend on it. The coroutines are for that loop."""

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
        """`on_refused` is told why the node does not let us in, or does not hold a subscription any more."""
        self.welcome: Welcome | None = None
        """The last one."""
        self.failure: PenstockError | None = None
        """Why there will be no connection any more."""
        self.trouble: PenstockError | None = None
        """Why there was none the last time."""
        self.attached = threading.Event()
        """Set while all subscriptions hold."""
        self._address = address
        self._login = login
        self._listener = listener
        self._secret = secret
        self._tls = tls
        self._on_refused = on_refused
        self._connection: ControlConnection[ControlMessage] | None = None
        self._task: asyncio.Task[None] | None = None
        self._number = 0
        self._waiting: dict[int, asyncio.Queue[Answer | PenstockError]] = {}
        self._held: dict[int, Subscribe] = {}
        self._reserved: set[int] = set()

    async def run(self) -> None:
        self._task = asyncio.current_task()
        backoff = Backoff(SystemRandomness())
        while self.failure is None:
            error: PenstockError = ConnectionLostError("the link was closed")
            try:
                await self._attach()
            except RefusedError as refused:
                error = refused
                if refused.peer_code in FINAL_CODES and not self._login.is_node:  # a node has others to serve
                    self.failure = refused
                self._tell_refusal(refused)
            except PenstockError as lost:
                error = lost
                log.info("node_lost", node=self._where, error=str(lost))
            finally:
                if self.attached.is_set():
                    backoff.succeeded()
                self._detach(error)
            if self.failure is None:
                await asyncio.sleep(backoff.next_seconds(error))

    async def close(self) -> None:
        """End it, and wait until it has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # Requests; a refusal is a RefusedError with its code as peer_code

    def reserve(self) -> int:
        """A number for subscribe(), for those who must know it before its first event comes."""
        number = self._next_number()
        self._reserved.add(number)
        return number

    async def subscribe(
        self, topics: Sequence[str], cls: ClassWish = "auto", per_second: float = 0.0, *, number: int = 0
    ) -> int:
        """The subscription's number. While the node is gone, it is remembered and asked for later."""
        number = number or self._next_number()
        self._reserved.discard(number)
        if len(topics) > TOPICS_MAX:
            raise LimitError(f"{len(topics)} topics in one subscription", hint=f"at most {TOPICS_MAX}")
        request = Subscribe(number, list(topics), cls, per_second)
        self._held[request.number] = request
        try:
            await self._hold(request)
        except (ConnectionLostError, UnreachableError):
            return request.number
        except BaseException:
            self._held.pop(request.number, None)
            raise
        return request.number

    def holds(self, subscription: int) -> bool:
        """Whether it was not refused."""
        return subscription in self._held

    async def unsubscribe(self, subscription: int) -> None:
        if self._held.pop(subscription, None) is not None and self._connection is not None:
            await self._ask(lambda number: Unsubscribe(number, subscription), Held)

    async def modify(self, subscription: int, per_second: float) -> float:
        """The rate that is granted."""
        held = await self._ask(lambda number: Modify(number, subscription, per_second), Held)
        if subscription in self._held:
            self._held[subscription] = msgspec.structs.replace(self._held[subscription], per_second=per_second)
        return held.per_second

    async def snapshot(self, topics: Sequence[str]) -> list[bytes]:
        """DEFINE and REFRESH events of the current records, in blocks."""
        parts: list[bytes] = []
        size = 0
        async with self._question(lambda number: Snapshot(number, list(topics))) as answers:
            while True:
                part = await answers.get(Records)
                parts.append(part.data)
                size += len(part.data)
                if size > SNAPSHOT_SIZE_MAX:
                    raise LimitError(f"a snapshot of more than {SNAPSHOT_SIZE_MAX} bytes", hint="ask for fewer topics")
                if part.is_last:
                    return parts

    async def overrun(self, last_number: int, ring: RingName = "events") -> None:
        await self._ask(lambda number: Overrun(number, last_number, ring), Restarted)

    async def missed(self, first_sequence: int, last_sequence: int) -> None:
        if self._connection is not None:
            await self._connection.send(Missed(first_sequence, last_sequence))

    async def model(self, model_id: int, version: int) -> str:
        """Its document."""
        return (await self._ask(lambda number: AskModel(number, model_id, version), ModelDocument)).document

    async def renew(self, token: str) -> None:
        self._login = msgspec.structs.replace(self._login, token=token)
        if self._connection is not None:
            await self._ask(lambda number: RenewToken(number, token), Held)

    async def vouch(self, name: str, token: str, topics: Sequence[str] = ()) -> Vouched:
        return await self._ask(lambda number: Vouch(number, name, token, list(topics)), Vouched)

    # The connection

    @property
    def _where(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    async def _attach(self) -> None:
        host, port = self._address
        connection = await connect_control(
            PROTOCOL,
            host,
            port,
            node=self._login.name,
            secret=self._secret,
            tls=self._tls,
            config=CONNECTION,
        )
        async with connection:
            await connection.send(self._login)
            welcome = await connection.receive()
            if isinstance(welcome, Refused):
                raise refusal(welcome)
            if not isinstance(welcome, Welcome):
                raise RemoteProtocolError("the node does not welcome us", where=self._where)
            before, position = self.welcome, self._listener.position()
            self.welcome = welcome
            await self._listener.welcomed(welcome)
            reading = asyncio.create_task(self._read(connection))
            try:
                await self._introduce(connection, position if before and before.epoch == welcome.epoch else 0)
            except ConnectionLostError:
                await reading  # it knows why
                raise
            else:
                await reading
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _introduce(self, connection: ControlConnection[ControlMessage], after: int) -> None:
        assert self.welcome is not None
        self._connection = connection  # from here on requests are made at once
        for request in list(self._held.values()):
            again = msgspec.structs.replace(request, after=after, epoch=self.welcome.epoch if after else 0)
            try:
                await self._hold(again)
            except RefusedError as error:
                self._held.pop(request.number, None)
                self._tell_refusal(error)
        self.attached.set()
        log.info("node_attached", node=self._where, name=self.welcome.node, epoch=self.welcome.epoch)

    async def _hold(self, request: Subscribe) -> None:
        async with self._question(lambda _: request, request.number) as answers:
            await answers.get(Held)

    async def _ask(self, question: Callable[[int], ControlMessage], kind: type[A]) -> A:
        async with self._question(question) as answers:
            return await answers.get(kind)

    def _question(self, question: Callable[[int], ControlMessage], number: int = 0) -> "_Question":
        if self._connection is None:
            raise UnreachableError("the node is not connected", where=self._where)
        number = number or self._next_number()
        return _Question(self._connection, self._waiting, number, question(number))

    def _next_number(self) -> int:
        while True:
            self._number = self._number % U32_MAX + 1
            if not any(self._number in each for each in (self._held, self._waiting, self._reserved)):
                return self._number

    async def _read(self, connection: ControlConnection[ControlMessage]) -> None:
        error: PenstockError = ConnectionLostError("the node is gone")
        try:
            async for said in connection:
                if self._login.is_node and isinstance(said, Events):
                    said = _joined(said, connection)
                await self._hear(said)
            raise ConnectionLostError("the node said goodbye")
        except PenstockError as caught:
            error = caught
            raise
        finally:
            for each in self._waiting.values():
                each.put_nowait(ConnectionLostError(error.what))

    async def _hear(self, said: ControlMessage) -> None:
        if isinstance(said, Events | OpenRegion | Withdrawn):
            await self._listener.told(said)
        elif isinstance(said, Refused) and not said.number:
            raise refusal(said)
        elif isinstance(said, Held | Restarted | Records | ModelDocument | Vouched | Refused):
            if (waiting := self._waiting.get(said.number)) is not None:
                waiting.put_nowait(said)
        else:
            raise RemoteProtocolError(f"the node says {type(said).__name__}", where=self._where)

    def _tell_refusal(self, error: RefusedError) -> None:
        log.warning("node_refused", node=self._where, code=error.peer_code, reason=error.what)
        if self._on_refused is not None:
            self._on_refused(error)

    def _detach(self, error: PenstockError) -> None:
        self._connection = None
        self.trouble = error
        self.attached.clear()
        self._listener.lost(error)


class _Question:
    """One request, from its message to its last answer."""

    def __init__(
        self,
        connection: ControlConnection[ControlMessage],
        waiting: dict[int, "asyncio.Queue[Answer | PenstockError]"],
        number: int,
        message: ControlMessage,
    ) -> None:
        self._connection = connection
        self._waiting = waiting
        self._number = number
        self._message = message
        self._answers: asyncio.Queue[Answer | PenstockError] = asyncio.Queue()

    async def __aenter__(self) -> "_Question":
        self._waiting[self._number] = self._answers
        try:
            await self._connection.send(self._message)
        except BaseException:
            self._waiting.pop(self._number, None)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._waiting.pop(self._number, None)

    async def get(self, kind: type[A]) -> A:
        answer = await self._answers.get()
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, Refused):
            raise refusal(answer)
        if isinstance(answer, PenstockError):
            raise answer
        raise RemoteProtocolError(f"the node answers with {type(answer).__name__}")


def _joined(first: Events, connection: ControlConnection[ControlMessage]) -> Events:
    """With what has come behind it: a node that takes it in one go follows sooner. Applications get every message by
    itself, for they read ahead only so many."""
    parts, left = [first.data], EVENTS_SIZE_MAX - len(first.data)

    def fits(message: ControlMessage) -> bool:
        return isinstance(message, Events) and len(message.data) <= left

    while isinstance(more := connection.received(fits), Events):
        parts.append(more.data)
        left -= len(more.data)
    return Events(b"".join(parts))


def refusal(said: Refused) -> RefusedError:
    reason = said.reason.removeprefix(REFUSES)  # a node below passes on what the one above said
    return RefusedError(f"{REFUSES}{reason}", peer_code=said.code)
