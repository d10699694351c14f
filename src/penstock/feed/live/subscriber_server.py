"""The network side of the stream service: a control server with a queue for each subscriber."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from penstock.base.clock import NS_PER_SECOND
from penstock.base.core import Tick
from penstock.base.counters import Counters
from penstock.base.errors import JournalGoneError, PenstockError
from penstock.base.log import logger
from penstock.feed.core.service.events import (
    Close,
    ContributionTaken,
    Disconnected,
    EndStream,
    Image,
    ImageTaken,
    MessageReceived,
    MessageSent,
    Overrun,
    Published,
    Recorded,
    RequestFailed,
    Revoke,
    SendMessage,
    ServiceEvent,
    ServiceInstruction,
    StartHistory,
    TakeContribution,
    TakeImage,
)
from penstock.feed.core.service.published import PublishedBatch
from penstock.feed.core.service.service import StreamService
from penstock.feed.live.delayed_stream import DelayedReader
from penstock.middleware.unicast import (
    CONNECTION,
    PROTOCOL,
    AdapterMessage,
    Contribution,
    RefusalCode,
    StreamRefused,
    UnicastMessage,
)
from penstock.net.config import ControlConfig
from penstock.net.live.admission import Admission, watch_rights
from penstock.net.live.control_driver import ControlConnection, ControlServer
from penstock.net.live.outbox import Outbox, converse
from penstock.net.secret import Secret
from penstock.security.core.refusal import RefusalError, Refusals

LOGIN_SECONDS = 10.0
"""Time limit for the message that opens a stream, counted from the end of the handshake."""

HISTORY_QUEUE_BYTES = 1024 * 1024
"""Delayed data is read from the journal while less than this waits for its subscriber."""

log = logger("feed.service")


class ServiceBackend(Protocol):
    """The adapter's part of the service, which works in another thread."""

    async def take_image(self) -> Image: ...

    def take_contribution(
        self, stream: str, first_sequence: int, messages: list[Contribution]
    ) -> "asyncio.Future[tuple[int, int]]":
        """Return the next number, and the number of new messages."""
        ...

    @property
    def journal_path(self) -> Path | None: ...


