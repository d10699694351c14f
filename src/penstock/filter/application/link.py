"""An application's control connection to its filter module, in an asyncio loop: made, kept, and made again.

What the filter says goes into `inbox`, in its order, for the thread that receives packets.
"""

import asyncio
import itertools
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from penstock.base.backoff import Backoff
from penstock.base.clock import SystemRandomness
from penstock.base.errors import ConnectionLostError, LimitError, PenstockError, RefusedError, RemoteProtocolError
from penstock.base.log import logger
from penstock.base.segment import Segment
from penstock.filter.application.wishes import Wishes
from penstock.filter.control import (
    CONNECTION,
    PROTOCOL,
    Collided,
    ControlMessage,
    Ended,
    Holds,
    Interests,
    Models,
    Position,
    RefusalCode,
    Refused,
    Register,
    Registered,
    RenewToken,
    Restarted,
    RestartRing,
    Want,
)
from penstock.net.control_driver import ControlConnection, connect_control
from penstock.net.handover import await_segment
from penstock.net.secret import Secret
from penstock.net.stream import is_loopback
from penstock.net.udp import Address, Channel, group_socket, host_socket

log = logger("filter.link")

INBOX_MAX = 65_536

FINAL_CODES = frozenset(
    {
        RefusalCode.REVOKED, RefusalCode.ENTITLEMENT, RefusalCode.CONTROLLER, RefusalCode.HOST, RefusalCode.DELIVERY,
        RefusalCode.INTEREST, RefusalCode.CONDITION, RefusalCode.MODEL, RefusalCode.CHANNEL, RefusalCode.PROTOCOL,
    }
)  # fmt: skip
"""Refusals that another attempt would not change."""


class Attachment(msgspec.Struct, frozen=True):
    """The filter knows us: where packets come from, and what they come by besides our own socket."""

    registered: Registered
    group: socket.socket | None = None
    segment: Segment | None = None
    asking: socket.socket | None = None
    """For requests to publishers, where our own socket is on this machine alone."""

    def close(self) -> None:
        for each in (self.group, self.segment, self.asking):
            if each is not None:
                each.close()


class Detached(msgspec.Struct, frozen=True):
    """The connection is gone; nothing more comes until there is another."""


Told: TypeAlias = Attachment | Detached | Position | Ended | Collided | Restarted


class Identity(msgspec.Struct, frozen=True):
    """How the application introduces itself."""

    register: Register
    interface: str
    """The address of the interface by which the filter is reached."""

    secret: Secret | None = None
    tls: ssl.SSLContext | None = None


