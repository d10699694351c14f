"""The filter's fast path between real sockets: in-order packets are forwarded without Python, all others go to the
core."""

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.base.errors import LocalProtocolError
from penstock.filter import Outbox
from penstock.filter.live._dispatch import Dispatcher
from penstock.filter.live._relay import Relay
from penstock.middleware.core._inorder import InOrder, StreamCursor
from penstock.net.udp import Inlet, Outlet, address_key, host_socket
from penstock.shm import RingReader, RingWriter
from penstock.wire import DatagramBatch, Packet, decode
from unit.filter_kit import GROUP, PUBLISHER_ID, application, forwarder, opened, packets, topics

PATIENCE_NS = 5_000_000_000


class Bench:
    """A relay with two applications on their own sockets, and a publisher that sends only to the relay."""

    def __init__(self) -> None:
        self.module = forwarder()
        self.sending, self.own = host_socket("127.0.0.1"), host_socket("127.0.0.1")
        self.applications = [host_socket("127.0.0.1") for _ in range(2)]
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.inlet = Inlet([self.own.fileno()], DatagramBatch(64), self.bell)
        self.in_order = InOrder(5, takes_fragments=True)
        self.dispatcher = Dispatcher(Outlet(self.own.fileno()), self.module.consumers_max)
        self.relay = Relay(self.inlet, self.in_order, self.module, self.dispatcher)
        for number, each in enumerate(self.applications):
            application(self.module, number, "ab"[number])
            self.dispatcher.open(number, address_key(each.getsockname()))
            each.settimeout(60)

    def close(self) -> None:
        for each in (self.sending, self.own, *self.applications):
            each.close()
        os.close(self.bell)

    def known(self) -> StreamCursor:
        opened(self.module, 0, 1)
        cursor = StreamCursor()
        cursor.publisher_id, cursor.group, cursor.epoch, cursor.next_sequence = PUBLISHER_ID, GROUP, 1, 1
        cursor.is_smooth, cursor.source_key = True, address_key(self.sending.getsockname())
        self.in_order.add(cursor)
        return cursor

    def send(self, *data: bytes) -> None:
        for each in data:
            self.sending.sendto(each, self.own.getsockname())

    def run(self, patience_ns: int = PATIENCE_NS) -> bool:
        return self.relay.run(time.monotonic_ns() + patience_ns, False)

    def got(self, number: int) -> Packet:
        return decode(self.applications[number].recv(65_536))


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_in_order_packets_reach_their_subscribers(bench: Bench) -> None:
    cursor = bench.known()
    bench.send(*packets([("a", b"1"), ("b", b"2")], [("c", b"")], [("b", b"3")]), b"the end")
    assert bench.run()
    assert bench.relay.start == 3
    assert bytes(bench.inlet.batch.datagram(3)) == b"the end"
    assert 0 < bench.relay.now_ns == cursor.heard_ns
    assert topics(bench.got(0)) == ["a"]
    assert [(packet.sequence, packet.gap) for packet in (bench.got(1), bench.got(1))] == [(1, 0), (3, 1)]
    assert bench.dispatcher.sent(1)[0] == 2
    assert len(bench.module.outbox) == 0


def test_out_of_order_packets_go_to_python(bench: Bench) -> None:
    bench.send(*packets([("a", b"1")]))
    assert bench.run()
    assert bench.relay.start == 0
    cursor = bench.known()
    bench.send(*packets([("a", b"1")], [("a", b"2")], [("a", b"3")])[::2])
    assert bench.run()
    assert bench.relay.start == 1
    assert len(bench.inlet.batch) == 2
    assert cursor.next_sequence == 2
    messages = bench.in_order.take(bench.inlet.batch, 1, 0)  # the core continues in the middle of the batch
    assert messages is None


def test_the_relay_returns_at_its_deadline_or_when_woken(bench: Bench) -> None:
    assert not bench.run(0)
    assert not bench.run(1_000_000)
    waker = threading.Timer(0.02, bench.inlet.wake)
    waker.start()
    started_ns = time.monotonic_ns()
    assert not bench.run()
    assert time.monotonic_ns() - started_ns < PATIENCE_NS
    waker.join()
    bench.inlet.close()
    with pytest.raises(LocalProtocolError):
        bench.run()


