"""Plays messages over SoupBinTCP: clients log in, and receive messages from the requested number on.

This is a driver with sockets.
"""

import asyncio
import hmac
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import TypeAlias

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError, ConnectionLostError
from penstock.base.log import logger
from penstock.feed.core.play.config import PlayerConfig
from penstock.feed.core.play.pace import Pace
from penstock.feed.core.play.sent_messages import SentMessages
from penstock.feed.core.soup_session import SOUP_CONFIG, SoupServerSession
from penstock.feed.formats._framing import cut, soup_data
from penstock.feed.formats.soup import NOT_AUTHORISED, NOT_AVAILABLE, SoupAccepted, SoupLogin
from penstock.feed.live.play.mold_player import open_script
from penstock.net.config import StreamConfig
from penstock.net.live.stream import StreamConnection
from penstock.net.live.stream_server import StreamServer
from penstock.net.place import is_loopback

TURN_NS = 20 * NS_PER_MS
SEND_MESSAGES_MAX = 1_024

log = logger("feed.soup_player")

SoupConnection: TypeAlias = StreamConnection[bytes, SoupLogin]


class SoupPlayer(StreamServer):
    """A server of one session: `async with`, then run(). Beyond the loopback address clients need a password.

    SoupBinTCP is not encrypted: use it on private networks.
    """

    def __init__(
        self, config: PlayerConfig, *, stream: StreamConfig = SOUP_CONFIG, counters: Counters | None = None
    ) -> None:
        self.config = config
        self.counters = counters or Counters("feed.player", node=config.name)
        self.history = SentMessages(config.kept_bytes_max)
        self._credentials = _credentials(config)
        self._news = asyncio.Event()
        self._is_ended = False

        def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> SoupConnection:
            session = SoupServerSession(self._admit, stream)
            return StreamConnection(session, reader, writer, config=stream, counters=self.counters)

        super().__init__(
            connection,
            self._serve_one,
            host=config.host,
            port=config.port,
            config=stream,
            counters=self.counters,
            tls=None,
        )

    @property
    def next_sequence(self) -> int:
        """Number of the next message."""
        return self.history.next_sequence

    async def run(self, should_stop: Callable[[], bool]) -> None:
        """Play the script, then send end-of-session to clients that are up to date, and serve until should_stop()."""
        with ExitStack() as files:
            script = open_script(self.config, files)
            pace = Pace(script, speed=self.config.speed, rate=self.config.rate, now_ns=time.monotonic_ns())
            while not should_stop() and not pace.is_over:
                now_ns = time.monotonic_ns()
                if blocks := pace.due(now_ns):
                    self.add(blocks)
                await asyncio.sleep(min(pace.wait_ns(now_ns), TURN_NS) / NS_PER_SECOND)
        self.end()
        while not should_stop():
            await asyncio.sleep(TURN_NS / NS_PER_SECOND)

    def add(self, blocks: bytes) -> None:
        """Make these messages available."""
        count = sum(count for _, _, count in cut(blocks, len(blocks)))
        self.history.add(blocks, count)
        self.counters.add("source_messages_sent", count)
        self._tell()

    def end(self) -> None:
        """End the session: clients that have everything are notified."""
        self._is_ended = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _admit(self, login: SoupLogin) -> SoupAccepted | str:
        given = f"{login.user}\0{login.password}".encode()
        if self._credentials is not None and not hmac.compare_digest(given, self._credentials):
            return NOT_AUTHORISED
        if login.session not in ("", self.config.session):
            return NOT_AVAILABLE
        newest = self.history.next_sequence
        sequence = newest if login.sequence == 0 else min(login.sequence, newest)
        if sequence < self.history.first_sequence:
            return NOT_AVAILABLE
        return SoupAccepted(self.config.session, sequence)

    async def _serve_one(self, connection: SoupConnection) -> None:
        sequence = connection.peer.sequence
        while not connection.is_over:
            news = self._news
            blocks, next_sequence = self.history.find(sequence, SEND_MESSAGES_MAX)
            if blocks:
                await connection.send(soup_data(blocks))
                sequence = next_sequence
            elif sequence < self.history.first_sequence:
                raise ConnectionLostError(f"message {sequence} is no longer kept: the client is too slow")
            elif self._is_ended:
                return
            else:
                await _first_of(news.wait(), connection.receive())


def _credentials(config: PlayerConfig) -> bytes | None:
    """The required login; None: every client on this machine may log in."""
    if not config.username:
        if not is_loopback(config.host):
            what = "other addresses than loopback need a password"
            raise ConfigurationError(what, where=config.host, hint="set username and password_file")
        return None
    try:
        with open(config.password_file, encoding="ascii") as file:
            password = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the password: {error}", where=config.password_file) from None
    return f"{config.username}\0{password}".encode()


async def _first_of(*waits: Coroutine[None, None, object]) -> None:
    """Wait until one of these coroutines has ended, and cancel the other ones."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