class FilterLink:
    """Runs in a loop from run() until its task is cancelled, or a refusal is final. `arrived` is for whoever waits for
    the inbox; `on_news` is called besides, in the loop's thread."""

    def __init__(
        self,
        address: Address,
        identity: Identity,
        wishes: Wishes,
        documents: Callable[[], Sequence[str]],
        on_news: Callable[[], None],
        on_refused: Callable[[RefusedError], None],
    ) -> None:
        self.token = identity.register.token
        self.application_id = identity.register.application_id
        """The same on every connection, also when the filter has chosen it."""
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
        self._wishes = wishes
        self._documents = documents
        self._on_news = on_news
        self._on_refused = on_refused
        self._connection: ControlConnection[ControlMessage] | None = None
        self._task: asyncio.Task[None] | None = None
        self._number = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def run(self) -> None:
        self._task = asyncio.current_task()
        backoff = Backoff(SystemRandomness())
        while self.failure is None:
            lost: Exception | None = None
            try:
                await self._attach()
            except RefusedError as error:
                log.warning("filter_refused", code=error.peer_code, reason=error.what)
                if error.peer_code in FINAL_CODES:
                    self.failure = error
                self.refusal = error
                self._on_refused(error)
            except (PenstockError, OSError) as error:
                lost = error
                log.info("filter_lost", filter=f"{self._address[0]}:{self._address[1]}", error=str(error))
            finally:
                if self.attached.is_set():
                    backoff.succeeded()
                self._detach()
            if self.failure is None:
                await asyncio.sleep(backoff.next_seconds(lost))

    async def close(self) -> None:
        """End it, and wait until it has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def change(self, add: Sequence[Interests] = (), remove: Sequence[Interests] = ()) -> bool:
        """Whether the filter holds to it now; else it is asked for it with everything else when it is back."""
        if self._connection is None:
            return False
        try:
            for part in itertools.zip_longest(add, remove):  # what is new is asked for before what is not wanted goes
                more, less = ([] if each is None else [each] for each in part)
                await self._ask(lambda number, more=more, less=less: Want(number, more, less))  # type: ignore[misc]
        except ConnectionLostError:
            return False
        return True

    async def learn(self, documents: Sequence[str]) -> None:
        if self._connection is not None and documents:
            await self._ask(lambda number: Models(number, list(documents)))

    async def renew(self, token: str) -> None:
        self.token = token
        if self._connection is not None:
            await self._ask(lambda number: RenewToken(number, token))

    async def restart_ring(self) -> None:
        if self._connection is not None:
            await self._ask(RestartRing)

    async def _attach(self) -> None:
        host, port = self._address
        identity = self._identity
        connection = await connect_control(
            PROTOCOL,
            host,
            port,
            node=identity.register.application,
            secret=identity.secret,
            tls=identity.tls,
            config=CONNECTION,
        )
        async with connection:
            register = msgspec.structs.replace(identity.register, token=self.token, application_id=self.application_id)
            await connection.send(register)
            registered = await connection.receive()
            if isinstance(registered, Refused):
                raise refusal(registered)
            if not isinstance(registered, Registered):
                raise RemoteProtocolError("the filter does not register us", where=host)
            self.application_id = registered.application_id
            self._put(await self._opened(registered))
            reading = asyncio.create_task(self._read(connection))
            try:
                await self._introduce(connection)
            except ConnectionLostError:
                await reading  # it knows why
                raise
            else:
                await reading
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _opened(self, registered: Registered) -> Attachment:
        """What packets come by, which must be there before they do."""
        if registered.delivery == "ring":
            segment = await await_segment(registered.path, registered.segment, secret=self._identity.secret)
            attachment = Attachment(registered, segment=segment)
        elif registered.group:
            channel = Channel(
                group=registered.group, port=registered.group_port, interface=self._network_interface(registered)
            )
            attachment = Attachment(registered, group=group_socket(channel))
        else:
            attachment = Attachment(registered)
        return self._with_asking(attachment)

    def _with_asking(self, attachment: Attachment) -> Attachment:
        interface = self._network_interface(attachment.registered)
        if attachment.registered.repair == "filter" or interface == self._identity.interface:
            return attachment
        try:
            return msgspec.structs.replace(attachment, asking=host_socket(interface))
        except PenstockError:
            attachment.close()
            raise

    def _network_interface(self, registered: Registered) -> str:
        """By which the filter sends and publishers are reached. A filter that is reached on this machine's own address
        is on this machine, so its interface is ours."""
        return registered.host if is_loopback(self._identity.interface) else self._identity.interface

    async def _introduce(self, connection: ControlConnection[ControlMessage]) -> None:
        self._connection = connection  # from here on changes are told at once
        await self.learn(self._documents())
        for each in self._wishes.said():
            await self._ask(lambda number, each=each: Want(number, add=[each]))  # type: ignore[misc]
        self.attached.set()
        log.info("filter_attached", filter=f"{self._address[0]}:{self._address[1]}")

    async def _ask(self, question: Callable[[int], ControlMessage]) -> None:
        """Say something numbered and wait for its answer; a refusal is raised."""
        connection = self._connection
        if connection is None:
            raise ConnectionLostError("the filter is gone")
        self._number += 1
        number = self._number
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await connection.send(question(number))
            await answer
        finally:
            self._waiting.pop(number, None)

    async def _read(self, connection: ControlConnection[ControlMessage]) -> None:
        try:
            async for said in connection:
                if isinstance(said, Refused) and not said.number:
                    raise refusal(said)
                self._hear(said)
            raise ConnectionLostError("the filter said goodbye")
        finally:
            for each in self._waiting.values():
                if not each.done():
                    each.set_exception(ConnectionLostError("the filter is gone"))

    def _hear(self, said: ControlMessage) -> None:
        answer = self._waiting.get(said.number) if isinstance(said, Holds | Restarted | Refused) else None
        if isinstance(said, Position | Ended | Collided | Restarted):
            if len(self.inbox) >= INBOX_MAX:
                raise LimitError(f"the filter said {INBOX_MAX} things that nobody has heard yet")
            self._put(said)
        if answer is not None and not answer.done():
            if isinstance(said, Refused):
                answer.set_exception(refusal(said))
            else:
                answer.set_result(None)

    def _detach(self) -> None:
        self._connection = None
        if self.attached.is_set():
            self.attached.clear()
            self.lost_at = time.monotonic()
        self._put(Detached())

    def _put(self, told: Told) -> None:
        with self.arrived:
            self.inbox.append(told)
            self.arrived.notify_all()
        self._on_news()


def refusal(said: Refused) -> RefusedError:
    return RefusedError(f"the filter refuses: {said.reason}", peer_code=said.code)
