"""Transports between two Python processes: ours, and the peers for comparison.

Each transport is a Sender in the publishing process and a Receiver in the reading one. All do the same: send payloads
of PAYLOAD_SIZE bytes that begin with the send time, one at a time. The receive time is taken when the receiving call
returns, before decoding.
"""

import ctypes
import importlib.util
import multiprocessing
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Protocol

from penstock.base.errors import HandoverError, PenstockError
from penstock.base.segment import Segment
from penstock.middleware import ReceiverConfig
from penstock.middleware.live import MulticastPublisher, MulticastReceiver
from penstock.net.live.handover import Handover, receive_segment
from penstock.net.udp import Channel, free_channel
from penstock.shm import RingReader, RingWriter
from penstock.wire import AuthenticationKey, AuthenticationScope, Authenticator, VouchedPublisher

PAYLOAD_SIZE = 128
RING_CAPACITY = 1 << 24
ICEORYX2_BUFFER = 4_096
PATIENCE_SECONDS = 30.0
ANSWER_SECONDS = 120.0
ALL_CORES = os.sched_getaffinity(0)
BETWEEN_PROCESSES = (
    f"two Python processes, {'a core each' if len(ALL_CORES) > 1 else 'one core'}, {PAYLOAD_SIZE}-byte payloads"
)

now = time.perf_counter_ns
stamp = struct.Struct("<q")


class Sender(Protocol):
    def send(self) -> None:
        """Send a payload that begins with the current time."""

    def close(self) -> None: ...


class Receiver(Protocol):
    def receive(self, count: int) -> list[int]:
        """Return the latency of each of the next messages in nanoseconds."""

    def close(self) -> None: ...


class RingSender:
    def __init__(self, address: str) -> None:
        self._ring = RingWriter.create(RING_CAPACITY, PAYLOAD_SIZE)
        self._handover = Handover(address)
        self._handover.offer("bench", self._ring.segment)
        self._handover.start()
        self._payload = bytearray(PAYLOAD_SIZE)

    def send(self) -> None:
        stamp.pack_into(self._payload, 0, now())
        self._ring.write(self._payload)

    def close(self) -> None:
        self._ring.close()
        self._handover.close()


class RingReceiver:
    def __init__(self, address: str) -> None:
        self._segment = wait_for_segment(address)
        self._ring = RingReader(self._segment, wait="spin")

    def receive(self, count: int) -> list[int]:
        read, taken = self._ring.read, []
        for _ in range(count):
            payload: Any = read()
            arrived = now()
            taken.append(arrived - stamp.unpack_from(payload)[0])
        return taken

    def close(self) -> None:
        self._ring.close()
        self._segment.close()


KEY = AuthenticationKey(1, bytes(range(16)))
PUBLISHER = {"publisher_id": 1, "epoch": 1}


def authenticator() -> Authenticator:
    """Return an authenticator for packets of PUBLISHER with KEY."""
    return Authenticator([AuthenticationScope("bench", (KEY,), KEY.key_id, (VouchedPublisher(1, 1, 1),))])


class UdpSender:
    def __init__(self, address: str, *, is_authentic: bool = False) -> None:
        options: dict[str, Any] = {**PUBLISHER, "keys": (KEY,)} if is_authentic else {}
        self._publisher = MulticastPublisher(Channel.parse(address), **options)
        self._payload = bytearray(PAYLOAD_SIZE)

    def send(self) -> None:
        stamp.pack_into(self._payload, 0, now())
        self._publisher.publish("md.us.eq.AAPL.quote", self._payload)

    def close(self) -> None:
        self._publisher.close(linger=False)


class UdpReceiver:
    def __init__(self, address: str, *, is_authentic: bool = False) -> None:
        config = ReceiverConfig(join="start")
        self._receiver = MulticastReceiver(
            [Channel.parse(address)], config=config, spin=True, authenticator=authenticator() if is_authentic else None
        )

    def receive(self, count: int) -> list[int]:
        taken: list[int] = []
        for message in self._receiver:
            arrived = now()
            taken.append(arrived - stamp.unpack_from(message.payload)[0])
            if len(taken) == count:
                break
        return taken

    def close(self) -> None:
        self._receiver.close()


class ZmqSender:
    def __init__(self, address: str) -> None:
        import zmq

        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.bind(address)
        self._payload = bytearray(PAYLOAD_SIZE)

    def send(self) -> None:
        stamp.pack_into(self._payload, 0, now())
        self._socket.send(self._payload)

    def close(self) -> None:
        self._context.destroy()


class ZmqReceiver:
    """Polls, or blocks in the receiving call, which may be faster with few cores."""

    def __init__(self, address: str, *, is_spinning: bool) -> None:
        import zmq

        self._again = zmq.Again
        self._flags = zmq.NOBLOCK if is_spinning else 0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.connect(address)

    def receive(self, count: int) -> list[int]:
        receive, flags, again = self._socket.recv, self._flags, self._again
        taken: list[int] = []
        while len(taken) < count:
            try:
                payload = receive(flags)
            except again:
                os.sched_yield()
                continue
            arrived = now()
            taken.append(arrived - stamp.unpack_from(payload)[0])
        return taken

    def close(self) -> None:
        self._context.destroy()


