"""The control connections of a node: one driver for the servers of nodes and filter modules.

    handshake ─► first message, in time ─► admission ─► attach ─► requests and answers ─► detach
                        │                     │           │              │
                        └──── Refused without a number: the connection ends

A subclass handles the first message and implements attaching, requests and detaching. A connection also ends when the
rights of its party expire or are revoked (end()).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from penstock.base.errors import PenstockError
from penstock.net.core.control import ControlProtocol
from penstock.net.live.admission import Admission
from penstock.net.live.control_driver import ControlServer
from penstock.net.live.outbox import Outbox, converse
from penstock.runtime.access import revoke, watch_expiry
from penstock.runtime.service_settings import ServiceSettings
from penstock.security.core.access_control import AccessControl, P
from penstock.security.core.refusal import RefusalError, Refusals, check_number

LOGIN_SECONDS = 10.0
"""Time limit for the first message, counted from the end of the handshake."""

T = TypeVar("T")
M = TypeVar("M")
R = TypeVar("R")


class Connection(Protocol[M]):
    """A control connection to a peer, or a WebSocket that carries the same messages."""

    @property
    def address(self) -> str: ...

    @property
    def is_over(self) -> bool: ...

    @property
    def transport(self) -> asyncio.WriteTransport: ...

    async def send(self, message: M, /) -> None: ...

    async def receive(self) -> M | None: ...

    def __aiter__(self) -> AsyncIterator[M]: ...


class DataThreadCalls(Protocol):
    """The part of a node that runs in its data thread."""

    def ask(self, question: Callable[[], T]) -> "Future[T]": ...


class ServiceTexts(NamedTuple):
    """Names and texts that differ between services."""

    peer: str
    """The kind of peer, as it appears in logs and counters: consumer, application."""

    first: str
    """Error text for a wrong first message."""

    stopping: str
    """Error text for parties that are connected when the node stops."""

    stopping_code: str = "stopping"
    limit_code: str = "limit"
    protocol_code: str = "protocol"


class ControlService(Generic[M, R, P]):
    """M are the messages of the protocol, R the refusals among them, P the admitted peers. Serves peers from start()
    until close()."""

    def __init__(
        self,
        protocol: ControlProtocol[M],
        access: AccessControl[P],
        refusals: Refusals[R],
        data: DataThreadCalls,
        texts: ServiceTexts,
        settings: ServiceSettings,
        *,
        outbox_max: int,
    ) -> None:
        self.access = access
        self.counters = settings.counters
        self.outboxes: dict[int, Outbox[Any]] = {}  # by party
        self._refusals = refusals
        self._data_thread = data
        self._texts = texts
        self._outbox_max = outbox_max
        self._log = settings.log
        self._admission: Admission[Outbox[Any], R] = Admission(
            refusals,
            Outbox.end,
            self._protocol_error,
            party=texts.peer,
            counter=f"{texts.peer}s_refused",
            counters=settings.counters,
            log=settings.log,
        )
        self.server = ControlServer(
            protocol,
            self.converse_with,
            node=settings.node,
            host=settings.control.host,
            port=settings.control.port,
            secret=settings.secret,
            tls=settings.tls,
            config=settings.limits,
            counters=settings.counters,
            through=settings.through,
        )

    @property
    def port(self) -> int:
        return self.server.port

    async def start(self) -> None:
        await self.server.start()

    # To be implemented by a subclass

    async def begin(self, connection: Connection[M], outbox: Outbox[Any], first: M) -> bool:
        """Handle the first message: admit a party and serve() it. Return False if this message cannot be the first
        one."""
        raise NotImplementedError

    async def attach(self, party: P, connection: Connection[M], outbox: Outbox[Any]) -> None:
        """Announce the admitted party to the data path, and answer its first message."""
        raise NotImplementedError

    async def detach(self, party: P) -> None:
        """Remove a party after its connection has ended for any reason. The party's name stays taken until this
        returns."""
        raise NotImplementedError

    def cut_off(self, party: P) -> None:
        """Stop sending data to the party now; its connection may take some time to end."""
        raise NotImplementedError

    async def answer(self, party: P, request: M) -> Sequence[M]:
        """Carry out a numbered request and return the answers. A RefusalError with `is_final` ends the connection."""
        raise NotImplementedError

    async def take(self, party: P, message: M, outbox: Outbox[Any]) -> None:
        """Handle a message after the first one as a numbered request. A subclass may handle other messages itself."""
        number = getattr(message, "number", 0)
        try:
            check_number(number)
            for each in await self.answer(party, message):
                outbox.put(each)
        except PenstockError as error:
            self.counters.add("requests_refused", cause=self._refusals.code_of(error))
            if self._refusals.is_final(error):
                raise self._refusals.final(error) from None
            outbox.put(self._refusals.of(error, number))

    # Calls from other parts, in the thread of the loop

    def tell(self, number: int, message: M) -> None:
        """Send a message to a party that is connected."""
        if (outbox := self.outboxes.get(number)) is not None:
            outbox.put(message)

    def end(self, party: P, error: PenstockError) -> None:
        """End the connection of this party."""
        self._log.warning(f"{self._texts.peer}_ended", **self._named(party.name), code=error.code, why=str(error))
        if (outbox := self.outboxes.get(party.number)) is not None:
            outbox.end(self._refusals.of(error))
            self.cut_off(party)

    def revoke(self, subscription_id: str, reason: str) -> None:
        revoke(self.access, subscription_id, reason, self.end)

    async def watch_rights(self) -> None:
        await watch_expiry(self.access, self.end)

    async def close(self) -> None:
        for outbox in self.open_outboxes():
            outbox.end(self._refusals.of(RefusalError(self._texts.stopping_code, self._texts.stopping)))
        await self.server.close()

    def open_outboxes(self) -> list[Outbox[Any]]:
        return list(self.outboxes.values())

    # One connection

    async def converse_with(self, connection: Connection[M]) -> None:
        """Serve a connection from its first message to its end."""
        too_slow = f"the {self._texts.peer} reads its control messages too slowly"
        refusal = self._refusals.of(RefusalError(self._texts.limit_code, too_slow))
        outbox: Outbox[Any] = Outbox(self._outbox_max, "end", too_slow=refusal)
        await converse(connection, outbox, self._read(connection, outbox))

    async def _read(self, connection: Connection[M], outbox: Outbox[Any]) -> None:
        self._admission.expect(outbox, LOGIN_SECONDS, address=connection.address)
        with contextlib.suppress(PenstockError):  # the connection logs why it ended
            try:
                first = await connection.receive()
            finally:
                self._admission.arrived(outbox)
            if first is not None and not await self.begin(connection, outbox, first):
                error = self._protocol_error(self._texts.first)
                self._admission.refuse(outbox, error, address=connection.address)

    def _protocol_error(self, what: str) -> RefusalError:
        return RefusalError(self._texts.protocol_code, what)

    async def serve(self, connection: Connection[M], outbox: Outbox[Any], party: P) -> None:
        """Serve an admitted party until its connection ends."""
        self.outboxes[party.number] = outbox
        try:
            try:
                await self.attach(party, connection, outbox)
            except PenstockError as error:
                raise self._refusals.final(error) from None
            self.counters.add(f"{self._texts.peer}s_attached")
            async for message in connection:
                await self.take(party, message, outbox)
        except RefusalError as error:
            self.refuse(outbox, party.name, error)
        finally:
            await asyncio.shield(self._detach(party))

    async def _detach(self, party: P) -> None:
        with contextlib.suppress(PenstockError):  # the node has stopped and every party is detached
            await self.detach(party)
        self.outboxes.pop(party.number, None)
        self.access.leave(party.number)
        self._log.info(f"{self._texts.peer}_detached", **self._named(party.name))

    def refuse(self, outbox: Outbox[Any], name: str, error: PenstockError) -> None:
        """Refuse a party and end its connection."""
        self._admission.refuse(outbox, error, **self._named(name))

    def _named(self, name: str) -> dict[str, str]:
        return {self._texts.peer: name}

    async def ask(self, question: Callable[[], T]) -> T:
        """Run the function in the data thread and return its result."""
        return await asyncio.wrap_future(self._data_thread.ask(question))
