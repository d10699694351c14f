"""Streams over TCP: the same packets from every adapter's service, merged like multicast streams."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from penstock.base.clock import SystemRandomness
from penstock.base.counters import Cause, Counters
from penstock.base.errors import PenstockError, RefusedError
from penstock.base.log import logger
from penstock.client.adapter_connections import AdapterConnections
from penstock.client.config import ClientConfig
from penstock.client.joining import Begun
from penstock.client.service import Protection, refusal
from penstock.middleware import Receiver, ReceiverConfig, StreamEnded, StreamKey, StreamStarted
from penstock.middleware.live import Received
from penstock.middleware.unicast import (
    ModifyStream,
    OpenStream,
    Packets,
    RenewToken,
    StreamOpened,
    StreamRefused,
    UnicastMessage,
)
from penstock.net.live.control_driver import ControlConnection
from penstock.net.live.loop_thread import LoopThread
from penstock.security.core.brokering import StreamAddress
from penstock.wire import DatagramBatch

log = logger("client.unicast")

BATCH_PACKETS = 64
FINAL_CODES = {"revoked", "entitlement", "topics", "gone"}
"""Codes of refusals that a retry would not change."""


class UnicastReceiver:
    """A source of a MergingReceiver. Lost connections are re-established; `on_refused` is called with the reason of a
    refusal.
    """

    def __init__(
        self,
        thread: LoopThread,
        protection: Protection,
        config: ClientConfig,
        counters: Counters,
        *,
        node: str,
        token: str,
        topics: Sequence[str],
        delay_s: int,
        on_refused: Callable[[RefusedError], None],
    ) -> None:
        self._thread = thread
        self._config = config
        self._counters = counters
        self._token = token
        self._topics = list(topics)
        self._delay_s = delay_s
        self._on_refused = on_refused
        self.begun: dict[StreamAddress, Begun] = {}
        """The open streams by place, at the position of receive()."""
        # (connection, publisher id, content): content is the address when opened, then packets, and None at the end
        self._inbox: deque[tuple[int, int, StreamAddress | Packets | None]] = deque()
        self._arrived = threading.Condition()
        self._receivers: dict[int, Receiver] = {}
        self._batch = DatagramBatch(BATCH_PACKETS, SystemRandomness().below(2**64))
        self._rest: tuple[int, int, list[bytes]] | None = None
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
        self._connection_count = 0

    def follow(self, addresses: Sequence[StreamAddress]) -> None:
        """Connect to exactly these adapters."""
        self._thread.start(self._connections.follow(addresses)).result()

    def modify(self, topics: Sequence[str]) -> None:
        self._topics = list(topics)
        self._thread.start(self._connections.send(ModifyStream(list(topics)))).result()

    def renew(self, token: str) -> None:
        self._token = token
        self._thread.start(self._connections.send(RenewToken(token)))

    def receive(self, timeout: float | None = None) -> list[Received]:
        """Like MulticastReceiver.receive()."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._rest is None:
                with self._arrived:
                    while not self._inbox:
                        left = None if deadline is None else deadline - time.monotonic()
                        if (left is not None and left <= 0) or not self._arrived.wait(left):
                            return []
                    connection, publisher_id, said = self._inbox.popleft()
                if said is None:
                    return [self._end(connection, publisher_id)]
                if isinstance(said, StreamAddress):
                    return [self._begin(connection, publisher_id, said)]
                self._rest = (connection, publisher_id, list(said.packets))
            if received := self._take():
                return received

    def descriptors(self) -> list[int] | None:
        return None

    def next_due_ns(self) -> int | None:
        return None

    def close(self) -> None:
        self._thread.start(self._connections.follow(())).result()

    def _take(self) -> list[Received]:
        """Return the next packets of the current message."""
        assert self._rest is not None
        connection, publisher_id, packets = self._rest
        now, later = packets[:BATCH_PACKETS], packets[BATCH_PACKETS:]
        self._rest = (connection, publisher_id, later) if later else None
        receiver = self._receivers.get(connection)
        is_first = receiver is None
        if receiver is None:
            receiver = Receiver(ReceiverConfig(join="start"), SystemRandomness(), self._counters)
            self._receivers[connection] = receiver
        self._batch.clear()
        for data in now:
            self._batch.append(data, ("", connection))
        told = receiver.receive_batch(self._batch, time.monotonic_ns())
        received = [each for each in told if isinstance(each, Received)]
        if is_first and received and isinstance(received[0], StreamStarted):
            del received[0]  # already reported when the stream was opened
        return received

    def _begin(self, connection: int, publisher_id: int, address: StreamAddress) -> StreamStarted:
        self.begun[address] = Begun(connection, publisher_id)
        return StreamStarted(StreamKey(publisher_id, 0), 0, 1)

    def _end(self, connection: int, publisher_id: int) -> StreamEnded:
        self._receivers.pop(connection, None)
        self.begun = {address: each for address, each in self.begun.items() if each.connection != connection}
        return StreamEnded(StreamKey(publisher_id, 0), 0, 0, Cause.CUT)

    # In the loop's thread

    def _request(self) -> OpenStream:
        return OpenStream(self._token, self._topics, delay_s=self._delay_s)

    async def _serve(
        self,
        address: StreamAddress,
        connection: ControlConnection[UnicastMessage],
        request: OpenStream,
        opened: StreamOpened,
    ) -> None:
        self._connection_count += 1
        number = self._connection_count
        self._append(number, opened.publisher_id, address)
        try:
            if (self._token, self._topics) != (request.token, request.topics):
                await connection.send(RenewToken(self._token))
                await connection.send(ModifyStream(self._topics))
            async for said in connection:
                if isinstance(said, StreamRefused):
                    raise refusal(said)
                if isinstance(said, Packets):
                    await self._put(number, opened.publisher_id, said)
        finally:
            self._append(number, opened.publisher_id, None)

    def _note_refusal(self, address: StreamAddress, error: RefusedError) -> bool:
        log.warning("stream_refused", adapter=address.adapter, code=error.peer_code, reason=error.what)
        self._on_refused(error)
        return error.peer_code in FINAL_CODES

    def _note_loss(self, address: StreamAddress, error: PenstockError) -> None:
        log.info("stream_lost", adapter=address.adapter, error=str(error))

    async def _put(self, number: int, publisher_id: int, said: Packets) -> None:
        while len(self._inbox) >= self._config.inbox_messages_max:
            await asyncio.sleep(0.001)  # the application is slow: apply back-pressure to the adapter
        self._append(number, publisher_id, said)

    def _append(self, number: int, publisher_id: int, said: StreamAddress | Packets | None) -> None:
        with self._arrived:
            self._inbox.append((number, publisher_id, said))
            self._arrived.notify()
