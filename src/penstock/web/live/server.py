"""The console as a running server, in the loop of its process.

console = ConsoleServer(Plant.load(path), config)
await console.node.start()
console.url                      # "http://127.0.0.1:7430"
await console.node.run(stop)
"""

import socket
import struct
from functools import partial
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from penstock.base.counters import Cause
from penstock.base.log import logger
from penstock.net.live.stream import keep_little_unsent
from penstock.net.page_access import page_token
from penstock.node.console_config import ConsoleConfig
from penstock.node.plant import Plant
from penstock.runtime.node import Node
from penstock.runtime.web_server import WebServer, check_tls
from penstock.web.live.app import ConsoleApp
from penstock.web.live.guard import Guard
from penstock.web.live.service import ConsoleService

PING_S = 20.0
RESET = struct.pack("ii", 1, 0)

log = logger("console")


class _WebSocket(WebSocketsSansIOProtocol):
    """A WebSocket that is closed after a time limit, even if the browser does not read the last bytes."""

    def __init__(self, *arguments: Any, linger_s: float, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._linger_s = linger_s

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self.loop.call_later(self._linger_s, self._cut_off)

    def _cut_off(self) -> None:
        if not self.disconnected:
            plain: socket.socket = self.transport.get_extra_info("socket")
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)  # otherwise the kernel would keep sending
            self.transport.abort()


class ConsoleServer:
    """Create a ConsoleServer in the thread of the running loop. `port` is the bound port, even if the configuration
    says 0."""

    def __init__(self, plant: Plant, config: ConsoleConfig) -> None:
        self.config = config
        check_tls(config.certificate, config.private_key)
        token = page_token(config.metrics_access)
        self.node = Node(config.name)
        self._service = ConsoleService(plant, config)
        try:
            guard = Guard(ConsoleApp(self._service, token).app, config, self._service.counters)
            self._web = WebServer(
                self.node,
                guard,
                host=config.host,
                port=config.port,
                certificate=config.certificate,
                private_key=config.private_key,
                head_s=config.limits.body_s,
                connections_max=config.limits.connections_max,
                refused=self._count_refused,
                websockets={
                    "ws": partial(_WebSocket, linger_s=config.limits.stuck_s),
                    "ws_max_size": config.limits.frame_size_max,
                    "ws_ping_interval": PING_S,
                    "ws_ping_timeout": PING_S,
                    "ws_per_message_deflate": False,
                },
            )
        except BaseException:
            self._service.close()
            raise
        self.port = self._web.port
        keep_little_unsent(self._web.socket)
        guard.listen_at(self.port)
        self.node.add("service", close=self._service.close)
        self.node.add("web", start=self._start_web, close=self._close_web)
        self.node.add_task(self._service.run)

    @property
    def url(self) -> str:
        return f"{'https' if self.config.certificate else 'http'}://{self._web.place}"

    async def _start_web(self) -> None:
        await self._web.start()
        log.info("console_started", url=self.url)

    async def _close_web(self) -> None:
        """End all WebSockets with a reason, then stop."""
        self._service.end_sessions()
        await self._web.stop()

    def _count_refused(self, cause: Cause) -> None:
        self._service.counters.add("connections_refused", cause=cause)
