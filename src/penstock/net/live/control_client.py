"""The client side of a control connection, in an asyncio loop: connects, logs in, and reconnects.

    dial and handshake ─► log_in() ─► resume() ─► attached: requests, answers, messages ─► lost() ─► back-off ─┐
           ▲                                                                                                  │
           └──────────────────────────────────────────────────────────────────────────────────────────────────┘

The clients of nodes (engine/live/link.py) and filter modules (filter/client/link.py) share this driver. A subclass logs
in, and repeats its subscriptions on a new connection. Requests have numbers, which their answers repeat.
"""

import asyncio
import ssl
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.base.backoff import Backoff
from penstock.base.clock import SystemRandomness
from penstock.base.errors import (
    ConnectionLostError,
    PenstockError,
    RefusedError,
    RemoteProtocolError,
    UnreachableError,
)
from penstock.base.log import Logger
from penstock.net.config import ControlConfig
from penstock.net.core.client_session import RequestNumbers
from penstock.net.core.control import ControlProtocol, Refused
from penstock.net.live.control_driver import ControlConnection, connect_control
from penstock.net.live.dialling import Redialling
from penstock.net.secret import Secret
from penstock.net.udp import Address

M = TypeVar("M")
A = TypeVar("A")

ROUTINE_SECONDS = 10.0
"""After the start of a link, refusals of a server that is itself about to start are routine for this time."""


