"""The sessions of an edge cache, a multiplexer for many slow clients, by TCP and WebSocket (EDGE-1).

Differences from a multiplexer: besides control connections it serves WebSockets, and a session sender
(_session_sender.pyx) sends events from the buffers of thousands of sessions to their sockets. Connections with TLS, and
those that use JSON, are served by the loop instead: slower, by the same rules.
"""

import asyncio
import resource
import time

from penstock.base.clock import NS_PER_MS
from penstock.base.counters import Counters
from penstock.base.errors import LimitError
from penstock.base.log import logger
from penstock.engine.control import MESSAGE_SIZE_MAX
from penstock.model import MessageModel
from penstock.net.config import WebSocketConfig
from penstock.net.live.websocket_driver import WebSocketConnection, WebSocketServer
from penstock.net.tls import server_context
from penstock.plant.core.websocket_codec import SUBPROTOCOLS
from penstock.plant.edge_config import EdgeConfig
from penstock.plant.live._session_sender import SessionSender
from penstock.plant.live.control_server import NodeServer
from penstock.plant.live.data_path import DataPath
from penstock.plant.live.session_transport import SessionTransports
from penstock.plant.live.websocket_control import WebSocketControl

STUCK_CHECK_SECONDS = 1.0
SPARE_FILES = 256
"""Open files in addition to connections."""

log = logger("plant.edge")


def session_sender_of(config: EdgeConfig) -> SessionSender:
    """Return the sender of session events, after raising the limit of open files."""
    consumers_max = config.engine.consumers_max
    raise_open_files(consumers_max)
    return SessionSender(
        _sessions_max(config),
        consumers_max,
        gather_ns=config.gather_ms * NS_PER_MS,
        words_size_max=2 * MESSAGE_SIZE_MAX,
    )


def transports_of(config: EdgeConfig, sender: SessionSender, data: DataPath) -> SessionTransports:
    return SessionTransports(sender, _sessions_max(config), data.ask)


def _sessions_max(config: EdgeConfig) -> int:
    """Each of the two servers has no more connections than there can be consumers."""
    return 2 * config.engine.consumers_max


class EdgeSessions:
    """Serves WebSockets from start() to close(), and watches the sessions of both servers."""

    def __init__(
        self,
        config: EdgeConfig,
        transports: SessionTransports,
        data: DataPath,
        server: NodeServer,
        models: dict[int, MessageModel],
        counters: Counters,
    ) -> None:
        self._config = config
        self._transports = transports
        self._data = data
        self._server = server
        self._models = models
        access = config.websocket
        self._web = WebSocketServer(
            self._converse_with,
            origins=[*access.origins, *([None] if access.takes_programs else [])],
            subprotocols=SUBPROTOCOLS,
            host=access.host,
            port=access.port,
            tls=server_context(access.tls),
            config=WebSocketConfig(
                connections_max=config.engine.consumers_max,
                ping_ms=config.ping_ms,
                silence_ms=config.silence_ms,
                message_size_max=MESSAGE_SIZE_MAX,
            ),
            counters=counters,
            through=None if access.tls is not None else transports.through,
        )

    @property
    def port(self) -> int:
        return self._web.port

    async def start(self) -> None:
        await self._web.start()

    async def close(self) -> None:
        await self._web.close()

    async def watch_stuck(self) -> None:
        """End sessions that accept no data, until cancelled."""
        sender, patience_ns = self._transports.session_sender, self._config.stuck_ms * NS_PER_MS
        error = LimitError(f"the connection accepted no data for {self._config.stuck_ms} ms")
        while True:
            await asyncio.sleep(STUCK_CHECK_SECONDS)
            stuck = self._data.ask(lambda: sender.stuck(time.monotonic_ns() - patience_ns))
            for session, consumer in await asyncio.wrap_future(stuck):
                if consumer is not None:
                    self._server.end_consumer(consumer, error)
                elif (transport := self._transports.transports.get(session)) is not None:
                    transport.abort()

    async def _converse_with(self, connection: WebSocketConnection) -> None:
        await self._server.converse_with(WebSocketControl(connection, self._model))

    def _model(self, model_id: int, version: int) -> MessageModel | None:
        return self._models.get(model_id)


def raise_open_files(connections: int) -> None:
    """Let this process have so many connections, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if hard != resource.RLIM_INFINITY and wanted > hard:
        log.warning("few_open_files", wanted=wanted, limit=hard, hint="raise the hard limit of open files")
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
