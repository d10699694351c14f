"""Sockets that come and go while an inlet is in use, and waking it."""

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import LocalProtocolError
from penstock.net.udp import Channel, Inlet, Memberships, Outlet, free_channel, host_socket
from penstock.wire import DatagramBatch, PacketStore
from waiting import PATIENCE_SECONDS


@pytest.fixture
def bell() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    yield fd
    os.close(fd)


@pytest.fixture
def own() -> Iterator[socket.socket]:
    with host_socket("127.0.0.1") as made:
        yield made


@pytest.mark.parametrize("spin", [False, True])
def test_a_bell_ends_the_wait(bell: int, own: socket.socket, spin: bool) -> None:
    inlet = Inlet([own.fileno()], DatagramBatch(4), bell)
    for _ in range(3):
        ringing = threading.Timer(0.02, inlet.wake)
        ringing.start()
        started = time.monotonic()
        assert inlet.receive(60 * NS_PER_SECOND, spin) == 0
        assert time.monotonic() - started < 30
        ringing.join()
    inlet.wake()
    assert inlet.receive(60 * NS_PER_SECOND, spin) == 0  # rung before: it does not wait at all
    with host_socket("127.0.0.1") as other:
        other.sendto(b"x", own.getsockname())
        inlet.wake()
        assert inlet.receive(60 * NS_PER_SECOND, spin) == 1


@pytest.mark.parametrize("is_rung", [False, True])
def test_who_waited_for_a_datagram_does_not_get_it_twice(bell: int, own: socket.socket, is_rung: bool) -> None:
    batch = DatagramBatch(4)
    inlet, to = Inlet([own.fileno()], batch, bell), own.getsockname()
    with host_socket("127.0.0.1") as other:
        for _ in range(3):
            late = threading.Timer(0.02, other.sendto, (b"x", to))
            late.start()
            assert inlet.receive(60 * NS_PER_SECOND) == 1
            late.join()
            if is_rung:
                inlet.wake()
            assert inlet.receive(20_000_000) == 0
            assert len(batch) == 0
        for payload in (b"a", b"b", b"c"):
            other.sendto(payload, to)
        assert inlet.receive(60 * NS_PER_SECOND) == 3
        assert [bytes(batch.datagram(n)) for n in range(3)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("spin", [False, True])
def test_who_waits_at_an_inlet_that_is_closed_does_not_touch_its_sockets_again(own: socket.socket, spin: bool) -> None:
    inlet, errors = Inlet([own.fileno()], DatagramBatch(4)), []

    def wait() -> None:
        try:
            inlet.receive(60 * NS_PER_SECOND, spin)
        except LocalProtocolError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    inlet.close()  # and the socket stays open, so nothing else ends the wait
    waiting.join(PATIENCE_SECONDS)
    assert len(errors) == 1


def test_groups_are_joined_and_left_while_others_are_heard(own: socket.socket) -> None:
    first = free_channel()
    others = [Channel(group=f"239.255.200.{n}", port=first.port) for n in range(1, 31)]  # more than a socket takes
    memberships, batch = Memberships("127.0.0.1"), DatagramBatch(64)
    outlet = Outlet(own.fileno())
    try:
        memberships.join(first)
        inlet = Inlet(memberships.fds, batch)
        for channel in others:
            memberships.join(channel)
        inlet.listen_to(memberships.fds)
        assert 1 <= len(memberships.fds) <= 3
        for channel in (first, *others):
            assert outlet.send(channel.key, channel.group.encode()) == 0
        heard: set[str] = set()
        while len(heard) < 31:
            assert inlet.receive(5 * NS_PER_SECOND) > 0
            heard |= {bytes(batch.datagram(n)).decode() for n in range(len(batch))}
        for channel in others[:-1]:
            memberships.leave(channel)
        inlet.listen_to(memberships.fds)
        assert len(memberships.fds) <= 2
        for channel in (others[0], first, others[-1]):
            outlet.send(channel.key, channel.group.encode())
        heard.clear()
        while len(heard) < 2:
            assert inlet.receive(5 * NS_PER_SECOND) > 0
            heard |= {bytes(batch.datagram(n)).decode() for n in range(len(batch))}
        assert heard == {first.group, others[-1].group}
        inlet.close()
    finally:
        memberships.close()
    assert memberships.fds == []


def sent_together(sizes: list[int], *, capacity: int = 64) -> list[int]:
    """The sizes of the datagrams that arrive when packets of these sizes are sent by one call."""
    channel = free_channel()
    joined = Memberships("127.0.0.1")
    joined.join(channel)
    store = PacketStore(1_024, 64 << 20)
    for number, size in enumerate(sizes):
        store.keep(number.to_bytes(8, "little") + bytes(size - 8))
    batch = DatagramBatch(capacity)
    inlet = Inlet(joined.fds, batch, coalesces=True)
    found: list[int] = []
    with host_socket("127.0.0.1") as sender:
        assert Outlet(sender.fileno()).send_stored(channel.key, store, 1, len(sizes)) == (0, 0)
        while len(found) < len(sizes):
            assert inlet.receive(60 * NS_PER_SECOND) <= capacity
            for index in range(len(batch)):
                assert batch.source(index) == sender.getsockname()
                assert bytes(batch.datagram(index)) == store.get(len(found) + 1)
                found.append(len(batch.datagram(index)))
    assert inlet.receive(0) == 0
    joined.close()
    return found


@pytest.mark.parametrize(
    "sizes",
    [
        [100],
        [1_400] * 100,
        [1_400] * 10 + [60],
        [60, 1_400, 1_400, 700, 1_400, 8_900, 60, 60, 61, 59],
        [64] * 500,
        [9_000] * 20,
        [60_000] * 3,
    ],
)
@pytest.mark.parametrize("capacity", [1, 3, 64])
def test_packets_that_are_sent_together_arrive_one_by_one(sizes: list[int], capacity: int) -> None:
    assert sent_together(sizes, capacity=capacity) == sizes


@given(st.lists(st.sampled_from([48, 56, 400, 1_400, 1_472, 3_000]), min_size=1, max_size=150))
@settings(max_examples=30, deadline=None)
def test_packets_of_any_sizes_arrive_in_order(sizes: list[int]) -> None:
    assert sent_together(sizes) == sizes


def test_a_busy_socket_does_not_starve_another_one() -> None:
    """The batch is too small for what the busy socket has, again and again."""
    channel, quiet = free_channel(), host_socket("127.0.0.1")
    joined = Memberships("127.0.0.1")
    joined.join(channel)
    store = PacketStore(1_024, 1 << 20)
    for _ in range(40):
        store.keep(bytes(200))
    batch = DatagramBatch(8)
    inlet = Inlet([*joined.fds, quiet.fileno()], batch, coalesces=True)
    with quiet, host_socket("127.0.0.1") as sender:
        outlet = Outlet(sender.fileno())
        for _ in range(10):
            outlet.send_stored(channel.key, store, 1, 40)
        sender.sendto(b"quiet", quiet.getsockname())
        found: list[bytes] = []
        for _ in range(8):  # what was sent together takes five
            assert inlet.receive(60 * NS_PER_SECOND)
            found += [bytes(batch.datagram(index)) for index in range(len(batch))]
        assert b"quiet" in found
    joined.close()
