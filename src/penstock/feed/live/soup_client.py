"""Receives a source stream over SoupBinTCP, over successive connections, without gaps or duplicates.

This is a driver with a socket.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, TypeAlias

import msgspec

from penstock.base.config import Config
from penstock.base.counters import Counters
from penstock.base.errors import ConnectionLostError, RefusedError, RemoteProtocolError, UnreachableError
from penstock.base.log import logger
from penstock.convert import SourceBatch
from penstock.feed.core.lines.events import SessionEnded, SessionStarted, SourceReady
from penstock.feed.core.soup_session import SOUP_CONFIG, SoupClientSession
from penstock.feed.formats.soup import NOT_AVAILABLE, SoupAccepted, SoupLogin
from penstock.net.config import StreamConfig
from penstock.net.live.stream import StreamConnection, open_stream

log = logger("feed.soup_client")

SoupStream: TypeAlias = StreamConnection[SourceBatch, SoupAccepted]
SoupEvent: TypeAlias = SessionStarted | SourceReady | SessionEnded


class SoupClientConfig(Config, frozen=True):
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 7414
    user: Annotated[str, msgspec.Meta(max_length=6)] = "demo"
    password: Annotated[str, msgspec.Meta(max_length=10)] = "demo"
    session: Annotated[str, msgspec.Meta(max_length=10)] = ""
    """Blank: the current session."""

    sequence: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Number of the first message; 0: only new messages."""

    retry_ms: Annotated[int, msgspec.Meta(ge=1, le=60_000)] = 50
    retry_ms_max: Annotated[int, msgspec.Meta(ge=1, le=600_000)] = 5_000
    """Maximum time between two attempts to connect; the time doubles with each attempt."""

    def __repr__(self) -> str:
        return f"SoupClientConfig(host={self.host!r}, port={self.port}, user={self.user!r})"


class SoupClient:
    """One source stream. After a lost connection, the client reconnects and continues with the next message; a
    refusal is raised."""

    def __init__(
        self, config: SoupClientConfig, *, stream: StreamConfig = SOUP_CONFIG, counters: Counters | None = None
    ) -> None:
        self.config = config
        self.counters = counters or Counters("soup_client")
        self.session = config.session
        self.next_sequence = config.sequence
        self._stream = stream
        self._has_begun = False

    async def events(self) -> AsyncIterator[SoupEvent]:
        """Yield events until the session ends."""
        retry_ms = self.config.retry_ms
        while True:
            try:
                connection = await self._connect()
            except RefusedError as error:
                if error.peer_code != NOT_AVAILABLE or not self._has_begun:
                    raise
                # the previous session is gone: use the current one
                yield SessionEnded(self.session, self.next_sequence)
                self.session, self.next_sequence, self._has_begun = "", 1, False
                continue
            except (UnreachableError, ConnectionLostError, RemoteProtocolError) as error:
                log.info("connecting_failed", error=str(error), retry_ms=retry_ms)
                await asyncio.sleep(retry_ms / 1_000)
                retry_ms = min(retry_ms * 2, self.config.retry_ms_max)
                continue
            retry_ms = self.config.retry_ms
            async with connection:
                if started := self._started(connection.peer):
                    yield started
                try:
                    async for batch in connection:
                        self.next_sequence += len(batch)
                        yield SourceReady(batch)
                    yield SessionEnded(self.session, self.next_sequence)
                    return
                except (ConnectionLostError, RemoteProtocolError) as error:
                    log.info("connection_lost", error=str(error), next_sequence=self.next_sequence)

    def _started(self, accepted: SoupAccepted) -> SessionStarted | None:
        """Return a new session, unless it is the current one."""
        if self._has_begun:
            return None
        self._has_begun = True
        self.session, self.next_sequence = accepted.session, accepted.sequence
        return SessionStarted(accepted.session, accepted.sequence, receive_ns=time.time_ns())

    async def _connect(self) -> SoupStream:
        login = SoupLogin(self.config.user, self.config.password, self.session, self.next_sequence)
        timeout_ms = self._stream.handshake_ms
        reader, writer = await open_stream(self.config.host, self.config.port, tls=None, timeout_ms=timeout_ms)
        session = SoupClientSession(login, self._stream)
        connection: SoupStream = StreamConnection(session, reader, writer, config=self._stream, counters=self.counters)
        await connection.opened_or_closed()
        if self._has_begun and connection.peer != SoupAccepted(self.session, self.next_sequence):
            given = connection.peer
            await connection.close()
            what = f"{self.session} from {self.next_sequence} was wanted, {given.session} from {given.sequence} given"
            raise RemoteProtocolError(what)
        return connection
