"""Serves a journal to followers on TCP. It only reads: the writer may be any process on this host, or none.

    async with JournalServer("trades.d", port=7410):
        await stop.wait()

A follower that does not keep up is sent to as fast as it takes; what it has not taken lies on the disk, not in memory.
"""

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeAlias

from penstock.base.counters import Cause, Counters
from penstock.base.errors import JournalGoneError, PenstockError, RemoteProtocolError
from penstock.base.log import logger
from penstock.journal.config import FollowConfig
from penstock.journal.core.messages import (
    CONNECTION,
    PROTOCOL,
    CaughtUp,
    Extent,
    Follow,
    Gone,
    JournalMessage,
    Login,
    Measure,
    Refused,
    Unavailable,
    cut_batch,
    encode_records,
)
from penstock.journal.core.records import RecordBatch
from penstock.journal.live.extent import measure
from penstock.journal.live.reader import JournalReader
from penstock.net.config import ControlConfig
from penstock.net.live.admission import Admission
from penstock.net.live.control_driver import ControlConnection, ControlServer
from penstock.net.live.outbox import Outbox, converse
from penstock.net.secret import Secret

TEXT_MAX = 256
TOKEN_CHECK_SECONDS = 1.0
"""Period of the checks of a token while its follower is served: the longest time that a known revocation takes."""

CheckToken: TypeAlias = Callable[[str], None]
"""Raises a PenstockError that says why the bearer of a token may not read the journal (now)."""

log = logger("journal.server")