class ControlClient(Generic[M]):
    """Runs in a loop from run() until close(), or until a final refusal. The coroutines belong to that loop.
    `server` is the kind of server in logs and errors: node, filter."""

    def __init__(
        self,
        protocol: ControlProtocol[M],
        address: Address,
        *,
        node: str,
        server: str,
        secret: Secret | None,
        tls: ssl.SSLContext | None,
        config: ControlConfig,
        log: Logger,
    ) -> None:
        self.failure: PenstockError | None = None
        """The error that prevents any further connection."""
        self.trouble: PenstockError | None = None
        """The reason why the last connection ended, or could not be made."""
        self.attached = threading.Event()
        """Set while the server has confirmed all requests of resume()."""
        self.address = address
        self.connection: ControlConnection[M] | None = None
        """Set while requests can be made."""
        self._protocol = protocol
        self._node = node
        self._server = server
        self._secret = secret
        self._tls = tls
        self._config = config
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._routine_until = 0.0  # on the monotonic clock
        self._numbers = RequestNumbers(self.is_used)
        self._requests: dict[int, asyncio.Queue[M | PenstockError]] = {}

    @property
    def where(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    async def run(self) -> None:
        self._task = asyncio.current_task()
        self._routine_until = time.monotonic() + ROUTINE_SECONDS
        async for attempt in Redialling(Backoff(SystemRandomness()), self._report):
            try:
                with attempt:
                    await self._attach(attempt)
            except BaseException:  # cancelled, or failed
                self.trouble = ConnectionLostError("the link was closed")
                raise
            finally:
                self._detach()
            if self.failure is not None:
                return

    async def close(self) -> None:
        """End the connection and wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # To be implemented by a subclass

    async def log_in(self, connection: ControlConnection[M]) -> None:
        """Send the first message and handle its answer (first_answer())."""
        raise NotImplementedError

    async def resume(self) -> None:
        """Repeat all requests whose effect the server should keep."""
        raise NotImplementedError

    async def take(self, message: M) -> None:
        """Handle a message that is not an answer. Later messages wait until this returns."""
        raise NotImplementedError

    async def read_message(self, message: M, connection: ControlConnection[M]) -> None:
        """Handle a message: an answer goes to its request, any other message to take()."""
        if isinstance(message, Refused) and not message.number:
            raise self.refusal(message)
        if not self.answer(message):
            await self.take(message)

    def answer(self, message: M) -> bool:
        """Pass an answer to its request, if that still waits. Return False if the message is not an answer."""
        raise NotImplementedError

    def is_final(self, error: RefusedError) -> bool:
        """True if another attempt would be refused too."""
        raise NotImplementedError

    def note_refusal(self, error: RefusedError) -> None:
        """The server has refused this client, or ended something."""
        is_routine = not self.is_final(error) and time.monotonic() < self._routine_until
        say = self._log.info if is_routine else self._log.warning
        say(f"{self._server}_refused", **{self._server: self.where}, code=error.peer_code, reason=error.what)

    def lost(self, error: PenstockError) -> None:
        """The connection was lost, or could not be made."""
        raise NotImplementedError

    def is_used(self, number: int) -> bool:
        """True if a new request cannot have this number."""
        return number in self._requests

    def refusal(self, message: Refused) -> RefusedError:
        return RefusedError(f"the {self._server} refuses: {message.reason}", peer_code=message.code)

    # The connection

    def _report(self, error: PenstockError, _: bool) -> None:
        self.trouble = error
        if isinstance(error, RefusedError):
            if self.is_final(error):
                self.failure = error
            self.note_refusal(error)
        else:
            self._log.info(f"{self._server}_lost", **{self._server: self.where}, error=str(error))

    async def _attach(self, attempt: Redialling) -> None:
        try:
            await self._converse(attempt)
        except OSError as error:
            raise ConnectionLostError(str(error)) from error

    async def _converse(self, attempt: Redialling) -> None:
        host, port = self.address
        connection = await connect_control(
            self._protocol, host, port, node=self._node, secret=self._secret, tls=self._tls, config=self._config
        )
        async with connection:
            await self.log_in(connection)
            reading = asyncio.create_task(self._read(connection))
            try:
                self.connection = connection  # requests may be sent from here on
                await self.resume()
                self.attached.set()
                attempt.succeeded()
                self._log.info(f"{self._server}_attached", **{self._server: self.where})
            except ConnectionLostError:
                await reading  # raises the error of the connection
                raise
            else:
                await reading
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def first_answer(self, connection: ControlConnection[M], login: M, kind: type[A]) -> A:
        """Send the first message and return its answer. Raise an error if the answer has another type."""
        await connection.send(login)
        answer = await connection.receive()
        if isinstance(answer, Refused):
            raise self.refusal(answer)
        if not isinstance(answer, kind):
            raise RemoteProtocolError(f"the {self._server} did not answer with {kind.__name__}", where=self.where)
        return answer

    async def _read(self, connection: ControlConnection[M]) -> None:
        error: PenstockError = ConnectionLostError(f"the {self._server} is gone")
        try:
            async for message in connection:
                await self.read_message(message, connection)
            raise ConnectionLostError(f"the {self._server} closed the session")
        except PenstockError as caught:
            error = caught
            raise
        finally:
            for each in self._requests.values():
                each.put_nowait(ConnectionLostError(error.what))

    def _detach(self) -> None:
        self.connection = None
        self.attached.clear()
        self.lost(self.trouble or ConnectionLostError("the link was closed"))

    # Requests. A refusal raises RefusedError with its code as peer_code

    async def ask(self, question: Callable[[int], M], kind: type[A]) -> A:
        """Send a request and return its answer."""
        async with self.request(question) as answers:
            return await answers.get(kind)

    def request(self, question: Callable[[int], M], number: int = 0) -> "Request[M]":
        """Prepare a request with several answers. Raise UnreachableError if there is no connection."""
        if self.connection is None:
            raise UnreachableError(f"the {self._server} is not connected", where=self.where)
        number = number or self.next_number()
        return Request(self.connection, self._requests, number, question(number), self.refusal)

    def next_number(self) -> int:
        return self._numbers.next()

    def give_answer(self, number: int, message: M) -> None:
        """Pass an answer to the request of this number, if that still waits."""
        if (waiting := self._requests.get(number)) is not None:
            waiting.put_nowait(message)


class Request(Generic[M]):
    """One request, from its message to its last answer."""

    def __init__(
        self,
        connection: ControlConnection[M],
        requests: "dict[int, asyncio.Queue[M | PenstockError]]",
        number: int,
        message: M,
        refusal: Callable[[Refused], RefusedError],
    ) -> None:
        self._connection = connection
        self._requests = requests
        self._number = number
        self._message = message
        self._refusal = refusal
        self._answers: asyncio.Queue[M | PenstockError] = asyncio.Queue()

    async def __aenter__(self) -> "Request[M]":
        self._requests[self._number] = self._answers
        try:
            await self._connection.send(self._message)
        except BaseException:
            self._requests.pop(self._number, None)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._requests.pop(self._number, None)

    async def get(self, kind: type[A]) -> A:
        """Return the next answer."""
        answer = await self._answers.get()
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, Refused):
            raise self._refusal(answer)
        if isinstance(answer, PenstockError):
            raise answer
        raise RemoteProtocolError(f"the server answered with {type(answer).__name__}")
