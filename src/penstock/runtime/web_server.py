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
"""Time limit for open requests when the server stops."""

POLL_S = 0.02
BACKLOG = 256
KEY_SIZE_MAX = 65_536
WAITING_FACTOR = 2
"""Factor between requests served at once and open connections, which include connections without a request."""


class WebServer:
    """`port` is the bound port, even if the configuration says 0. `refused` is called for every connection that is
    refused or cut off. `websockets` are settings of uvicorn; without them, WebSockets are disabled."""

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
        """Start the server and return when it answers requests. The node ends if the server fails."""
        self._serving = asyncio.create_task(self._serve())
        while not self._server.started:
            if self._serving.done():
                raise ConfigurationError(f"did not start: {self._serving.exception()}", where=self.place)
            await asyncio.sleep(POLL_S)
        self._node.watch(self._serving)

    async def stop(self) -> None:
        """Answer open requests, then stop."""
        self._server.should_exit = True
        if self._serving is not None:
            await asyncio.gather(self._serving, return_exceptions=True)
        self.socket.close()

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self.socket])
        if not self._server.should_exit:
            raise ProcessError("the web server ended by itself")


class _Server(uvicorn.Server):
    """Leaves signal handling to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class PromptHttp(H11Protocol):
    """Limits the time for the head of each request to `head_s`, and refuses connections above the limit."""

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
        """Start the time limit, which does not apply to WebSockets: they change to another protocol with their first
        request."""
        seen = self.cycle

        def look() -> None:
            if self.cycle is seen and self.transport.get_protocol() is self and not self.transport.is_closing():
                self._refuse(Cause.SILENT)

        self.loop.call_later(self._head_s, look)

    def _refuse(self, cause: Cause) -> None:
        self._refused(cause)
        self.transport.abort()


def check_tls(certificate: str, private_key: str) -> None:
    """Check the certificate and private key now, so that a wrong file is reported before the server starts."""
    if certificate:
        read_private(Path(private_key), KEY_SIZE_MAX)
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, private_key)
        except OSError as error:
            raise ConfigurationError(f"TLS cannot be used: {error}", where=certificate) from None


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket for a web server."""
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
