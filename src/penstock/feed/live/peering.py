"""Connections between the adapters of a feed: one control connection for each pair, which reconnects when it is lost.

The adapter with the higher index connects to the one with the lower. The node name `feed.index` identifies the adapter
at the other end; the shared secret authenticates it. An adapter without peers does not listen.
"""

import asyncio
import contextlib
import re
import ssl
from collections.abc import Callable

from penstock.base.backoff import Backoff, BackoffPolicy
from penstock.base.clock import SystemRandomness
from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.feed.adapter_config import PeerConfig, PeersConfig
from penstock.feed.core.events import AdapterEvent, PeerConnected, PeerDisconnected, PeerMessageReceived
from penstock.feed.core.sync.messages import CONNECTION, PROTOCOL, SyncMessage
from penstock.net.live.control_driver import ControlConnection, ControlServer, connect_control
from penstock.net.live.dialling import redial
from penstock.net.live.outbox import Outbox, converse
from penstock.net.secret import Secret

QUEUE_MESSAGES_MAX = 65_536
"""Maximum number of messages that wait for one peer; beyond it the connection is closed, and the peer starts over."""

log = logger("feed.peering")


class Peering:
    """Reports events of the connections to `on_event`; send() queues a message."""

    def __init__(
        self,
        feed: str,
        index: int,
        config: PeersConfig,
        on_event: Callable[[AdapterEvent], None],
        *,
        secret: Secret | None = None,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        counters: Counters | None = None,
    ) -> None:
        self._feed = feed
        self._index = index
        self._config = config
        self._on_event = on_event
        self._secret = secret
        self._client_tls = client_tls
        self._counters = counters or Counters("feed.peers", feed=feed)
        self._outboxes: dict[int, Outbox[SyncMessage]] = {}
        self._dialing: list[asyncio.Task[None]] = []
        self._server = ControlServer(
            PROTOCOL,
            self._accepted,
            node=self._node,
            host=config.host,
            port=config.port,
            secret=secret,
            tls=server_tls,
            config=CONNECTION,
            counters=self._counters,
        )

    @property
    def port(self) -> int:
        """The port; 0 for an adapter without peers."""
        return self._server.port if self._config.is_linked else 0

    @property
    def connected(self) -> list[int]:
        """Indexes of the connected adapters."""
        return sorted(self._outboxes)

    async def start(self) -> None:
        if self._config.is_linked:
            await self._server.start()
        lower = [peer for peer in self._config.others if peer.index < self._index]
        self._dialing = [asyncio.ensure_future(self._dial(peer)) for peer in lower]

    async def close(self) -> None:
        for task in self._dialing:
            task.cancel()
        await asyncio.gather(*self._dialing, return_exceptions=True)
        await self._server.close()

    def send(self, index: int, message: SyncMessage) -> None:
        """Queue a message. Without a connection it is dropped; the core gets PeerDisconnected in any case."""
        if (outbox := self._outboxes.get(index)) is not None:
            outbox.put(message)

    @property
    def _node(self) -> str:
        return f"{self._feed}.{self._index}"

    async def _dial(self, peer: PeerConfig) -> None:
        """Keep a connection to this adapter."""

        def report(error: PenstockError, is_news: bool) -> None:
            log.debug("peer_unreachable", index=peer.index, error=str(error))

        backoff = Backoff(SystemRandomness(), BackoffPolicy.constant(self._config.retry_ms))
        await redial(lambda: self._connect(peer), backoff, report)

    async def _connect(self, peer: PeerConfig) -> bool:
        connection = await connect_control(
            PROTOCOL,
            peer.host,
            peer.port,
            node=self._node,
            secret=self._secret,
            tls=self._client_tls,
            config=CONNECTION,
            counters=self._counters,
        )
        async with connection:
            await self._converse(connection, expected=peer.index)
        return True

    async def _accepted(self, connection: ControlConnection[SyncMessage]) -> None:
        await self._converse(connection, expected=None)

    async def _converse(self, connection: ControlConnection[SyncMessage], expected: int | None) -> None:
        index = self._index_of(connection.peer.node)
        if index is None or index == self._index or expected not in (None, index):
            log.warning("peer_refused", node=connection.peer.node, address=connection.address)
            await connection.close("the peer is not an adapter of the feed")
            return
        if (older := self._outboxes.get(index)) is not None:
            older.cut()  # the peer has restarted, and the old connection is not closed yet
            await older.over.wait()
        outbox: Outbox[SyncMessage] = Outbox(QUEUE_MESSAGES_MAX, "cut")
        self._outboxes[index] = outbox
        log.info("peer_connected", index=index, address=connection.address)
        self._on_event(PeerConnected(index))
        try:
            await converse(connection, outbox, self._read(connection, index))
        finally:
            del self._outboxes[index]
            log.warning("peer_disconnected", index=index)
            self._on_event(PeerDisconnected(index))

    async def _read(self, connection: ControlConnection[SyncMessage], index: int) -> None:
        with contextlib.suppress(PenstockError):  # the connection logs the reason
            async for message in connection:
                self._on_event(PeerMessageReceived(index, message))

    def _index_of(self, node: str) -> int | None:
        match = re.fullmatch(re.escape(self._feed) + r"\.(0|[1-9][0-9]{0,2})", node)
        return int(match[1]) if match and int(match[1]) <= 255 else None
