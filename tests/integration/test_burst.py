"""Bursts of a live publisher: their messages share packets, arrive in order, and none waits without need."""

import multiprocessing
import secrets
import subprocess
import sys
import threading

import pytest

from penstock.base.errors import LocalProtocolError
from penstock.middleware import Deliver, DeliverBatch, PublisherConfig, ReceiverConfig
from penstock.middleware.live import MulticastPublisher, MulticastReceiver
from penstock.net.udp import Channel, free_channel
from penstock.topics import GroupMap
from penstock.wire import AuthenticationKey, AuthenticationScope, Authenticator, VouchedPublisher
from waiting import PATIENCE_SECONDS, wait_until

LONG_US = 1_000_000
"""The maximum of linger_us: as long as tests need a message to wait."""

FROM_START = ReceiverConfig(join="start")
SLOW = PublisherConfig(linger_us=LONG_US, keep_alive_first_ms=3_600_000, keep_alive_ms=3_600_000, linger_ms=1)
QUICK = PublisherConfig(linger_ms=1)
COUNT = 20_000


@pytest.fixture
def channel() -> Channel:
    return free_channel()


def numbers(receiver: MulticastReceiver, count: int) -> list[int]:
    """The numbers in the next messages."""
    found: list[int] = []
    while len(found) < count:
        received = receiver.receive(PATIENCE_SECONDS)
        assert received, f"{len(found)} of {count} messages arrived"
        for each in received:
            if isinstance(each, Deliver | DeliverBatch):
                found += [int(message.payload) for message in each.messages]
    return found


def publish(publisher: MulticastPublisher, first: int, end: int, topic: str = "t.burst") -> None:
    for number in range(first, end):
        publisher.publish(topic, b"%d" % number)


def test_messages_of_a_burst_share_packets_and_stay_in_order(channel: Channel) -> None:
    with (
        MulticastReceiver([channel], config=FROM_START) as receiver,
        MulticastPublisher(channel, config=QUICK) as publisher,
    ):
        publish(publisher, 0, COUNT)
        assert numbers(receiver, COUNT) == list(range(COUNT))
        assert publisher.counters["messages_published"] == COUNT
        assert publisher.next_sequence <= COUNT


def test_a_lone_message_is_sent_without_a_wait(channel: Channel) -> None:
    """The flusher would send it after a second; publish() sends it before it returns."""
    with (
        MulticastReceiver([channel], config=FROM_START) as receiver,
        MulticastPublisher(channel, config=SLOW) as publisher,
    ):
        for number in range(20):
            publish(publisher, number, number + 1)
            assert publisher.counters["packets_sent"] == number + 1
            assert numbers(receiver, 1) == [number]


def test_the_end_of_a_burst_arrives_without_a_further_call(channel: Channel) -> None:
    with (
        MulticastReceiver([channel], config=FROM_START) as receiver,
        MulticastPublisher(channel, config=QUICK) as publisher,
    ):
        for burst in range(20):
            publish(publisher, 100 * burst, 100 * burst + 100)
            assert numbers(receiver, 100) == list(range(100 * burst, 100 * burst + 100))


def in_a_burst(publisher: MulticastPublisher) -> int:
    """Publish until a message waits; returns the number of messages."""
    for count in range(20, COUNT, 20):
        publish(publisher, count - 20, count)
        if publisher.has_waiting:
            return count
    raise AssertionError("no message waits")


def test_flush_sends_what_waits(channel: Channel) -> None:
    with (
        MulticastReceiver([channel], config=FROM_START) as receiver,
        MulticastPublisher(channel, config=SLOW) as publisher,
    ):
        count = in_a_burst(publisher)
        publisher.flush()
        assert numbers(receiver, count) == list(range(count))


def test_close_sends_what_waits(channel: Channel) -> None:
    with MulticastReceiver([channel], config=FROM_START) as receiver:
        publisher = MulticastPublisher(channel, config=SLOW)
        count = in_a_burst(publisher)
        publisher.close()
        assert numbers(receiver, count) == list(range(count))
        with pytest.raises(LocalProtocolError):
            publisher.publish("t.burst", b"0")
        publisher.flush()


def test_the_end_of_a_program_sends_what_waits(channel: Channel) -> None:
    program = (
        "import sys\n"
        "from penstock.middleware import PublisherConfig\n"
        "from penstock.middleware.live import MulticastPublisher\n"
        "from penstock.net.udp import Channel\n"
        "publisher = MulticastPublisher(Channel.parse(sys.argv[1]), config=PublisherConfig(linger_us=1_000_000))\n"
        "for number in range(1_000):\n"
        "    publisher.publish('t.burst', b'%d' % number)\n"
    )
    with MulticastReceiver([channel], config=FROM_START) as receiver:
        subprocess.run([sys.executable, "-c", program, str(channel)], check=True, timeout=PATIENCE_SECONDS)
        assert numbers(receiver, 1_000) == list(range(1_000))


