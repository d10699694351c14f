"""Sockets that come and go while an inlet is in use, and waking it."""

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import LocalProtocolError
from penstock.net.udp import Channel, Inlet, Memberships, Outlet, free_channel, host_socket
from penstock.wire import DatagramBatch


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
    waiting.join(30)
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
