"""An edge cache: a multiplexer for many slow clients, by TCP and WebSocket (EDGE-1).

    node = LiveEdge(config)
    await node.node.start()
    await node.node.run(stop)

Differences from multiplexer.LiveMux: besides control connections it serves WebSockets, and a session sender
(_session_sender.pyx) sends events from the buffers of thousands of sessions to their sockets. Connections with TLS, and
those that use JSON, are served by the loop instead: slower, by the same rules.
"""

import asyncio
import resource
import time

from penstock.base.clock import NS_PER_MS
from penstock.base.errors import LimitError
from penstock.base.log import logger
from penstock.engine.control import MESSAGE_SIZE_MAX
from penstock.model import MessageModel
from penstock.net.config import WebSocketConfig
from penstock.net.live.stream_server import Through
from penstock.net.live.websocket_driver import WebSocketConnection, WebSocketServer
from penstock.net.tls import server_context
from penstock.plant.core.websocket_codec import SUBPROTOCOLS
from penstock.plant.edge_config import EdgeConfig
from penstock.plant.live._session_sender import SessionSender
from penstock.plant.live.multiplexer import LiveMux
from penstock.plant.live.session_transport import SessionTransports
from penstock.plant.live.websocket_control import WebSocketControl

STUCK_CHECK_SECONDS = 1.0
SPARE_FILES = 256
"""Open files in addition to connections."""

log = logger("plant.edge")


class LiveEdge(LiveMux):
    kind = "edge"

    def __init__(self, config: EdgeConfig) -> None:
        self.edge_config = config
        self._transports: SessionTransports | None = None
        raise_open_files(config.engine.consumers_max)
        super().__init__(config)
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
            counters=self.node.counters("plant.websocket"),
            through=None if access.tls is not None else self._session_transports().through,
        )
        self.node.add_task(self._watch_stuck)

    @property
    def websocket_port(self) -> int:
        return self._web.port

    # Differences from a multiplexer

    def _session_sender(self) -> SessionSender | None:
        consumers_max = self.edge_config.engine.consumers_max
        self._sender = SessionSender(
            2 * consumers_max,  # each of its two servers has no more connections than there can be consumers
            consumers_max,
            gather_ns=self.edge_config.gather_ms * NS_PER_MS,
            words_size_max=2 * MESSAGE_SIZE_MAX,
        )
        return self._sender

    def _through(self) -> Through | None:
        return None if self.edge_config.control.tls is not None else self._session_transports().through

    def _session_transports(self) -> SessionTransports:
        if self._transports is None:
            self._transports = SessionTransports(
                self._sender, 2 * self.edge_config.engine.consumers_max, self._data.ask
            )
        return self._transports

    async def _begin(self) -> None:
        await super()._begin()
        await self._web.start()

    async def _finish(self) -> None:
        await self._web.close()
        await super()._finish()

    # Sessions

    async def _converse_with(self, connection: WebSocketConnection) -> None:
        await self._server.converse_with(WebSocketControl(connection, self._model))

    def _model(self, model_id: int, version: int) -> MessageModel | None:
        return self._models.get(model_id)

    async def _watch_stuck(self) -> None:
        """End sessions that accept no data, until cancelled."""
        transports, patience_ns = self._session_transports(), self.edge_config.stuck_ms * NS_PER_MS
        error = LimitError(f"the connection accepted no data for {self.edge_config.stuck_ms} ms")
        while True:
            await asyncio.sleep(STUCK_CHECK_SECONDS)
            stuck = self._data.ask(lambda: self._sender.stuck(time.monotonic_ns() - patience_ns))
            for session, consumer in await asyncio.wrap_future(stuck):
                if consumer is not None:
                    self._server.end_consumer(consumer, error)
                elif (transport := transports.transports.get(session)) is not None:
                    transport.abort()


def raise_open_files(connections: int) -> None:
    """Let this process have so many connections, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if hard != resource.RLIM_INFINITY and wanted > hard:
        log.warning("few_open_files", wanted=wanted, limit=hard, hint="raise the hard limit of open files")
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
