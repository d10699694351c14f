"""Reading and writing a connected socket without an event loop."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from penstock.base.clock import NS_PER_SECOND
from penstock.net._tcp import Receiver, send_now
from waiting import PATIENCE_SECONDS

PATIENCE_NS = int(PATIENCE_SECONDS * NS_PER_SECOND)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_available_bytes_are_read_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    assert send_now(one.fileno(), b"abc") == 3
    assert Receiver(0).receive(other.fileno(), timeout_ns=PATIENCE_NS) == b"abc"
    assert send_now(one.fileno(), b"def") == 3
    assert Receiver(PATIENCE_NS).receive(other.fileno()) == b"def"


@pytest.mark.parametrize("spin_ns", [0, PATIENCE_NS])
def test_later_bytes_are_waited_for(pair: tuple[socket.socket, socket.socket], spin_ns: int) -> None:
    one, other = pair
    timer = threading.Timer(0.02, one.send, [b"late"])
    timer.start()
    assert Receiver(spin_ns).receive(other.fileno(), timeout_ns=PATIENCE_NS) == b"late"
    timer.join()


def test_the_wait_times_out(pair: tuple[socket.socket, socket.socket]) -> None:
    receiver = Receiver(1_000)
    assert receiver.receive(pair[0].fileno()) is None
    assert receiver.receive(pair[0].fileno(), timeout_ns=2_000_000) is None


def test_a_closed_connection_reads_and_writes_nothing(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, other = pair
    one.close()
    assert Receiver(0).receive(other.fileno(), timeout_ns=PATIENCE_NS) == b""
    assert send_now(other.fileno(), b"to nobody") == 0


def test_bytes_beyond_the_socket_buffer_are_not_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    one, _ = pair
    data = bytes(2**24)
    assert 0 < send_now(one.fileno(), data) < len(data)
    assert send_now(one.fileno(), data) == 0


def test_the_bell_ends_the_wait(pair: tuple[socket.socket, socket.socket]) -> None:
    bell = os.eventfd(0)
    try:
        timer = threading.Timer(0.02, os.eventfd_write, [bell, 1])
        timer.start()
        assert Receiver(1_000).receive(pair[0].fileno(), timeout_ns=PATIENCE_NS, bell=bell) is None
        timer.join()
    finally:
        os.close(bell)


def test_a_signal_is_handled_during_the_wait(pair: tuple[socket.socket, socket.socket]) -> None:
    class Rung(Exception):
        pass

    def ring(number: int, frame: FrameType | None) -> None:
        raise Rung

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(Rung):
            Receiver(0).receive(pair[0].fileno(), timeout_ns=PATIENCE_NS)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
