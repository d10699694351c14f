"""Plant, multiplexer and consumers as processes that are killed, and strangers that connect to their ports."""

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest

from children import child_environment
from integration.command_kit import Running
from integration.distribution_kit import Consumer, mux_config, node_here, node_process, publisher, quote
from penstock.engine import EventKind
from penstock.engine.client import NodeMessages, open_messages
from penstock.middleware.live import MulticastPublisher
from penstock.model import Message
from penstock.net.udp import Channel, free_channel, free_ports
from waiting import PATIENCE_SECONDS, wait_until

TOPIC = "md.A.quote"

CHILD = """
import sys, time
from integration.distribution_kit import Consumer
consumer = Consumer(int(sys.argv[1]), "child").attached()
consumer.wait_live(consumer.subscribe("md.>"))
print("ready", flush=True)
time.sleep(600)
"""


class Chain:
    """Plant and multiplexer in processes of their own, and their publisher."""

    def __init__(self, channel: Channel, made: MulticastPublisher) -> None:
        self.channel = channel
        self.plant_port, self.mux_port = free_ports(2)
        self._publisher = made

    def plant(self) -> AbstractContextManager[tuple[Running, int]]:
        return node_process("plant", str(self.channel), "--port", str(self.plant_port))

    def mux(self) -> AbstractContextManager[tuple[Running, int]]:
        return node_process("mux", f"127.0.0.1:{self.plant_port}", "--port", str(self.mux_port))

    def publish(self, *numbers: int) -> None:
        for number in numbers:
            message: Message = quote("A", number)
            self._publisher.publish(TOPIC, bytes(message), model_id=message.model.id, model_version=1)

    def publish_until_seen(self, consumer: Consumer, first: int) -> int:
        """Publish until the consumer has received a message, and return its number: earlier ones were sent before a
        node listened."""
        numbers = iter(range(first, first + 1_000_000))
        sent = [first - 1]

        def is_seen() -> bool:
            sent[0] = next(numbers)
            self.publish(sent[0])
            return any(number >= first for number in consumer.sequence(TOPIC))

        wait_until(is_seen, f"an update after {first}")
        return sent[0]


@pytest.fixture
def chain() -> Iterator[Chain]:
    channel = free_channel()
    with publisher(channel) as made:
        yield Chain(channel, made)


def memory_names() -> set[str]:
    """Named shared memory that still exists."""
    return {name for name in os.listdir("/dev/shm") if "penstock" in name}


@pytest.mark.spec("MUX-1", "CRIT-4")
def test_a_multiplexer_that_is_killed_comes_back_and_its_consumers_go_on(chain: Chain) -> None:
    with chain.plant() as (plant, _), Consumer(chain.mux_port) as consumer:
        with chain.mux() as (mux, _):
            consumer.wait_live(consumer.attached().subscribe("md.>"))
            last = chain.publish_until_seen(consumer, 1)
            mux.process.send_signal(signal.SIGKILL)
            mux.end()
            wait_until(lambda: consumer.losses and not consumer.link.attached.is_set(), "the loss to be noticed")
        lives = len(consumer.of_kind(EventKind.LIVE))
        with chain.mux() as (mux, _):
            wait_until(lambda: len(consumer.of_kind(EventKind.LIVE)) > lives, "the images from the new one")
            after = chain.publish_until_seen(consumer, last + 1_000)
            assert consumer.wait_for(TOPIC, after)
            assert mux.interrupt() == 0
        assert plant.interrupt() == 0
    assert not memory_names()


@pytest.mark.spec("MUX-1", "TP-2")
def test_when_the_plant_is_killed_the_chain_says_what_is_missing_and_goes_on(chain: Chain) -> None:
    with chain.plant() as (first, _), chain.mux() as (mux, _), Consumer(chain.mux_port) as consumer:
        consumer.wait_live(consumer.attached().subscribe("md.>"))
        last = chain.publish_until_seen(consumer, 1)
        first.process.send_signal(signal.SIGKILL)
        first.end()
        mux.wait_for_output("node_lost")
        assert consumer.link.attached.is_set(), "its consumers keep what they have"
        assert not consumer.of_kind(EventKind.RECEIPT)
        with chain.plant() as (second, _):
            wait_until(lambda: consumer.of_kind(EventKind.RECEIPT), "the receipt")
            after = chain.publish_until_seen(consumer, last + 1_000)
            consumer.wait_for(TOPIC, after)
            assert mux.interrupt() == 0
            assert second.interrupt() == 0


