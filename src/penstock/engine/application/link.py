"""An application's control connection to a distribution node, in an asyncio loop: made, kept, and made again.

What the node says goes into `inbox`, in its order, for the thread that reads.
"""

import asyncio
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from penstock.base.errors import ConnectionLostError, LimitError, PenstockError, RefusedError, RemoteProtocolError
from penstock.base.log import logger
from penstock.base.segment import Segment
from penstock.engine.control import (
    CONNECTION,
    PROTOCOL,
    AskModel,
    ClassWish,
    ControlMessage,
    Events,
    Held,
    Login,
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
    Welcome,
)
from penstock.net.control_driver import ControlConnection, connect_control
from penstock.net.handover import receive_segment
from penstock.net.secret import Secret
from penstock.net.udp import Address

log = logger("engine.link")

INBOX_MAX = 65_536
EVENTS_WAITING_MAX = 64
"""Messages of events that are read ahead of the application; then the node has to wait, and conflates."""

ROOM_LOOK_S = 0.001
RECONNECT_S = 0.1
RECONNECT_MAX_S = 2.0

FINAL_CODES = frozenset(
    {
        RefusalCode.REVOKED, RefusalCode.ENTITLEMENT, RefusalCode.TRANSPORT, RefusalCode.CLASS, RefusalCode.RATE,
        RefusalCode.TOPIC, RefusalCode.PROTOCOL,
    }
)  # fmt: skip
"""Refusals that another attempt would not change."""


class Attached(msgspec.Struct, frozen=True):
    """The node knows us: where events come from, if not from the connection itself."""

    welcome: Welcome
    ring: Segment | None = None
    notices: Segment | None = None

    def close(self) -> None:
        for each in (self.ring, self.notices):
            if each is not None:
                each.close()


class RegionOpened(msgspec.Struct, frozen=True):
    """Records of a model are in this segment from now on."""

    opened: OpenRegion
    segment: Segment
    marks: Segment | None = None

    def close(self) -> None:
        self.segment.close()
        if self.marks is not None:
            self.marks.close()


class Detached(msgspec.Struct, frozen=True):
    """The connection is gone; nothing more comes until there is another."""

    def close(self) -> None:
        """There is nothing to close."""


class Brought(msgspec.Struct, frozen=True):
    """Events that came on the connection."""

    data: bytes

    def close(self) -> None:
        """There is nothing to close."""


Told: TypeAlias = Attached | RegionOpened | Detached | Brought


class Identity(msgspec.Struct, frozen=True):
    """How the application introduces itself."""

    login: Login
    secret: Secret | None = None
    tls: ssl.SSLContext | None = None


class Wish(msgspec.Struct, frozen=True):
    """One subscription."""

    topics: tuple[str, ...]
    cls: ClassWish = "auto"
    per_second: float = 0.0


