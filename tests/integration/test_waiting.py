"""Receivers that block: until a message arrives, until the timeout, until they are interrupted or closed."""

import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import msgspec
import pytest

from filter_stand_in import StandInFilter, position
from penstock.base.errors import LocalProtocolError
from penstock.filter.client import FilteredReceiver
from penstock.filter.core.control import Wish
from penstock.middleware import Deliver, DeliverBatch
from penstock.middleware.live import MulticastReceiver
from penstock.middleware.live.receiver import SocketReceiver
from penstock.net.udp import free_channel
from unit.middleware_kit import GROUP, PUBLISHER_ID, packets
from waiting import PATIENCE_SECONDS

WORD = position(publisher_id=PUBLISHER_ID, group=GROUP)
TOPICS = ["t"]
GATHER_US = 100_000


@pytest.fixture(params=["unicast", "ring"])
def delivery(request: pytest.FixtureRequest) -> Wish:
    return msgspec.convert(request.param, Wish)


@pytest.fixture
def module(delivery: Wish) -> Iterator[StandInFilter]:
    with StandInFilter(delivery=delivery) as module:
        module.before_holds = [WORD]
        yield module


def receive(receiver: SocketReceiver, timeout: float | None = None) -> list[str]:
    """The next messages; other items are skipped."""
    while True:
        received = receiver.receive(timeout)
        deliveries = [each for each in received if isinstance(each, Deliver | DeliverBatch)]
        if deliveries or not received:
            return [bytes(message.payload).decode() for each in deliveries for message in each.messages]


def test_time_is_up_when_it_is_and_not_before(module: StandInFilter, delivery: Wish) -> None:
    with FilteredReceiver(module.place, TOPICS, delivery=delivery) as receiver:
        module.send(*packets(1))
        assert receive(receiver) == ["1"]
        for seconds in (0.0, 0.001, 0.12, -1.0):
            started = time.monotonic()
            assert receive(receiver, seconds) == []
            assert time.monotonic() - started >= seconds


@pytest.mark.parametrize("step", [1, 3])
def test_what_comes_one_by_one_or_at_once_comes_once(module: StandInFilter, delivery: Wish, step: int) -> None:
    with FilteredReceiver(module.place, TOPICS, delivery=delivery) as receiver:
        for first in range(1, 13, step):
            later = threading.Timer(0.005, module.send, packets(step, first=first))
            later.start()
            got: list[str] = []
            while len(got) < step:
                got += receive(receiver)
            later.join()
            assert got == [str(number) for number in range(first, first + step)]
        assert receive(receiver, 0.02) == []
        assert receiver.counters["packets_received"] == 12


def test_messages_that_gather_come_together_when_the_time_is_over(module: StandInFilter, delivery: Wish) -> None:
    with FilteredReceiver(module.place, TOPICS, delivery=delivery, gather_us=GATHER_US) as receiver:
        module.send(*packets(1))
        assert receive(receiver) == ["1"]
        module.send(*packets(1, first=2))
        module.send(*packets(1, first=3))
        started = time.monotonic()
        assert receive(receiver) == ["2", "3"]
        assert time.monotonic() - started >= GATHER_US / 1e6
        assert receive(receiver, 0.0) == []  # with a timeout of zero the receiver does not gather
        module.send(*packets(1, first=4))
        assert receive(receiver) == ["4"]


@pytest.mark.parametrize("spin", [False, True])
def test_a_receiver_that_another_thread_closes_says_so_to_who_waits(spin: bool) -> None:
    receiver = MulticastReceiver([free_channel()], spin=spin)
    assert_told_when_closed(receiver, lambda: deque(receiver, maxlen=0))


def test_an_application_that_another_thread_closes_says_so_to_who_waits() -> None:
    with StandInFilter() as module:
        receiver = FilteredReceiver(module.place, TOPICS)
        assert_told_when_closed(receiver, receiver.receive)


def assert_told_when_closed(receiver: SocketReceiver, wait: Callable[[], object]) -> None:
    errors = []

    def told() -> None:
        try:
            wait()
        except LocalProtocolError as error:
            errors.append(error.what)

    waiting = threading.Thread(target=told)
    waiting.start()
    receiver.close()
    waiting.join(PATIENCE_SECONDS)
    assert errors == ["receive after close"]


RECEIVE_FOREVER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background of a shell ignores SIGINT
from penstock.filter.client import FilteredReceiver
with FilteredReceiver(sys.argv[1], ["t"], delivery=sys.argv[2]) as receiver:
    print("listening", flush=True)
    while True:
        receiver.receive()
"""


def test_ctrl_c_interrupts_an_application_that_waits(module: StandInFilter, delivery: Wish) -> None:
    host, port = module.place
    arguments = [sys.executable, "-c", RECEIVE_FOREVER, f"{host}:{port}", delivery]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == b"listening\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) != 0
            assert b"KeyboardInterrupt" in process.stderr.read()
        finally:
            process.kill()