def test_batches_and_large_messages_keep_their_place_in_a_burst(channel: Channel) -> None:
    config = PublisherConfig(linger_us=LONG_US, packet_size_max=600, linger_ms=1)
    with (
        MulticastReceiver([channel], config=FROM_START) as receiver,
        MulticastPublisher(channel, config=config) as publisher,
    ):
        for first in range(0, 1_000, 50):
            publish(publisher, first, first + 48)
            publisher.publish("t.burst", b"%02000d" % (first + 48))
            publish(publisher, first + 49, first + 50, topic=f"t.new.{first}")
        publisher.flush()
        assert numbers(receiver, 1_000) == list(range(1_000))


@pytest.mark.parametrize("packets_max", [1, 2, 5])
def test_no_packet_leaves_the_store_unsent(channel: Channel, packets_max: int) -> None:
    config = PublisherConfig(
        retransmission_packets_max=packets_max, packet_size_max=400, linger_us=LONG_US, linger_ms=1
    )
    with (
        MulticastReceiver([channel], config=FROM_START) as receiver,
        MulticastPublisher(channel, config=config) as publisher,
    ):
        publish(publisher, 0, 1_000)
        publisher.flush()
        assert numbers(receiver, 1_000) == list(range(1_000))


def test_every_group_of_a_map_has_its_own_order() -> None:
    third, port = secrets.randbelow(256), free_channel().port
    groups = GroupMap.parse(f'version = 1\nport = {port}\n[hash]\nfirst = "239.255.{third}.1"\ncount = 4\n')
    channels = [Channel.of(group, port, interface="127.0.0.1") for group in sorted(groups.groups)]
    with (
        MulticastReceiver(channels, config=FROM_START) as receiver,
        MulticastPublisher(channels[0], groups=groups, config=QUICK) as publisher,
    ):
        for number in range(COUNT):
            publisher.publish(f"t.{number % 7}", b"%d" % number)
        found = numbers(receiver, COUNT)
        for topic in range(7):
            assert [each for each in found if each % 7 == topic] == list(range(topic, COUNT, 7))
        assert publisher.counters["packets_sent"] < COUNT


def test_threads_that_publish_share_the_bursts(channel: Channel) -> None:
    with (
        MulticastReceiver([channel], config=FROM_START) as receiver,
        MulticastPublisher(channel, config=QUICK) as publisher,
    ):
        threads = [
            threading.Thread(target=publish, args=(publisher, first, first + 2_000)) for first in range(0, 8_000, 2_000)
        ]
        for thread in threads:
            thread.start()
        found = numbers(receiver, 8_000)
        for thread in threads:
            thread.join()
        for first in range(0, 8_000, 2_000):
            assert [each for each in found if first <= each < first + 2_000] == list(range(first, first + 2_000))


def test_shared_packets_are_repaired_and_authentic(channel: Channel) -> None:
    key = AuthenticationKey(1, bytes(range(16)))
    scope = AuthenticationScope("test", (key,), 1, (VouchedPublisher(1, 1, 1),))
    with (
        MulticastReceiver([channel], config=FROM_START, loss=0.05, authenticator=Authenticator([scope])) as receiver,
        MulticastPublisher(channel, publisher_id=1, epoch=1, keys=[key], config=QUICK) as publisher,
    ):
        publish(publisher, 0, COUNT)
        assert numbers(receiver, COUNT) == list(range(COUNT))
        assert publisher.next_sequence <= COUNT
        wait_until(lambda: publisher.counters["repairs_sent"] > 0, "a repair")


def _publish_in_child(publisher: MulticastPublisher) -> None:
    with pytest.raises(LocalProtocolError, match="fork"):
        publisher.publish("t.burst", b"1")
    publisher.flush()
    publisher.close()


def test_a_forked_child_does_not_publish(channel: Channel) -> None:
    with (
        MulticastReceiver([channel], config=FROM_START) as receiver,
        MulticastPublisher(channel, config=SLOW) as publisher,
    ):
        count = in_a_burst(publisher)
        child = multiprocessing.get_context("fork").Process(target=_publish_in_child, args=(publisher,))
        child.start()
        child.join(PATIENCE_SECONDS)
        assert child.exitcode == 0
        publish(publisher, count, count + 1)
        publisher.flush()
        assert numbers(receiver, count + 1) == list(range(count + 1))
