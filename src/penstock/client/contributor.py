"""Contribute messages to a feed: messages are numbered here and sent to every adapter until it confirms them."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from typing_extensions import Buffer

from penstock.base.errors import (
    LimitError,
    LocalProtocolError,
    NotEntitledError,
    PenstockError,
    RefusedError,
    RevokedError,
)
from penstock.base.log import logger
from penstock.client.adapter_connections import AdapterConnections
from penstock.client.config import ClientConfig
from penstock.client.service import Protection, refusal
from penstock.middleware.unicast import (
    CONTRIBUTIONS_MAX,
    Contribute,
    Contributed,
    Contribution,
    OpenStream,
    RenewToken,
    StreamOpened,
    StreamRefused,
    UnicastMessage,
)
from penstock.model import Message
from penstock.net.live.control_driver import ControlConnection
from penstock.net.live.loop_thread import LoopThread
from penstock.security import Entitlement
from penstock.security.core.brokering import Brokered, BrokeredStream, StreamAddress
from penstock.topics import check_topic

log = logger("client.contributor")


class Contributor:
    """Contributes messages: send() returns at once; flush() waits until the adapters have confirmed all messages."""

    def __init__(
        self,
        thread: LoopThread,
        protection: Protection,
        config: ClientConfig,
        brokered: Brokered,
        stream: str,
        node: str,
        cancel: Callable[[str], None],
    ) -> None:
        self.id = brokered.subscription_id
        self.stream = stream
        self.topics = tuple(each.pattern for each in brokered.grants if each.action == "send")
        self._entitlement = Entitlement(brokered.grants)
        self._token = brokered.token
        self._thread = thread
        self._config = config
        self._cancel = cancel
        self._changed = threading.Condition()
        self._error: PenstockError | None = None
        self._is_closed = False
        self._is_told = False  # the loop will look for new messages
        self._kept: deque[Contribution] = deque()  # messages that at least one adapter has not confirmed
        self._first = 0  # number of the oldest kept message; 0 until an adapter has reported its position
        self._taken: dict[StreamAddress, int] = {}  # next number, by adapter
        # only used in the loop's thread
        self._connections = AdapterConnections(
            protection,
            config,
            node,
            request=self._request,
            serve=self._serve,
            refused=self._note_refusal,
            lost=self._note_loss,
        )
        self._news: dict[StreamAddress, asyncio.Event] = {}
        self.moved(brokered.streams)

    def send(self, topic: str, payload: Buffer | Message, *, model_id: int = 0, model_version: int = 0) -> None:
        """Contribute one message. A Message brings its model's id and version."""
        check_topic(topic)
        self._raise_if_over()
        self._entitlement.check_send(topic)
        if isinstance(payload, Message):
            model_id, model_version = payload.model.id, payload.version
        content = bytes(payload)
        with self._changed:
            if len(self._kept) >= self._config.unconfirmed_max:
                # a disconnected adapter gets these messages from the other adapters when it returns
                self._forget(self._connections.open)
            if len(self._kept) >= self._config.unconfirmed_max:
                raise LimitError(
                    f"{len(self._kept)} contributed messages are unconfirmed, which is the limit",
                    hint="call flush() more often",
                )
            self._kept.append(Contribution(topic, model_id, model_version, content))
            is_told, self._is_told = self._is_told, True
        if not is_told:  # otherwise the loop will look anyway
            self._thread.call(self._tell)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until every connected adapter has confirmed all messages; True if so, and at least one adapter is
        connected.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._is_taken(), timeout)
            self._raise_if_over()
            return self._is_taken()

    def close(self) -> None:
        self._is_closed = True
        self._thread.start(self._follow(())).result()

    def cancel(self) -> None:
        """Close the contribution, here and at the administration server."""
        if not self._is_closed:
            self._cancel(self.id)
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cancel()

    # For the client's own thread

    @property
    def is_over(self) -> bool:
        return self._is_closed or self._error is not None

    def renewed(self, brokered: Brokered) -> None:
        self._token = brokered.token
        self._entitlement = Entitlement(brokered.grants)
        self._thread.start(self._connections.send(RenewToken(self._token)))
        self.moved(brokered.streams)

    def moved(self, streams: Sequence[BrokeredStream]) -> None:
        addresses = [address for stream in streams if stream.send for address in stream.addresses]
        self._thread.start(self._follow(addresses))

    def fail(self, error: PenstockError) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()

    def _raise_if_over(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise LocalProtocolError("the contributor is closed")

    # In the loop's thread

    async def _follow(self, addresses: Sequence[StreamAddress]) -> None:
        await self._connections.follow(addresses, self._left)

    def _left(self, address: StreamAddress) -> None:
        self._news.pop(address, None)
        with self._changed:
            self._taken.pop(address, None)
            self._forget(self._connections.followed)

    def _tell(self) -> None:
        self._is_told = False  # before the look: a message after it tells again
        for event in self._news.values():
            event.set()

    def _request(self) -> OpenStream:
        return OpenStream(self._token, [], live=True)

    async def _serve(
        self,
        address: StreamAddress,
        connection: ControlConnection[UnicastMessage],
        request: OpenStream,
        opened: StreamOpened,
    ) -> None:
        """Ask for the adapter's position, then send the missing messages, repeatedly."""
        self._news.setdefault(address, asyncio.Event())
        await connection.send(Contribute(self.stream, 1, []))
        writing = asyncio.create_task(self._write(address, connection))
        try:
            async for said in connection:
                if isinstance(said, StreamRefused):
                    raise refusal(said)
                if isinstance(said, Contributed) and said.stream == self.stream:
                    self._note(address, said.next_sequence)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    def _note_refusal(self, address: StreamAddress, error: RefusedError) -> bool:
        log.warning("contribution_refused", adapter=address.adapter, code=error.peer_code, reason=error.what)
        final = {"revoked": RevokedError, "entitlement": NotEntitledError}.get(error.peer_code)
        if final is not None:
            self.fail(final(error.what))
        return final is not None

    def _note_loss(self, address: StreamAddress, error: PenstockError) -> None:
        log.info("contribution_connection_lost", adapter=address.adapter, error=str(error))

    async def _write(self, address: StreamAddress, connection: ControlConnection[UnicastMessage]) -> None:
        sent = 0
        while True:
            await self._news[address].wait()
            self._news[address].clear()
            if address not in self._taken:
                continue
            if self._taken[address] < self._first:  # the adapter must get the earlier messages from the others first
                await asyncio.sleep(self._config.reconnect_max_s)
                await connection.send(Contribute(self.stream, self._first, []))
                continue
            while True:
                with self._changed:
                    first = max(sent, self._taken[address], self._first)
                    at = first - self._first
                    messages = [self._kept[n] for n in range(at, min(at + CONTRIBUTIONS_MAX, len(self._kept)))]
                if not messages:
                    break
                await connection.send(Contribute(self.stream, first, messages))
                sent = first + len(messages)

    def _note(self, address: StreamAddress, next_sequence: int) -> None:
        with self._changed:
            if self._first == 0:
                self._first = next_sequence  # continue after an earlier contributor of this stream
            self._taken[address] = next_sequence
            self._forget(self._connections.followed)
        self._news[address].set()

    # With the lock held

    def _forget(self, addresses: Iterable[StreamAddress]) -> None:
        """Keep only messages that one of these adapters has not confirmed."""
        upto = min((self._taken.get(each, 0) for each in addresses), default=0)
        while self._kept and self._first < upto:
            self._kept.popleft()
            self._first += 1
        self._changed.notify_all()

    def _is_taken(self) -> bool:
        end = self._first + len(self._kept)
        connected = list(self._connections.open)
        return bool(connected) and all(self._taken.get(each, 0) >= end for each in connected)