@pytest.mark.spec("MUX-1", "TP-2")
def test_a_plant_that_is_started_anew_counts_anew_and_applications_behind_it_miss_nothing(chain: Chain) -> None:
    with ExitStack() as stack:
        first, _ = stack.enter_context(chain.plant())
        mux, _ = stack.enter_context(chain.mux())
        messages = stack.enter_context(open_messages(f"127.0.0.1:{chain.mux_port}", "md.>"))
        _published_until_read(chain, messages, 1)
        chain.publish(*range(1_001, 1_101))
        assert _read_until(messages, 1_100)[-100:] == list(range(1_001, 1_101))
        assert first.interrupt() == 0
        second, _ = stack.enter_context(chain.plant())
        wait_until(lambda: messages.next(0.05) is None and messages.losses, "the receipt")  # no image follows it
        last = _published_until_read(chain, messages, 2_000)
        chain.publish(*range(last + 1, last + 11))
        assert _read_until(messages, last + 10)[-10:] == list(range(last + 1, last + 11))
        assert messages.statistics().duplicates == 0, "a message with a repeated number is not a duplicate"
        assert mux.interrupt() == 0
        assert second.interrupt() == 0


def _published_until_read(chain: Chain, messages: NodeMessages, first: int) -> int:
    """Publish until a message arrives, and return the last number published."""
    for number in range(first, first + 900):
        chain.publish(number)
        while (message := messages.next(0.05)) is not None:
            if message.source_seq >= first:
                if message.source_seq < number:
                    _read_until(messages, number)
                return number
    raise AssertionError(f"nothing came of {first} and those after it")


def _read_until(messages: NodeMessages, last: int) -> list[int]:
    found: list[int] = []
    while last not in found[-1:]:
        message = messages.next(PATIENCE_SECONDS)
        assert message is not None, f"{last} did not come, but {found[-3:]}"
        found.append(message.source_seq)
    return found


@pytest.mark.spec("CRIT-1")
def test_a_consumer_that_is_killed_is_cleaned_up(chain: Chain) -> None:
    with (
        chain.plant() as (_, plant_port),
        node_here(mux_config(plant_port)) as mux,
        Consumer(mux.port, "other") as other,
    ):
        other.wait_live(other.attached().subscribe("md.>"))
        environment = child_environment()
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(mux.port)], stdout=subprocess.PIPE, env=environment
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            assert mux.consumer_names() == ["child", "other"]
            descriptors = len(os.listdir("/proc/self/fd"))
            child.kill()
        wait_until(lambda: mux.consumer_names() == ["other"], "the consumer to be forgotten")
        wait_until(lambda: len(mux.node._handover._offers) == 2, "only the rings of the other one to be offered")
        wait_until(lambda: len(os.listdir("/proc/self/fd")) < descriptors, "its segment to be closed")
        other.wait_for(TOPIC, chain.publish_until_seen(other, 1))


def test_garbage_on_the_port_hurts_nobody(chain: Chain) -> None:
    randomness = random.Random(7)
    with chain.plant() as (plant, port), Consumer(port) as consumer:
        consumer.wait_live(consumer.attached().subscribe("md.>"))
        for size in (1, 4, 5, 100, 5_000, 200_000):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.settimeout(60)
                _throw(stranger, randomness.randbytes(size))
        consumer.wait_for(TOPIC, chain.publish_until_seen(consumer, 1))
        assert consumer.losses == 0
        assert plant.interrupt() == 0


def _throw(stranger: socket.socket, data: bytes) -> None:
    """Send the data, and read until the other side closes the connection."""
    try:
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(65_536):
            continue
    except ConnectionError:
        return


def test_a_stopped_node_leaves_nothing(chain: Chain) -> None:
    with chain.plant() as (plant, port), Consumer(port) as consumer:
        consumer.attached()
        children = plant.processes()
        assert plant.interrupt() == 0
        wait_until(lambda: consumer.losses, "the end")
        assert not children
        wait_until(lambda: consumer.segment is None or not consumer.segment.lifeline.peer_is_alive(), "the lifeline")  # type: ignore[union-attr]
    assert not memory_names()