class SubscriberServer:
    """Serves streams from start() to close(); beyond the loopback address it needs `tls` and `secret`.

    `on_first_live` is called when the first live subscriber connects, before its image is taken: from then on
    publish() must get everything."""

    def __init__(
        self,
        service: StreamService,
        backend: ServiceBackend,
        *,
        secret: Secret | None = None,
        tls: ssl.SSLContext | None = None,
        connection: ControlConfig = CONNECTION,
        counters: Counters | None = None,
    ) -> None:
        self.service = service
        self.on_first_live: Callable[[], None] | None = None
        self._backend = backend
        self._outboxes: dict[int, Outbox[AdapterMessage]] = {}  # bounded by the service
        self._accepted_count = 0
        self._tasks_running: set[asyncio.Task[None]] = set()
        self.counters = counters or Counters("feed.service.connections")
        self._admission: Admission[Outbox[AdapterMessage], StreamRefused] = Admission(
            Refusals(lambda code, reason, number: StreamRefused(code, reason)),
            Outbox.end,
            lambda what: RefusalError(RefusalCode.PROTOCOL, what),
            party="subscriber",
            counter="subscriptions_refused",
            counters=self.counters,
            log=log,
        )
        self._server = ControlServer(
            PROTOCOL,
            self._converse_with,
            node=service.identity.adapter,
            host=service.config.host,
            port=service.config.port,
            secret=secret,
            tls=tls,
            config=connection,
            counters=self.counters,
        )

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        await self._server.start()
        self._start(watch_rights(lambda now_ns: self.handle(Tick())))

    def publish(self, batch: PublishedBatch) -> None:
        """Pass on published packets, in order."""
        self.handle(Published(batch))

    def overrun(self) -> None:
        """Published packets were lost before publish()."""
        self.handle(Overrun())

    def revoke(self, reason: str, *, client: str = "", subscription_id: str = "") -> None:
        self.handle(Revoke(reason, client, subscription_id))

    async def close(self) -> None:
        self.handle(Close())
        await self._server.close()
        for task in list(self._tasks_running):
            task.cancel()
        await asyncio.gather(*self._tasks_running, return_exceptions=True)

    def handle(self, event: ServiceEvent) -> None:
        had_live = self.service.has_live
        instructions = self.service.handle(event, time.time_ns())
        if self.on_first_live is not None and self.service.has_live and not had_live:
            self.on_first_live()
        for instruction in instructions:
            self._carry_out(instruction)

    async def _converse_with(self, connection: ControlConnection[UnicastMessage]) -> None:
        self._accepted_count += 1
        number = self._accepted_count
        outbox: Outbox[AdapterMessage] = Outbox(
            None, on_sent=lambda size: self.handle(MessageSent(number, size)), send_now=connection.send_now
        )
        self._outboxes[number] = outbox
        try:
            await converse(connection, outbox, self._read(connection, number, outbox))
        finally:
            del self._outboxes[number]
            self.handle(Disconnected(number))

    async def _read(
        self, connection: ControlConnection[UnicastMessage], number: int, outbox: Outbox[AdapterMessage]
    ) -> None:
        self._admission.expect(outbox, LOGIN_SECONDS, address=connection.address)
        try:
            with contextlib.suppress(PenstockError):  # the connection logs the reason
                async for message in connection:
                    self._admission.arrived(outbox)
                    self.handle(MessageReceived(number, message))  # type: ignore[arg-type]
        finally:
            self._admission.arrived(outbox)

    def _carry_out(self, instruction: ServiceInstruction) -> None:
        outbox = self._outboxes.get(instruction.subscriber)
        if outbox is None:
            return
        match instruction:
            case SendMessage():
                outbox.put(instruction.message, instruction.size)
            case EndStream():
                outbox.end(instruction.refusal)
            case TakeImage():
                self._start(self._image(instruction))
            case StartHistory():
                self._start(self._follow(instruction, outbox))
            case TakeContribution():
                self._start(self._contribution(instruction))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks_running.add(task)
        task.add_done_callback(self._tasks_running.discard)

    async def _image(self, wish: TakeImage) -> None:
        try:
            self.handle(ImageTaken(wish.subscriber, await self._backend.take_image()))
        except PenstockError as error:
            self._fail(wish.subscriber, RefusalCode.UNAVAILABLE, str(error))

    async def _contribution(self, wish: TakeContribution) -> None:
        try:
            taken = await self._backend.take_contribution(wish.stream, wish.first_sequence, wish.messages)
            self.handle(ContributionTaken(wish.subscriber, wish.stream, *taken))
        except PenstockError as error:
            self._fail(wish.subscriber, RefusalCode.CONTRIBUTION, str(error))

    async def _follow(self, wish: StartHistory, outbox: Outbox[AdapterMessage]) -> None:
        """Send a delayed subscriber the records that become old enough, as fast as it reads."""
        path = self._backend.journal_path
        try:
            if path is None:
                self._fail(wish.subscriber, RefusalCode.UNAVAILABLE, "this adapter has no journal")
                return
            history = await asyncio.to_thread(DelayedReader.open, path, wish.delay_s, wish.from_ns, time.time_ns())
            try:
                while self._outboxes.get(wish.subscriber) is outbox and not outbox.ending.is_set():
                    batches = await asyncio.to_thread(history.take, time.time_ns())
                    for batch in batches:
                        self.handle(Recorded(wish.subscriber, batch))
                    while outbox.size > HISTORY_QUEUE_BYTES and wish.subscriber in self._outboxes:
                        await asyncio.sleep(0.005)
                    if not batches:
                        await asyncio.sleep(min(history.wait_ns(time.time_ns()) / NS_PER_SECOND, 0.25))
            finally:
                history.close()
        except JournalGoneError as error:
            self._fail(wish.subscriber, RefusalCode.GONE, str(error))
        except PenstockError as error:
            log.error("history_failed", code=error.code, error=str(error))
            self._fail(wish.subscriber, RefusalCode.UNAVAILABLE, str(error))

    def _fail(self, subscriber: int, code: RefusalCode, reason: str) -> None:
        self.handle(RequestFailed(subscriber, StreamRefused(code, reason[:256])))