def test_regular_expressions_work_and_so_does_a_small_outbox(bench: Bench) -> None:
    bench.module.use(Outbox(2, 200_000))
    bench.known()
    bench.module.table.add("/x[0-9]/", 0)
    bench.send(*packets(*([("x1", str(number).encode()), ("b", b"")] for number in range(5))), b"the end")
    assert bench.run()
    assert bench.relay.start == 5
    assert [bytes(bench.got(0)[0].payload) for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    assert [bench.got(1).sequence for _ in range(5)] == [1, 2, 3, 4, 5]


@pytest.mark.spec("FILT-11")
def test_a_consumer_with_a_ring(bench: Bench) -> None:
    with RingWriter.create(1 << 20, 65_507) as ring:
        bench.dispatcher.open_ring(0, ring)
        reader = RingReader(ring.segment)
        bench.known()
        bench.send(*packets([("a", b"1")], [("a", b"2"), ("b", b"")]), b"the end")
        assert bench.run()
        assert [bytes(decode(reader.read())[0].payload) for _ in range(2)] == [b"1", b"2"]
        assert bench.got(1).sequence == 2
        bench.dispatcher.shut(0)
        reader.close()


def test_an_application_that_never_reads_delays_no_other_one(bench: Bench) -> None:
    cursor = bench.known()
    bench.applications[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
    count = 200
    for first in range(1, count + 1, 50):
        bench.send(*packets(*([("a", bytes(1_000)), ("b", b"")] for _ in range(50)), first=first), b"the end")
        while cursor.next_sequence < first + 50:
            bench.run()
    assert [bench.got(1).sequence for _ in range(count)] == list(range(1, count + 1))


def test_packets_of_a_stream_without_an_account_are_a_mistake_of_the_caller(bench: Bench) -> None:
    bench.module.close(opened(bench.module))
    cursor = bench.known()
    bench.module.close(bench.module.open(PUBLISHER_ID, GROUP, 1))
    bench.send(*packets([("a", b"1")]))
    with pytest.raises(LocalProtocolError, match="not opened"):
        bench.run()
    assert cursor.next_sequence == 2


@pytest.mark.spec("FILT-11")
def test_a_publishers_ring_is_read_besides_the_network(bench: Bench) -> None:
    cursor = bench.known()
    data = packets(*([("a", str(number).encode())] for number in range(4)))
    with RingWriter.create(1 << 20, 65_507) as ring:
        reader = RingReader(ring.segment)
        bench.relay.add_ring("ring", reader, cursor.source_key)
        ring.write_many([*data[:3], b"what is this"])
        assert bench.run()
        assert bench.relay.start == 3
        cursor.known_from = 1
        bench.send(*data, b"the end")  # copies of those packets, and one more
        assert bench.run()
        assert bench.relay.start == 4
        assert bench.relay.copies == 3
        assert [bytes(bench.got(0)[0].payload) for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    assert not bench.run()
    assert bench.relay.lost_ring == "ring"
    bench.relay.remove_ring("ring")
    reader.close()
    assert not bench.run(0)
    assert bench.relay.lost_ring is None


@pytest.mark.spec("FILT-11")
def test_a_ring_that_is_never_empty_does_not_delay_the_network(bench: Bench) -> None:
    cursor = bench.known()
    data = packets(*([("a", b"")] for _ in range(64 * 40)))
    with RingWriter.create(1 << 22, 65_507) as ring:
        reader = RingReader(ring.segment)
        bench.relay.add_ring("ring", reader, cursor.source_key)
        ring.write_many(data)
        bench.send(b"from the network")
        assert bench.run()
        assert bytes(bench.inlet.batch.datagram(0)) == b"from the network"
        assert 1 < cursor.next_sequence < len(data)
        bench.relay.remove_ring("ring")
        reader.close()