class NodeLink:
    """Runs in a loop from run() until its task is cancelled, or a refusal is final. `position` says from which event of
    which epoch on a subscription goes on."""

    def __init__(
        self, address: Address, identity: Identity, wishes: Sequence[Wish], position: Callable[[], tuple[int, int]]
    ) -> None:
        self.token = identity.login.token
        self.inbox: deque[Told] = deque()
        self.arrived = threading.Condition()
        self.failure: PenstockError | None = None
        """Why there will be no connection any more."""
        self.refusal: RefusedError | None = None
        """The last one."""
        self.attached = threading.Event()
        """Set while everything holds that the application wants."""
        self.lost_at = time.monotonic()
        """Since when that is not so."""
        self._address = address
        self._identity = identity
        self._position = position
        self._connection: ControlConnection[ControlMessage] | None = None
        self._task: asyncio.Task[None] | None = None
        self._path = ""
        self._is_welcome = False
        self._waiting: dict[int, asyncio.Future[ControlMessage]] = {}
        self._parts: dict[int, bytes] = {}
        self._wishes = dict(enumerate(wishes, 1))
        self._number = len(self._wishes)

    async def run(self) -> None:
        self._task = asyncio.current_task()
        pause = RECONNECT_S
        while self.failure is None:
            try:
                await self._attach()
                pause = RECONNECT_S
            except RefusedError as error:
                log.warning("node_refused", code=error.peer_code, reason=error.what)
                if error.peer_code in FINAL_CODES:
                    self.failure = error
                self.refusal = error
            except (PenstockError, OSError) as error:
                log.info("node_lost", node=f"{self._address[0]}:{self._address[1]}", error=str(error))
            finally:
                self._detach()
            if self.failure is None:
                await asyncio.sleep(pause)
                pause = min(2 * pause, RECONNECT_MAX_S)

    async def close(self) -> None:
        """End it, and wait until it has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # Requests

    async def change_rate(self, per_second: float) -> float:
        """Of every subscription; the rate that the node grants. While there is none, it is asked for later."""
        granted = per_second
        for number, wish in self._wishes.items():
            self._wishes[number] = msgspec.structs.replace(wish, per_second=per_second)
            if self._connection is not None:
                held = await self._ask(lambda ask, number=number: Modify(ask, number, per_second))  # type: ignore[misc]
                granted = held.per_second if isinstance(held, Held) else granted
        return granted

    async def renew(self, token: str) -> None:
        self.token = token
        if self._connection is not None:
            await self._ask(lambda number: RenewToken(number, token))

    async def restart(self, ring: RingName, last_number: int) -> None:
        """The ring overran us; when this returns it begins anew."""
        await self._ask(lambda number: Overrun(number, last_number, ring))

    async def ask_model(self, model_id: int, version: int) -> str:
        """The document of a model."""
        answer = await self._ask(lambda number: AskModel(number, model_id, version))
        if not isinstance(answer, ModelDocument):
            raise RemoteProtocolError("the node answers with no model")
        return answer.document

    async def snapshot(self, topics: Sequence[str]) -> bytes:
        """DEFINE and REFRESH events of the current records."""
        answer = await self._ask(lambda number: Snapshot(number, list(topics)))
        return self._parts.pop(answer.number, b"") if isinstance(answer, Records) else b""

    # The connection

    async def _attach(self) -> None:
        host, port = self._address
        identity = self._identity
        connection = await connect_control(
            PROTOCOL,
            host,
            port,
            node=identity.login.name,
            secret=identity.secret,
            tls=identity.tls,
            config=CONNECTION,
        )
        async with connection:
            await connection.send(msgspec.structs.replace(identity.login, token=self.token))
            welcome = await connection.receive()
            if isinstance(welcome, Refused):
                raise refusal(welcome)
            if not isinstance(welcome, Welcome):
                raise RemoteProtocolError("the node does not welcome us", where=host)
            self._path = welcome.path
            self._put(await self._opened(welcome))
            self._is_welcome = True
            reading = asyncio.create_task(self._read(connection))
            try:
                await self._introduce(connection, welcome.epoch)
            except ConnectionLostError:
                await reading  # it knows why
                raise
            else:
                await reading
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _opened(self, welcome: Welcome) -> Attached:
        ring = await self._segment(welcome.path, welcome.ring)
        try:
            return Attached(welcome, ring, await self._segment(welcome.path, welcome.notices))
        except BaseException:
            if ring is not None:
                ring.close()
            raise

    async def _segment(self, path: str, name: str) -> Segment | None:
        if not path or not name:
            return None
        return await asyncio.to_thread(receive_segment, path, name, secret=self._identity.secret)

    async def _introduce(self, connection: ControlConnection[ControlMessage], epoch: int) -> None:
        self._connection = connection
        last_number, last_epoch = self._position()
        after = last_number if last_epoch == epoch else 0
        for number, wish in self._wishes.items():
            await self._answered(
                number, Subscribe(number, list(wish.topics), wish.cls, wish.per_second, after, epoch if after else 0)
            )
        self.attached.set()
        log.info("node_attached", node=f"{self._address[0]}:{self._address[1]}")

    async def _ask(self, question: Callable[[int], ControlMessage]) -> ControlMessage:
        """Say something numbered and wait for its answer; a refusal is raised."""
        self._number += 1
        return await self._answered(self._number, question(self._number))

    async def _answered(self, number: int, question: ControlMessage) -> ControlMessage:
        connection = self._connection
        if connection is None:
            raise ConnectionLostError("the node is gone")
        answer: asyncio.Future[ControlMessage] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            await connection.send(question)
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def _read(self, connection: ControlConnection[ControlMessage]) -> None:
        try:
            async for said in connection:
                if isinstance(said, Refused) and not said.number:
                    raise refusal(said)
                await self._hear(said)
            raise ConnectionLostError("the node said goodbye")
        finally:
            for each in self._waiting.values():
                if not each.done():
                    each.set_exception(ConnectionLostError("the node is gone"))

    async def _hear(self, said: ControlMessage) -> None:
        match said:
            case Events():
                while len(self.inbox) >= EVENTS_WAITING_MAX and not self._waiting:  # answers do not wait
                    await asyncio.sleep(ROOM_LOOK_S)
                self._put(Brought(said.data))
            case OpenRegion():
                segment = await self._segment(self._path, said.segment)
                if segment is None:
                    raise RemoteProtocolError("the node opens a region that has no name")
                try:
                    self._put(RegionOpened(said, segment, await self._segment(self._path, said.marks)))
                except BaseException:
                    segment.close()
                    raise
            case Records():
                self._parts[said.number] = self._parts.get(said.number, b"") + said.data
                if said.is_last:
                    self._answer(said.number, said)
            case Held() | Restarted() | ModelDocument() | Refused():
                self._answer(said.number, said)
            case _:
                raise RemoteProtocolError(f"the node says {type(said).__name__}, which is not for us")

    def _answer(self, number: int, said: ControlMessage) -> None:
        answer = self._waiting.get(number)
        if answer is None or answer.done():
            return
        if isinstance(said, Refused):
            answer.set_exception(refusal(said))
        else:
            answer.set_result(said)

    def _detach(self) -> None:
        self._connection = None
        self._parts.clear()
        if self.attached.is_set():
            self.attached.clear()
            self.lost_at = time.monotonic()
        if self._is_welcome:
            self._is_welcome = False
            self._put(Detached())

    def _put(self, told: Told) -> None:
        if len(self.inbox) >= INBOX_MAX and not isinstance(told, Detached):
            told.close()
            raise LimitError(f"the node said {INBOX_MAX} things that nobody has heard yet")
        with self.arrived:
            self.inbox.append(told)
            self.arrived.notify_all()


def refusal(said: Refused) -> RefusedError:
    return RefusedError(f"the node refuses: {said.reason}", peer_code=said.code)
