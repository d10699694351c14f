"""Events between nodes by UDP (docs/protocol/distribution-datagrams.md).

The node above sends messages of events in a stream of the middleware's packets to the node below: what is lost is asked
for and sent again. Adaptive and metered updates can have a stream of their own, of which nothing is kept: there the
next update makes up for a lost one.
"""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable

from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.engine import EventKind, TransmissionClass
from penstock.engine._event import EVENT_BODY_SIZE_AT, EVENT_CLASS_AT, EVENT_HEAD_SIZE, EVENT_KIND_AT, EVENT_PADDING
from penstock.engine.control import Welcome
from penstock.middleware import Deliver, DeliverBatch, Expect, LossReceipt, PublisherConfig, ReceiverConfig, StreamKey
from penstock.middleware.driver import MulticastPublisher
from penstock.middleware.own import OWN_PREFIX
from penstock.middleware.receiving_driver import SocketReceiver
from penstock.net.udp import Address, Channel, host_socket
from penstock.plant.config import DatagramsConfig

TOPIC = f"{OWN_PREFIX}distribution"
BLOCK_SIZE_MAX = 32_768
"""Bytes of events in one message."""

CHANNEL, FRESH = "239.255.74.10", "239.255.74.11"
"""What stands for the two streams in their packets: they are sent to one receiver, and to no group."""

EPOCH = 1
SLICE_SECONDS = 0.05

log = logger("plant.datagrams")


class DatagramSender:
    """The events of one consumer, from the node above."""

    def __init__(self, config: DatagramsConfig, to: Address, counters: Counters) -> None:
        self._sure = MulticastPublisher(_channel(CHANNEL, config.interface), to=to, counters=counters)
        self._fresh: MulticastPublisher | None = None
        if config.missed == "wait":
            forgetful = PublisherConfig(retransmission_packets_max=1, linger_ms=1)
            self._fresh = MulticastPublisher(
                _channel(FRESH, config.interface),
                to=to,
                counters=counters,
                config=forgetful,
                publisher_id=self._sure.publisher_id,
                epoch=EPOCH,
            )

    @property
    def publisher_id(self) -> int:
        return self._sure.publisher_id

    @property
    def address(self) -> Address:
        return self._sure.address

    @property
    def fresh_port(self) -> int:
        return 0 if self._fresh is None else self._fresh.address[1]

    def send(self, data: bytes) -> None:
        """Whole events."""
        if self._fresh is None:
            self._sure.publish(TOPIC, data)
            return
        sure, fresh = split_events(data)
        if sure:
            self._sure.publish(TOPIC, sure)
        if fresh:
            self._fresh.publish(TOPIC, fresh)

    def close(self) -> None:
        for each in (self._sure, self._fresh):
            if each is not None:
                each.close(linger=False)


def split_events(data: bytes) -> tuple[bytes, bytes]:
    """Events that must come, and updates that a later one makes up for."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at + EVENT_BODY_SIZE_AT)
        end = at + EVENT_HEAD_SIZE + -(-size // EVENT_PADDING) * EVENT_PADDING
        is_update = data[at + EVENT_KIND_AT] == EventKind.UPDATE
        is_fresh = is_update and data[at + EVENT_CLASS_AT] != TransmissionClass.CRITICAL
        parts[is_fresh].append(data[at:end])
        at = end
    return b"".join(parts[0]), b"".join(parts[1])


class _Hearing(SocketReceiver):
    def expect(self, event: Expect) -> None:
        self._carry_out(self._core.handle(event, time.monotonic_ns()))


class DatagramReceiver:
    """The node below: hears one node above at a time, in a thread. `on_events` is given events and whether they are of
    the stream that must come; `on_loss` is told that something of it did not."""

    def __init__(
        self, interface: str, on_events: Callable[[bytes, bool], None], on_loss: Callable[[], None], counters: Counters
    ) -> None:
        self._socket = host_socket(interface)
        self._on_events = on_events
        self._on_loss = on_loss
        self._counters = counters
        self._thread: threading.Thread | None = None
        self._is_stopped = threading.Event()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def follow(self, welcome: Welcome) -> None:
        """Hear this one from now on, and no other."""
        self.rest()
        own = socket.socket(fileno=os.dup(self._socket.fileno()))
        receiver = _Hearing(
            own,
            [],
            {},
            config=ReceiverConfig(join="start"),
            counters=self._counters,
            spin=False,
            loss=0.0,
            only_expected=True,
        )
        for group, port in ((CHANNEL, welcome.port), (FRESH, welcome.fresh_port)):
            if port:
                key = StreamKey(welcome.publisher_id, Channel(group=group, port=1).group_id)
                receiver.expect(Expect(key, EPOCH, 1, (welcome.host, port)))
        self._is_stopped.clear()
        self._thread = threading.Thread(target=self._run, args=(receiver,), name="penstock-datagrams", daemon=True)
        self._thread.start()

    def rest(self) -> None:
        """Hear nobody."""
        if self._thread is not None:
            self._is_stopped.set()
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        self.rest()
        self._socket.close()

    def _run(self, receiver: SocketReceiver) -> None:
        fresh = Channel(group=FRESH, port=1).group_id
        with receiver:
            while not self._is_stopped.is_set():
                try:
                    for each in receiver.receive(SLICE_SECONDS):
                        if isinstance(each, Deliver | DeliverBatch):
                            self._take(each, fresh)
                        elif isinstance(each, LossReceipt) and each.stream.group != fresh:
                            self._on_loss()
                except PenstockError as error:  # what came makes no sense: nothing of it can be relied on
                    log.warning("events_refused", code=error.code, error=str(error))
                    self._on_loss()

    def _take(self, delivered: Deliver | DeliverBatch, fresh: int) -> None:
        if isinstance(delivered, Deliver):
            for message in delivered.messages:
                self._on_events(bytes(message.payload), delivered.stream.group != fresh)
            return
        for index, message in enumerate(delivered.messages):
            self._on_events(bytes(message.payload), delivered.messages.group_of(index) != fresh)


def _channel(group: str, interface: str) -> Channel:
    return Channel(group=group, port=1, interface=interface)
