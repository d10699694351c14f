"""WebSockets of the console: their admission and end, and the one for watching pages."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from penstock.base.counters import Cause
from penstock.base.errors import TokenError
from penstock.base.log import logger
from penstock.web.live.news import NEWS_KEPT, News
from penstock.web.live.service import ConsoleService
from penstock.web.live.sessions import Session

GOING_AWAY = 1001
GARBAGE, NO_SESSION, FORBIDDEN, SLOW, TOO_MANY, NO_AGENT = 4400, 4401, 4403, 4408, 4429, 4503
"""Close codes (docs/reference/protocol/console.md)."""

Talk: TypeAlias = Callable[["BrowserConnection"], Awaitable[None]]
log = logger("console.socket")


class Closing(Exception):
    """Raised to end a WebSocket with this code."""

    def __init__(self, close_code: int, reason: str) -> None:
        super().__init__(reason)
        self.close_code = close_code


class BrowserConnection:
    """One open WebSocket of a session."""

    def __init__(self, socket: WebSocket, session: Session, stuck_s: float) -> None:
        self.session = session
        self._socket = socket
        self._stuck_s = stuck_s
        self._lock = asyncio.Lock()

    async def send(self, document: msgspec.Struct) -> None:
        await self.send_text(msgspec.json.encode(document).decode())

    async def send_text(self, text: str) -> None:
        """Send a text. Waits while the browser does not read, up to a limit."""
        await self._sent(lambda: self._socket.send_text(text))

    async def send_bytes(self, data: bytes) -> None:
        await self._sent(lambda: self._socket.send_bytes(data))

    async def receive(self) -> str | bytes:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text: str | None = message.get("text")
        return text if text is not None else message.get("bytes", b"")

    async def _sent(self, send: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(self._stuck_s), self._lock:
                await send()
        except TimeoutError:
            raise Closing(SLOW, f"nothing could be sent for {self._stuck_s:g} s") from None


class WebSocketListener:
    """Serves /ws/watch, and opens all WebSockets of the console after checking the session."""

    def __init__(self, service: ConsoleService) -> None:
        self._service = service

    async def watch(self, socket: WebSocket) -> None:
        await self.open(socket, self._watch)

    async def open(self, socket: WebSocket, talk: Talk, subprotocol: str | None = None) -> None:
        """Run `talk` with a browser that has a session, until either side or the session ends."""
        service = self._service
        await socket.accept(subprotocol)
        try:
            session = service.session(socket.cookies)
        except TokenError as error:
            await self._close(socket, NO_SESSION, error.what)
            return
        if len(session.sockets) >= service.config.limits.sockets_max:
            service.counters.add("connections_refused", cause=Cause.CONNECTION_LIMIT)
            await self._close(socket, TOO_MANY, "this session has too many connections")
            return
        talking = asyncio.ensure_future(talk(BrowserConnection(socket, session, service.config.limits.stuck_s)))
        session.sockets.add(talking.cancel)
        service.counters.add("connections_opened")
        try:
            await talking
        except Closing as closing:
            log.info("closed", client=session.client, why=str(closing), close_code=closing.close_code)
            await self._close(socket, closing.close_code, str(closing))
        except WebSocketDisconnect:
            log.debug("left", client=session.client)
        except asyncio.CancelledError:
            if not session.is_over:
                raise
            if service.is_closing:
                await self._close(socket, GOING_AWAY, "the console ends")
            else:
                await self._close(socket, NO_SESSION, "the session is over")
        finally:
            session.sockets.discard(talking.cancel)
            service.counters.add("connections_closed", cause=Cause.CLOSED)

    async def _close(self, socket: WebSocket, code: int, reason: str) -> None:
        """Send the reason, if the browser reads it; the connection ends in any case."""
        if socket.application_state is WebSocketState.CONNECTED:
            # the browser has disconnected already
            with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
                async with asyncio.timeout(self._service.config.limits.stuck_s):
                    await socket.close(code, reason[:120])

    async def _watch(self, connection: BrowserConnection) -> None:
        service = self._service
        await first_of(
            self._tell_pictures(connection),
            self._tell_news(connection, service.watcher.infos),
            self._tell_news(connection, service.action_log.news, lambda: connection.session.is_operator),
            refuse_input(connection),
        )

    async def _tell_news(
        self, connection: BrowserConnection, news: News[Any], may_see: Callable[[], bool] = lambda: True
    ) -> None:
        number = max(0, news.number - NEWS_KEPT)
        while True:
            lines = await news.wait_newer(number)
            number = news.number
            for line in lines:
                if may_see():
                    await connection.send(line)

    async def _tell_pictures(self, connection: BrowserConnection) -> None:
        number = 0
        while True:
            picture = await self._service.watcher.wait_newer(number)
            number = picture.number
            await connection.send(self._service.shown(picture, connection.session))


async def first_of(*talks: Awaitable[None]) -> None:
    """Run until one of these ends or fails; the others are cancelled."""
    tasks = [asyncio.ensure_future(talk) for talk in talks]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def refuse_input(connection: BrowserConnection) -> None:
    """End the WebSocket of a watching page that sends a message."""
    await connection.receive()
    raise Closing(GARBAGE, "this WebSocket accepts no messages")
