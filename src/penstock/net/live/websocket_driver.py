"""WebSocket connections on TCP: a server and a client.

server = WebSocketServer(serve, origins=["https://console.example"])
async with server, await connect_websocket(f"ws://127.0.0.1:{server.port}/ticks") as connection:
    await connection.send("hello")
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from websockets.exceptions import InvalidURI
from websockets.uri import parse_uri

from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError
from penstock.net.config import WebSocketConfig
from penstock.net.core.websocket import WebSocketClientSession, WebSocketMessage, WebSocketPeer, WebSocketServerSession
from penstock.net.live.stream import StreamConnection, open_stream
from penstock.net.live.stream_server import StreamServer, Through
from penstock.net.place import is_loopback

WebSocketConnection: TypeAlias = StreamConnection[WebSocketMessage, WebSocketPeer]


class WebSocketServer(StreamServer):
    """Serves WebSockets; `serve(connection)` is called for each successful handshake.

    Pages of web sites not in `origins` are refused; None in `origins` admits programs, which send no origin.
    """

    def __init__(
        self,
        serve: Callable[[WebSocketConnection], Awaitable[None]],
        *,
        origins: Sequence[str | None],
        subprotocols: Sequence[str] = (),
        headers: Sequence[str] = ("host", "origin", "user-agent"),
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        config: WebSocketConfig | None = None,
        counters: Counters | None = None,
        through: Through | None = None,
    ) -> None:
        if tls is None and not is_loopback(host):
            raise ConfigurationError(
                "a WebSocket server beyond the loopback interface needs TLS",
                where=host,
                hint="pass tls=, or bind to 127.0.0.1 behind a proxy with TLS",
            )
        config = config or WebSocketConfig()
        self.counters = counters or Counters("websocket")

        def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> WebSocketConnection:
            session = WebSocketServerSession(config, origins=origins, subprotocols=subprotocols, headers=headers)
            return StreamConnection(session, reader, writer, config=config, counters=self.counters)

        super().__init__(
            connection, serve, host=host, port=port, config=config, counters=self.counters, tls=tls, through=through
        )


async def connect_websocket(
    uri: str,
    *,
    origin: str | None = None,
    subprotocols: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    config: WebSocketConfig | None = None,
    counters: Counters | None = None,
) -> WebSocketConnection:
    """Return a connection whose handshake is complete. For wss:// the system's certificates are trusted unless `tls`
    is given."""
    try:
        target = parse_uri(uri)
    except InvalidURI as error:
        raise ConfigurationError(str(error), hint="write ws://host:port/path or wss://…") from None
    if target.secure and tls is None:
        tls = ssl.create_default_context()
    config = config or WebSocketConfig()
    session = WebSocketClientSession(uri, config, origin=origin, subprotocols=subprotocols, headers=headers)
    reader, writer = await open_stream(
        target.host, target.port, tls=tls if target.secure else None, timeout_ms=config.handshake_ms
    )
    connection: WebSocketConnection = StreamConnection(
        session, reader, writer, config=config, counters=counters or Counters("websocket")
    )
    return await connection.opened_or_closed()
