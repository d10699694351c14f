"""Streams over TCP: the same packets from every adapter's service, merged like multicast streams."""

import time
from collections.abc import Callable, Sequence

import msgspec

from penstock.base.clock import NS_PER_SECOND, SystemRandomness
from penstock.base.counters import Cause, Counters
from penstock.base.errors import PenstockError, RefusedError
from penstock.base.log import logger
from penstock.client._packet_intake import PacketCutter, PacketIntake
from penstock.client.adapter_connections import AdapterConnections
from penstock.client.config import ClientConfig
from penstock.client.joining import Begun
from penstock.client.service import Protection, refusal
from penstock.middleware import Receiver, ReceiverConfig, StreamEnded, StreamKey, StreamStarted
from penstock.middleware.live import Received
from penstock.middleware.unicast import (
    CONNECTION,
    PROTOCOL,
    ModifyStream,
    OpenStream,
    Packets,
    RenewToken,
    StreamOpened,
    StreamRefused,
    UnicastMessage,
)
from penstock.net.core.framing import encode_frame
from penstock.net.live.control_driver import ControlConnection
from penstock.net.live.loop_thread import LoopThread
from penstock.security.core.brokering import StreamAddress
from penstock.wire import DatagramBatch

log = logger("client.unicast")

BATCH_PACKETS = 64
FOR_EVER_NS = 2**62
FINAL_CODES = {"revoked", "entitlement", "topics", "gone"}
"""Codes of refusals that a retry would not change."""


class _Opened(msgspec.Struct, frozen=True):
    """The stream of a connection begins."""

    cutter: PacketCutter
    publisher_id: int
    address: StreamAddress


class _Ended(msgspec.Struct, frozen=True):
    cutter: PacketCutter
    publisher_id: int


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
        self._intake = PacketIntake()
        self._receivers: dict[int, Receiver] = {}  # by connection
        self._batch = DatagramBatch(BATCH_PACKETS, SystemRandomness().below(2**64))
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
        left_ns = FOR_EVER_NS if timeout is None else int(timeout * NS_PER_SECOND)
        deadline_ns = time.monotonic_ns() + left_ns
        while True:
            match self._intake.take(self._batch, left_ns):
                case PacketCutter() as cutter:
                    if received := self._take(cutter.number):
                        return received
                case _Opened() as opened:
                    return [self._begin(opened)]
                case _Ended() as ended:
                    return [self._end(ended)]
            left_ns = deadline_ns - time.monotonic_ns()
            if left_ns <= 0:
                return []

    def descriptors(self) -> list[int] | None:
        return [self._intake.fileno()]

    def next_due_ns(self) -> int | None:
        return None

    def close(self) -> None:
        self._thread.start(self._connections.follow(())).result()
        self._intake.close()

    def _take(self, connection: int) -> list[Received]:
        """Pass the packets in the batch to the receiver of their connection."""
        receiver = self._receivers.get(connection)
        is_first = receiver is None
        if receiver is None:
            receiver = Receiver(ReceiverConfig(join="start"), SystemRandomness(), self._counters)
            self._receivers[connection] = receiver
        told = receiver.receive_batch(self._batch, time.monotonic_ns())
        received = [each for each in told if isinstance(each, Received)]
        if is_first and received and isinstance(received[0], StreamStarted):
            del received[0]  # already reported when the stream was opened
        return received

    def _begin(self, opened: _Opened) -> StreamStarted:
        self.begun[opened.address] = Begun(opened.cutter.number, opened.publisher_id)
        return StreamStarted(StreamKey(opened.publisher_id, 0), 0, 1)

    def _end(self, ended: _Ended) -> StreamEnded:
        connection = ended.cutter.number
        self._receivers.pop(connection, None)
        self.begun = {address: each for address, each in self.begun.items() if each.connection != connection}
        return StreamEnded(StreamKey(ended.publisher_id, 0), 0, 0, Cause.CUT)

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
        cutter = PacketCutter(
            self._intake,
            self._connection_count,
            frame_size_max=CONNECTION.message_size_max,
            frames_max=self._config.inbox_messages_max,
            tell_room=connection.notice_room,
        )
        self._intake.put(_Opened(cutter, opened.publisher_id, address))
        try:
            for said in connection.divert_to(cutter):
                self._note(said, cutter)
            if (self._token, self._topics) != (request.token, request.topics):
                await connection.send(RenewToken(self._token))
                await connection.send(ModifyStream(self._topics))
            async for said in connection:
                self._note(said, cutter)
        finally:
            self._intake.put(_Ended(cutter, opened.publisher_id))

    def _note(self, said: UnicastMessage, cutter: PacketCutter) -> None:
        """Handle a message that the session has decoded."""
        if isinstance(said, StreamRefused):
            raise refusal(said)
        if isinstance(said, Packets):
            cutter.put(encode_frame(PROTOCOL.encode(said, CONNECTION.message_size_max)))

    def _note_refusal(self, address: StreamAddress, error: RefusedError) -> bool:
        log.warning("stream_refused", adapter=address.adapter, code=error.peer_code, reason=error.what)
        self._on_refused(error)
        return error.peer_code in FINAL_CODES

    def _note_loss(self, address: StreamAddress, error: PenstockError) -> None:
        log.info("stream_lost", adapter=address.adapter, error=str(error))