class _Payload(ctypes.Structure):
    _fields_ = (("sent", ctypes.c_int64), ("rest", ctypes.c_uint8 * (PAYLOAD_SIZE - 8)))


def _iceoryx2_service(address: str) -> tuple[Any, Any]:
    import iceoryx2

    iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
    node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
    builder = node.service_builder(iceoryx2.ServiceName.new(address)).publish_subscribe(_Payload)
    return node, builder.subscriber_max_buffer_size(ICEORYX2_BUFFER).open_or_create()


class Iceoryx2Sender:
    def __init__(self, address: str) -> None:
        self._node, self._service = _iceoryx2_service(address)
        self._publisher = self._service.publisher_builder().create()
        self._payload = _Payload()

    def send(self) -> None:
        self._payload.sent = now()
        self._publisher.send_copy(self._payload)

    def close(self) -> None:
        self._publisher.delete()


class Iceoryx2Receiver:
    def __init__(self, address: str) -> None:
        self._node, self._service = _iceoryx2_service(address)
        self._subscriber = self._service.subscriber_builder().buffer_size(ICEORYX2_BUFFER).create()

    def receive(self, count: int) -> list[int]:
        receive, sent_at = self._subscriber.receive, ctypes.c_int64.from_address
        taken: list[int] = []
        while len(taken) < count:
            sample = receive()
            if sample is not None:
                arrived = now()
                taken.append(arrived - sent_at(sample.payload_ptr).value)
        return taken

    def close(self) -> None:
        self._subscriber.delete()


class Transport:
    """Creates both ends, and an address for them below a folder; `is_pinned` unless the transport has its own threads.

    Such threads need a core, too: the process is then not pinned, and yields while it waits.
    """

    def __init__(
        self,
        sender: Callable[[str], Sender],
        receiver: Callable[[str], Receiver],
        *,
        address: Callable[[str], str] = lambda path: path,
        module: str = "",
        is_pinned: bool = True,
    ) -> None:
        self.sender = sender
        self.receiver = receiver
        self.address = address
        self.is_available = not module or importlib.util.find_spec(module) is not None
        self.module = module
        self.is_pinned = is_pinned


def _zmq(address: Callable[[str], str], *, is_spinning: bool) -> Transport:
    return Transport(
        ZmqSender,
        lambda endpoint: ZmqReceiver(endpoint, is_spinning=is_spinning),
        address=address,
        module="zmq",
        is_pinned=False,
    )


def _ipc(path: str) -> str:
    return f"ipc://{path}"


def tcp_endpoint(path: str = "") -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


TRANSPORTS = {
    "ring": Transport(RingSender, RingReceiver),
    "iceoryx2": Transport(Iceoryx2Sender, Iceoryx2Receiver, module="iceoryx2"),
    "pyzmq ipc, spinning": _zmq(_ipc, is_spinning=True),
    "pyzmq ipc, blocking": _zmq(_ipc, is_spinning=False),
    "udp": Transport(UdpSender, UdpReceiver, address=lambda path: str(free_channel())),
    "udp, authentic": Transport(
        lambda address: UdpSender(address, is_authentic=True),
        lambda address: UdpReceiver(address, is_authentic=True),
        address=lambda path: str(free_channel()),
    ),
    "pyzmq tcp, spinning": _zmq(tcp_endpoint, is_spinning=True),
    "pyzmq tcp, blocking": _zmq(tcp_endpoint, is_spinning=False),
}


def pin(position: int, *, is_pinned: bool = True) -> None:
    """Pin this thread to the process's first or last core, if there are several."""
    cores = sorted(ALL_CORES)
    os.sched_setaffinity(0, {cores[position]} if is_pinned and len(cores) > 1 else cores)


class BoundedConnection(Connection):
    """An end of a pipe whose recv() waits for a bounded time."""

    def recv(self) -> Any:
        check(self.poll(ANSWER_SECONDS), f"a process of the bench gave no answer within {ANSWER_SECONDS:.0f} s")
        try:
            return super().recv()
        except EOFError:
            raise PenstockError("a process of the bench failed; its error is above") from None


@contextmanager
def other_process(target: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """Run `target` in a process that is stopped at the end, and killed at once after an error here; its last argument
    is its end of the pipe.
    """
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        with mine, BoundedConnection(os.dup(mine.fileno())) as ours:
            yield ours
    except BaseException:
        process.kill()
        raise
    finally:
        process.join(PATIENCE_SECONDS)
        process.kill()
        process.join()
        process.close()


def wait_for_segment(address: str) -> Segment:
    """Return the segment that another process is about to offer."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return receive_segment(address, "bench")
        except HandoverError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def check(condition: bool, what: str) -> None:
    """Raise an error if the condition is false, because an invalid measurement must not give a figure."""
    if not condition:
        raise PenstockError(what)
