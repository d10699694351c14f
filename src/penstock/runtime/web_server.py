"""A web server as a part of a node: uvicorn in the node's loop, on a socket that is bound when the server is made.

web = WebServer(node, app, host=..., port=0, head_s=10.0, connections_max=256, refused=count)
node.add("web", start=web.start, close=web.stop)
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.base.counters import Cause
from penstock.base.errors import ConfigurationError, ProcessError
from penstock.net.secret import read_private
from penstock.runtime.node import Node

STOP_S = 3
"""How long requests may take to end when the server stops."""

POLL_S = 0.02
BACKLOG = 256
KEY_SIZE_MAX = 65_536
WAITING_FACTOR = 2
"""Connections that may be open, those without a request among them, for each that is served at once."""


class WebServer:
    """`port` is the bound one, also if the configuration says 0. `refused` is told of every connection that is cut
    off. `websockets` are settings of uvicorn, without which there are no WebSockets."""

    def __init__(
        self,
        node: Node,
        app: Any,
        *,
        host: str,
        port: int,
        certificate: str = "",
        private_key: str = "",
        head_s: float,
        connections_max: int,
        refused: Callable[[Cause], None],
        websockets: dict[str, Any] | None = None,
    ) -> None:
        self._node = node
        self.socket = listening(host, port)
        try:
            tls = {"ssl_certfile": certificate, "ssl_keyfile": private_key} if certificate else {}
            settings = uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                http=partial(PromptHttp, head_s=head_s, refused=refused),  # type: ignore[arg-type]
                lifespan="off",
                limit_concurrency=connections_max,
                timeout_graceful_shutdown=STOP_S,
                **{"ws": "none", **(websockets or {}), **tls},
            )
            try:
                settings.load()
            except OSError as error:
                raise ConfigurationError(f"TLS cannot be used: {error}", where=certificate) from None
        except BaseException:
            self.socket.close()
            raise
        self.port: int = self.socket.getsockname()[1]
        self.place = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self._server = _Server(settings)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when requests are answered. The node ends when the server fails."""
        self._serving = asyncio.create_task(self._serve())
        while not self._server.started:
            if self._serving.done():
                raise ConfigurationError(f"did not start: {self._serving.exception()}", where=self.place)
            await asyncio.sleep(POLL_S)
        self._node.watch(self._serving)

    async def stop(self) -> None:
        """Answer what is being asked, then end."""
        self._server.should_exit = True
        if self._serving is not None:
            await asyncio.gather(self._serving, return_exceptions=True)
        self.socket.close()

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self.socket])
        if not self._server.should_exit:
            raise ProcessError("the web server ended by itself")


class _Server(uvicorn.Server):
    """Signals are the process' own business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class PromptHttp(H11Protocol):
    """The head of each request comes within `head_s`; more connections than are ever served are not taken at all."""

    def __init__(self, *arguments: Any, head_s: float, refused: Callable[[Cause], None], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._head_s = head_s
        self._refused = refused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > WAITING_FACTOR * self.limit_concurrency:
            self._refuse(Cause.CONNECTION_LIMIT)
        else:
            self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_head()

    def _await_head(self) -> None:
        """A WebSocket has another protocol from its first request on."""
        seen = self.cycle

        def look() -> None:
            if self.cycle is seen and self.transport.get_protocol() is self and not self.transport.is_closing():
                self._refuse(Cause.SILENT)

        self.loop.call_later(self._head_s, look)

    def _refuse(self, cause: Cause) -> None:
        self._refused(cause)
        self.transport.abort()


def check_tls(certificate: str, private_key: str) -> None:
    """Say now what is wrong with the files of a web server, if it has some."""
    if certificate:
        read_private(Path(private_key), KEY_SIZE_MAX)
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, private_key)
        except OSError as error:
            raise ConfigurationError(f"TLS cannot be used: {error}", where=certificate) from None


def listening(host: str, port: int) -> socket.socket:
    """A socket for a web server."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another port, or 0 for any free one"
        ) from None
    return listening
