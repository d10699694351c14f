"""Consumers of a distribution node, or of a pyzmq publisher, in their own processes: their orders and reports.

The first consumer polls on a core of its own. The others share the producer's core and drain their sources
periodically. An order is a kind and a number of messages; the answer follows when the messages have arrived.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.bench.transports import check, now, other_process, pin, stamp
from penstock.engine.core.kernel._event import EVENT_HEAD_SIZE
from penstock.net.live.handover import receive_segment
from penstock.shm import RingReader

CONSUMERS = 8
DRAIN_EVERY_NS = 2 * NS_PER_MS
ROWS = 4_096
PATIENCE_NS = 30 * NS_PER_SECOND
QUIET_NS = 5 * NS_PER_SECOND


class RingSource:
    """Events of a ring; the timestamp is at the start of the body."""

    stamp_at = EVENT_HEAD_SIZE

    def __init__(self, path: str, number: int, row_size: int) -> None:
        self._segment = receive_segment(path, str(number))
        self._ring = RingReader(self._segment)
        self._rows = numpy.zeros((ROWS, row_size), numpy.uint8)
        self.read = self._ring.read

    def take(self) -> int:
        """Take the available events, up to a bound, and return their number."""
        return self._ring.read_batch(self._rows, timeout_ns=0)

    def skip(self) -> None:
        """Discard events from before the measurement."""
        while self._ring.read(0) is not None:
            pass

    def restart(self) -> None:
        """Continue after the producer has restarted the ring."""
        while not self._ring.restart():
            os.sched_yield()

    def close(self) -> None:
        self._ring.close()
        self._segment.close()


class ZmqSource:
    """Messages of a pyzmq publisher, which begin with the timestamp."""

    stamp_at = 0

    def __init__(self, path: str, number: int, row_size: int) -> None:
        import zmq

        self._again = zmq.Again
        self._without_waiting = zmq.NOBLOCK
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(f"ipc://{path}")

    def read(self) -> bytes:
        receive, flags, again = self._socket.recv, self._without_waiting, self._again
        while True:
            try:
                message: bytes = receive(flags)
            except again:
                os.sched_yield()  # pyzmq's own thread needs a core, too
                continue
            return message

    def take(self) -> int:
        for count in range(ROWS):
            try:
                self._socket.recv(self._without_waiting)
            except self._again:
                return count
        return ROWS

    def skip(self) -> None:
        while self.take():
            pass

    def close(self) -> None:
        self._context.destroy(linger=0)


SOURCES: dict[str, Callable[[str, int, int], Any]] = {"ring": RingSource, "pyzmq": ZmqSource}


class Crowd:
    """The producer's handle to the consumers' processes."""

    def __init__(self, orders: list[Connection], pids: list[int]) -> None:
        self._orders = orders
        self.pids = pids
        self.stopped: set[int] = set()

    def tell(self, kind: str, count: int = 0) -> None:
        for number, orders in enumerate(self._orders):
            if number not in self.stopped:
                orders.send((kind, count))

    def restart(self, number: int) -> None:
        """Let a stopped consumer continue with a restarted ring."""
        self.stopped.discard(number)
        self._orders[number].send(("restart", 0))
        self._orders[number].recv()

    def answers(self) -> list[Any]:
        found = []
        for number, orders in enumerate(self._orders):
            if number not in self.stopped:
                check(orders.poll(PATIENCE_NS / NS_PER_SECOND), f"consumer {number} did not get everything")
                found.append(orders.recv())
        return found


@contextmanager
def crowd(source: str, path: str, row_size: int) -> Iterator[Crowd]:
    with ExitStack() as stack:
        orders = [
            stack.enter_context(other_process(_consume, source, path, number, row_size)) for number in range(CONSUMERS)
        ]
        consumers = Crowd(orders, [each.recv() for each in orders])
        try:
            yield consumers
        finally:
            consumers.tell("end")


def _consume(source: str, path: str, number: int, row_size: int, orders: Connection) -> None:
    taken = SOURCES[source](path, number, row_size)
    try:
        orders.send(os.getpid())
        pin(-1 if number == 0 else 0, is_pinned=source == "ring")
        while (order := orders.recv())[0] != "end":
            kind, count = order
            if kind in ("skip", "restart"):
                getattr(taken, kind)()
                orders.send(None)
            elif kind == "flood":
                orders.send(_count(taken, count))
            elif number == 0:
                orders.send(_spin(taken, count))
            else:
                orders.send(_drain(taken, count))
    finally:
        taken.close()


def _spin(source: Any, count: int) -> list[int]:
    """Return the latency of each message in nanoseconds."""
    read, stamp_at, found = source.read, source.stamp_at, []
    for _ in range(count):
        message = read()
        arrived = now()
        found.append(arrived - stamp.unpack_from(message, stamp_at)[0])
    return found


def _drain(source: Any, count: int) -> int:
    """Drain the source periodically."""
    deadline, left = now() + PATIENCE_NS, count
    while left > 0 and now() < deadline:
        time.sleep(DRAIN_EVERY_NS / NS_PER_SECOND)
        while taken := source.take():
            left -= taken
    return count - left


def _count(source: Any, count: int) -> tuple[int, int]:
    """Read as fast as possible until all messages have arrived or none arrive any more; return their number and the
    time of the last one.
    """
    last, left = now(), count
    while left > 0 and now() - last < QUIET_NS:
        taken = source.take()
        if taken:
            left -= taken
            last = now()
        else:
            os.sched_yield()
    return count - left, last