class JournalServer:
    """From start() to close(). Off the loopback address it needs `tls` and `secret`, and refuses to start without.

    With `check_token` every follower has to log in with a token, also on the loopback address. The token is checked at
    the login and every TOKEN_CHECK_SECONDS after that; a token that is no longer good ends the connection.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        node: str = "journal",
        secret: Secret | None = None,
        tls: ssl.SSLContext | None = None,
        follow: FollowConfig | None = None,
        config: ControlConfig = CONNECTION,
        counters: Counters | None = None,
        check_token: CheckToken | None = None,
    ) -> None:
        self._path = path
        self._check_token = check_token
        self._login_seconds = config.handshake_ms / 1_000
        self._follow = follow or FollowConfig()
        JournalReader.open(path).close()  # better refused now than to the first follower
        self.counters = counters or Counters("journal.server")
        self._admission: Admission[Outbox[Refused], Refused] = Admission(
            _Refusals(),
            Outbox.end,
            self._late,
            party="follower",
            counter="requests_refused",
            cause=Cause.AUTHENTICATION,
            counters=self.counters,
            log=log,
        )
        self._server = ControlServer(
            PROTOCOL,
            self._serve,
            node=node,
            host=host,
            port=port,
            secret=secret,
            tls=tls,
            config=config,
            counters=self.counters,
        )

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        await self._server.start()

    async def close(self) -> None:
        await self._server.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _serve(self, connection: ControlConnection[JournalMessage]) -> None:
        """The records go to the connection as fast as it takes them; the outbox has only the refusal."""
        outbox: Outbox[Refused] = Outbox(1)
        await converse(connection, outbox, self._admit(connection, outbox))

    async def _admit(self, connection: ControlConnection[JournalMessage], outbox: Outbox[Refused]) -> None:
        """Require a login if tokens are required, and serve the follower while its token is valid."""
        if self._check_token is None:
            first = await connection.receive()
            await self._converse_with(connection, await connection.receive() if isinstance(first, Login) else first)
            return
        self._admission.expect(outbox, self._login_seconds, address=connection.address)
        try:
            login = await connection.receive()
        finally:
            self._admission.arrived(outbox)
        if login is None:
            return
        token = login.token if isinstance(login, Login) else ""
        try:
            self._check_token(token)
        except PenstockError as error:
            self._admission.refuse(outbox, error, address=connection.address)
            return
        watching = asyncio.get_running_loop().create_task(_watch_token(connection, self._check_token, token))
        try:
            await self._converse_with(connection, await connection.receive())
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    def _late(self, what: str) -> PenstockError:
        """A follower that sends no login has no token."""
        assert self._check_token is not None
        try:
            self._check_token("")
        except PenstockError as error:
            return error
        return RemoteProtocolError(what)

    async def _converse_with(self, connection: ControlConnection[JournalMessage], wish: JournalMessage | None) -> None:
        while isinstance(wish, Measure):
            await connection.send(await asyncio.to_thread(self._measured, wish))
            wish = await connection.receive()
        if wish is None:
            return
        if not isinstance(wish, Follow) or (wish.from_sequence is not None and wish.from_time_ns is not None):
            raise RemoteProtocolError(f"a follower says where to begin, not {type(wish).__name__}")
        log.info("follower", peer=connection.peer.node, address=connection.address, wish=wish)
        reading = asyncio.get_running_loop().create_task(_refuse_more(connection))
        try:
            with JournalReader.open(self._path, self._follow) as reader:
                await asyncio.to_thread(_seek, reader, wish)
                await self._send_all(connection, reader)
        except JournalGoneError as error:
            await connection.send(Gone(error.first_sequence, str(error)[:TEXT_MAX]))
        except PenstockError as error:
            if connection.is_over:
                raise
            log.error("journal_unavailable", path=str(self._path), code=error.code, error=str(error))
            await connection.send(Unavailable(error.code, str(error)[:TEXT_MAX]))
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    def _measured(self, wish: Measure) -> Extent | Unavailable:
        try:
            return measure(self._path, wish.from_time_ns)
        except PenstockError as error:
            log.error("journal_unavailable", path=str(self._path), code=error.code, error=str(error))
            return Unavailable(error.code, str(error)[:TEXT_MAX])

    async def _send_all(self, connection: ControlConnection[JournalMessage], reader: JournalReader) -> None:
        wait_us, is_caught_up = self._follow.poll_min_us, False
        while not connection.is_over:
            batch = await asyncio.to_thread(reader.read_batch)
            if len(batch):
                await self._send(connection, batch)
                wait_us, is_caught_up = self._follow.poll_min_us, False
                continue
            if not is_caught_up:
                await connection.send(CaughtUp())
                is_caught_up = True
            await asyncio.sleep(wait_us / 1e6)
            wait_us = min(2 * wait_us, self._follow.poll_max_us)

    async def _send(self, connection: ControlConnection[JournalMessage], batch: RecordBatch) -> None:
        cuts = cut_batch(batch)
        for start, end in itertools.pairwise(cuts):
            await connection.send(encode_records(batch, start, end))
            self.counters.add("records_served", end - start)


class _Refusals:
    """The refusals of the protocol."""

    def code_of(self, error: PenstockError) -> str:
        return error.code

    def of(self, error: PenstockError) -> Refused:
        return Refused(error.code, error.what[:TEXT_MAX], error.hint[:TEXT_MAX])


async def _watch_token(connection: ControlConnection[JournalMessage], check: CheckToken, token: str) -> None:
    """End the connection when its token is no longer valid; a follower with a new token reconnects."""
    while True:
        await asyncio.sleep(TOKEN_CHECK_SECONDS)
        try:
            check(token)
        except PenstockError as error:
            log.warning("follower_ended", address=connection.address, code=error.code, error=str(error))
            await connection.close(str(error)[:TEXT_MAX])
            return


async def _refuse_more(connection: ControlConnection[JournalMessage]) -> None:
    """A follower has said where to begin, and that is all. Why its connection ends, whoever sends to it learns too."""
    with contextlib.suppress(PenstockError):
        message = await connection.receive()
        if message is not None:
            log.warning("follower_refused", address=connection.address, said=type(message).__name__)
            await connection.close("a follower says where to begin, once")


def _seek(reader: JournalReader, wish: Follow) -> None:
    if wish.from_sequence is not None:
        reader.seek(wish.from_sequence)
    elif wish.from_time_ns is not None:
        reader.seek_time(wish.from_time_ns)
