"""A client's connections to the stream services of a feed's adapters: one for each address, re-established after a
loss.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.base.errors import PenstockError, RefusedError
from penstock.base.log import logger
from penstock.client.config import ClientConfig
from penstock.client.service import Protection, opened_stream, places
from penstock.middleware.unicast import OpenStream, StreamOpened, UnicastMessage
from penstock.net.live.control_driver import ControlConnection
from penstock.net.live.dialling import Redialling
from penstock.security.core.brokering import StreamAddress

log = logger("client.adapters")


class Serve(Protocol):
    """Uses a connection until it ends. A RefusedError says that the adapter has ended the stream."""

    async def __call__(
        self,
        address: StreamAddress,
        connection: ControlConnection[UnicastMessage],
        request: OpenStream,
        opened: StreamOpened,
    ) -> None: ...


class _FinalRefusalError(Exception):
    """Ends the attempts to connect."""


class AdapterConnections:
    """Used in one loop, from the first follow() to the last one, which names no adapter.

    `request` opens a stream. `refused` returns True if another attempt would be refused as well. `lost` is called when
    a connection is lost or cannot be established.
    """

    def __init__(
        self,
        protection: Protection,
        config: ClientConfig,
        node: str,
        *,
        request: Callable[[], OpenStream],
        serve: Serve,
        refused: Callable[[StreamAddress, RefusedError], bool],
        lost: Callable[[StreamAddress, PenstockError], None],
    ) -> None:
        self.open: dict[StreamAddress, ControlConnection[UnicastMessage]] = {}
        """The connections whose stream is open."""

        self._protection = protection
        self._config = config
        self._node = node
        self._request = request
        self._serve = serve
        self._refused = refused
        self._lost = lost
        self._tasks: dict[StreamAddress, asyncio.Task[None]] = {}

    @property
    def followed(self) -> set[StreamAddress]:
        return set(self._tasks)

    async def follow(
        self, addresses: Sequence[StreamAddress], left: Callable[[StreamAddress], None] = lambda address: None
    ) -> None:
        """Connect to exactly these adapters; `left` is called for each adapter that is no longer followed."""
        wanted = places(addresses)
        for address in [each for each in self._tasks if each not in wanted]:
            task = self._tasks.pop(address)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            left(address)
        for address in wanted:
            if address not in self._tasks:
                self._tasks[address] = asyncio.create_task(self._stay_connected(address))

    async def send(self, message: UnicastMessage) -> None:
        """Send a message on every connection with an open stream."""
        for address, connection in list(self.open.items()):
            try:
                await connection.send(message)
            except PenstockError as error:  # its own task gets the error, too
                log.debug("message_not_sent", adapter=address.adapter, error=str(error))

    async def _stay_connected(self, address: StreamAddress) -> None:
        def report(error: PenstockError, is_news: bool) -> None:
            if not isinstance(error, RefusedError):
                self._lost(address, error)
            elif self._refused(address, error):
                raise _FinalRefusalError

        try:
            async for attempt in Redialling(self._config.new_backoff(), report):
                with attempt:
                    await self._use(address, attempt)
        except _FinalRefusalError:
            return

    async def _use(self, address: StreamAddress, attempt: Redialling) -> None:
        request = self._request()
        async with opened_stream(address, self._protection, self._node, request) as (connection, opened):
            self.open[address] = connection
            attempt.succeeded()
            try:
                await self._serve(address, connection, request, opened)
            finally:
                del self.open[address]
