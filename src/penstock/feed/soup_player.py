"""Plays messages over SoupBinTCP: clients log in, get everything from the number they ask for, and what comes after.

A driver: it has the sockets.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Annotated, TypeAlias

import msgspec

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND, SystemClock
from penstock.base.config import Config
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError, ConnectionLostError
from penstock.base.log import logger
from penstock.feed.formats._framing import soup_data
from penstock.feed.formats.soup import NOT_AUTHORISED, NOT_AVAILABLE, SoupAccepted, SoupLogin
from penstock.feed.history import History, Pace, Piece
from penstock.feed.soup import SOUP_CONFIG, SoupServerSession
from penstock.net.config import StreamConfig
from penstock.net.stream import StreamConnection, is_loopback
from penstock.net.stream_server import StreamServer

TURN_NS = 20 * NS_PER_MS
PIECE_SIZE = 16 * 1024

log = logger("feed.soup_player")

SoupConnection: TypeAlias = StreamConnection[bytes, SoupLogin]


class SoupPlayerConfig(Config, frozen=True):
    """Who may log in and what is kept. SoupBinTCP hides nothing on its way: use it on networks that are yours."""

    session: Annotated[str, msgspec.Meta(min_length=1, max_length=10)] = "PENSTOCK"
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 7414
    user: Annotated[str, msgspec.Meta(max_length=6)] = "demo"
    password: Annotated[str, msgspec.Meta(max_length=10)] = "demo"
    history_size_max: Annotated[int, msgspec.Meta(ge=0, le=2**36)] = 256 * 1024 * 1024
    """Bytes of messages that are kept for replay; a client that falls behind farther is cut off."""

    def __repr__(self) -> str:
        return f"SoupPlayerConfig(session={self.session!r}, host={self.host!r}, port={self.port}, user={self.user!r})"


class SoupPlayer(StreamServer):
    """A server of one session: `async with`, then play()."""

    def __init__(
        self,
        config: SoupPlayerConfig | None = None,
        *,
        stream: StreamConfig = SOUP_CONFIG,
        counters: Counters | None = None,
    ) -> None:
        self.config = config or SoupPlayerConfig()
        if not is_loopback(self.config.host) and self.config.password == SoupPlayerConfig().password:
            raise ConfigurationError(
                "choose a password", where=self.config.host, hint="everybody knows the default one"
            )
        self.counters = counters or Counters("soup_player")
        self.history = History(self.config.history_size_max)
        self._news = asyncio.Event()
        self._is_ended = False

        def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> SoupConnection:
            session = SoupServerSession(self._admit, stream)
            return StreamConnection(session, reader, writer, config=stream, counters=self.counters)

        super().__init__(
            connection,
            self._serve_one,
            host=self.config.host,
            port=self.config.port,
            config=stream,
            counters=self.counters,
            tls=None,
        )

    async def play(
        self, pieces: Iterable[Piece], pace: Pace, *, should_stop: Callable[[], bool] = lambda: False
    ) -> int:
        """Make messages available as they are due; returns how many."""
        before = self.history.next_sequence
        clock = SystemClock()
        turn_ns = clock.now_ns() + TURN_NS
        for piece in pieces:
            now_ns = clock.now_ns()
            due_ns = pace.due_ns(piece, now_ns)
            while due_ns > clock.now_ns() and not should_stop():
                await asyncio.sleep(min(due_ns - clock.now_ns(), TURN_NS) / NS_PER_SECOND)
            if should_stop():
                break
            self.history.add(piece)
            self._tell()
            if now_ns >= turn_ns:
                await asyncio.sleep(0)  # the clients' turn
                turn_ns = clock.now_ns() + TURN_NS
        return self.history.next_sequence - before

    def end(self) -> None:
        """Nothing more comes: clients that have everything are told that the session is over."""
        self._is_ended = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _admit(self, login: SoupLogin) -> SoupAccepted | str:
        given = f"{login.user}\0{login.password}".encode()
        if not hmac.compare_digest(given, f"{self.config.user}\0{self.config.password}".encode()):
            return NOT_AUTHORISED
        if login.session not in ("", self.config.session):
            return NOT_AVAILABLE
        newest = self.history.next_sequence
        sequence = newest if login.sequence == 0 else min(login.sequence, newest)
        if sequence < self.history.first_sequence:
            return NOT_AVAILABLE
        return SoupAccepted(self.config.session, sequence)

    async def _serve_one(self, connection: SoupConnection) -> None:
        async for piece in self._pieces_from(connection.peer.sequence, connection):
            await connection.send(soup_data(piece.blocks))

    async def _pieces_from(self, sequence: int, connection: SoupConnection) -> AsyncIterator[Piece]:
        while not connection.is_over:
            news = self._news
            piece = self.history.find(sequence)
            if piece is not None:
                yield piece
                sequence = piece.first_sequence + piece.count
            elif sequence < self.history.first_sequence:
                raise ConnectionLostError(f"message {sequence} is no longer kept: the client is too slow")
            elif self._is_ended:
                return
            else:
                await _first_of(news.wait(), connection.receive())


async def _first_of(*waits: Coroutine[None, None, object]) -> None:
    """Until one of them is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
