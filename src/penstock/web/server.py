"""The console as a running server, in the loop of its process.

console = ConsoleServer(Plant.load(path), config)
await console.start()
console.url                      # "http://127.0.0.1:7430"
await console.run(stop)
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from penstock.admin.live.driver import check_tls, listening
from penstock.admin.live.http import prompt_http
from penstock.base.counters import Cause, Counters
from penstock.base.errors import ConfigurationError
from penstock.base.log import logger
from penstock.net.live.agent import stopped_or_failed
from penstock.net.live.stream import keep_little_unsent
from penstock.net.page_access import page_token
from penstock.node.console_config import ConsoleConfig
from penstock.node.plant import Plant
from penstock.web.app import ConsoleApp
from penstock.web.guard import Guard
from penstock.web.service import ConsoleService

STOP_S = 3
PING_S = 20.0
POLL_S = 0.02
RESET = struct.pack("ii", 1, 0)

log = logger("console")


class _WebSocket(WebSocketsSansIOProtocol):
    """Ends with what is done on it: a browser that does not take the last bytes is not waited for longer than this."""

    def __init__(self, *arguments: Any, linger_s: float, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._linger_s = linger_s

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self.loop.call_later(self._linger_s, self._cut_off)

    def _cut_off(self) -> None:
        if not self.disconnected:
            plain: socket.socket = self.transport.get_extra_info("socket")
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)  # else the kernel would go on trying
            self.transport.abort()


class _Server(uvicorn.Server):
    """Signals are its process' own business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ConsoleServer:
    """`port` is known after start(), also when the configuration said 0."""

    def __init__(self, plant: Plant, config: ConsoleConfig) -> None:
        self.config = config
        self.port = 0
        self._plant = plant
        self._service: ConsoleService | None = None
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"{'https' if self.config.certificate else 'http'}://{host}:{self.port}"

    async def start(self) -> None:
        """Returns when requests are answered, or raises what is wrong."""
        config = self.config
        check_tls(config.certificate, config.private_key)
        token = page_token(config.metrics_access)
        self._socket = listening(config.host, config.port)
        keep_little_unsent(self._socket)
        self.port = self._socket.getsockname()[1]
        self._service = ConsoleService(self._plant, config)
        guard = Guard(ConsoleApp(self._service, token).app, config, self._service.counters)
        guard.listen_at(self.port)
        self._server = _Server(self._settings(guard, self._service.counters))
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        self._tasks = [serving, asyncio.ensure_future(self._service.run())]
        while not self._server.started:
            if serving.done():
                await self.stop()
                raise ConfigurationError("did not start", where=self.url)
            await asyncio.sleep(POLL_S)
        log.info("console_started", url=self.url)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set, or something has failed, which is raised."""
        either = asyncio.ensure_future(asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED))
        try:
            await stopped_or_failed(stop, either)
            for task in self._tasks:
                if task.done():
                    task.result()
        finally:
            either.cancel()
            await self.stop()

    async def stop(self) -> None:
        """WebSockets are told that the console ends."""
        service, self._service = self._service, None
        if service is not None:
            service.end_sessions()
        if self._server is not None:
            self._server.should_exit = True
        for task in self._tasks[1:]:  # the first ends by itself
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if service is not None:
            service.close()
        if self._socket is not None:
            self._socket.close()

    def _settings(self, guard: Guard, counters: Counters) -> uvicorn.Config:
        config = self.config

        def refused(cause: Cause) -> None:
            counters.add("connections_refused", cause=cause)

        options: dict[str, Any] = {}
        if config.certificate:
            options = {"ssl_certfile": config.certificate, "ssl_keyfile": config.private_key}
        settings = uvicorn.Config(
            guard,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=prompt_http(config.limits.body_s, refused),  # type: ignore[arg-type]
            ws=partial(_WebSocket, linger_s=config.limits.stuck_s),  # type: ignore[arg-type]
            ws_max_size=config.limits.frame_size_max,
            ws_ping_interval=PING_S,
            ws_ping_timeout=PING_S,
            ws_per_message_deflate=False,
            lifespan="off",
            limit_concurrency=config.limits.connections_max,
            timeout_graceful_shutdown=STOP_S,
            **options,
        )
        try:
            settings.load()
        except OSError as error:
            raise ConfigurationError(f"TLS cannot be used: {error}", where=config.certificate) from None
        return settings
