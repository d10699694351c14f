"""Publisher and receiver on real sockets: loopback multicast, losses, slow readers, deaths, garbage."""

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy
import pytest

from client_kit import Originated
from penstock.base.counters import Cause
from penstock.base.errors import ConfigurationError, LimitError, LocalProtocolError
from penstock.middleware import (
    Deliver,
    DeliverBatch,
    LossReceipt,
    MergeGap,
    OutgoingBatch,
    PublisherConfig,
    ReceiverConfig,
    StreamEnded,
    StreamStarted,
    TopicList,
)
from penstock.middleware.core.grouping import channels_for
from penstock.middleware.live import MulticastPublisher, MulticastReceiver
from penstock.middleware.live.epoch_file import claim_epoch
from penstock.middleware.live.merging_receiver import MergingReceiver
from penstock.net.udp import Channel, free_channel
from penstock.topics import GroupMap
from penstock.wire import encode_gone, encode_nack
from unit.merge_kit import numbers_of
from waiting import PATIENCE_SECONDS, wait_until

QUICK = PublisherConfig(linger_ms=1)
FROM_START = ReceiverConfig(join="start")
TOPICS = TopicList(["t.one", "t.two"])


@pytest.fixture
def channel() -> Channel:
    return free_channel()


def messages_of(received: list[Any]) -> Iterator[Any]:
    for each in received:
        if isinstance(each, Deliver | DeliverBatch):
            yield from each.messages


def receive_until(receiver: MulticastReceiver, is_enough: Any, seconds: float = 120) -> list[Any]:
    """Receive until `is_enough` is true; a DeliverBatch is replaced by its messages."""
    told: list[Any] = []
    deadline = time.monotonic() + seconds
    while not is_enough(told):
        assert time.monotonic() < deadline, f"not enough arrived: {len(told)} items, {list(receiver.counters)}"
        for each in receiver.receive(0.1):
            told += list(messages_of([each])) if isinstance(each, Deliver | DeliverBatch) else [each]
    return told


def payloads(told: list[Any]) -> list[bytes]:
    return [bytes(each.payload) for each in told if hasattr(each, "payload")]


def numbered(count: int, size: int = 16) -> numpy.ndarray:
    records = numpy.zeros((count, size), numpy.uint8)
    records[:, :8] = numpy.arange(count, dtype="<u8").view(numpy.uint8).reshape(count, 8)
    return records


@pytest.mark.parametrize("spin", [False, True])
@pytest.mark.spec("FILT-1")
def test_messages_arrive_once_and_in_order(channel: Channel, spin: bool) -> None:
    with MulticastReceiver([channel], spin=spin) as receiver, MulticastPublisher(channel, config=QUICK) as publisher:
        before_ns = time.time_ns()
        for number in range(100):
            publisher.publish("t.single", str(number).encode(), model_id=3, model_version=2)
        told = receive_until(receiver, lambda told: len(payloads(told)) == 100)
        assert isinstance(told[0], StreamStarted)
        assert payloads(told) == [str(number).encode() for number in range(100)]
        last = told[-1]
        assert (last.topic, last.model_id, last.model_version) == ("t.single", 3, 2)
        assert last.publisher_id == publisher.publisher_id
        assert 1 <= last.sequence < publisher.next_sequence  # keep-alives may follow
        publisher.publish("t.single", b"timed")
        (batch,) = [each for each in receiver.receive(5) if isinstance(each, DeliverBatch)]
        assert before_ns <= batch.messages.arrivals_ns()[0] <= time.time_ns()


def test_batches_are_read_as_arrays(channel: Channel) -> None:
    with MulticastReceiver([channel], config=FROM_START) as receiver, MulticastPublisher(channel, config=QUICK) as pub:
        sent = numbered(5_000)
        pub.publish_batch(OutgoingBatch(TOPICS, numpy.arange(5_000) % 2, sent))
        got: list[numpy.ndarray] = []
        wait_until(lambda: sum(map(len, got)) == 5_000 or bool(take_records(receiver, got)), "5,000 records")
        assert b"".join(each.tobytes() for each in got) == sent.tobytes()


def take_records(receiver: MulticastReceiver, got: list[numpy.ndarray]) -> bool:
    for each in receiver.receive(0.1):
        if isinstance(each, DeliverBatch):
            got.append(each.messages.records("V16"))
        elif isinstance(each, Deliver):
            got.append(numpy.frombuffer(b"".join(bytes(m.payload) for m in each.messages), "V16"))
    return sum(map(len, got)) == 5_000


def test_what_is_lost_on_the_way_is_repaired(channel: Channel) -> None:
    config = PublisherConfig(packet_size_max=400, linger_ms=1)
    with (
        MulticastReceiver([channel], config=FROM_START, loss=0.2) as receiver,
        MulticastPublisher(channel, config=config) as publisher,
    ):
        for start in range(0, 2_000, 50):
            publisher.publish_batch(OutgoingBatch(TOPICS, 0, numbered(2_000)[start : start + 50]))
        told = receive_until(receiver, lambda told: len(payloads(told)) == 2_000)
        assert b"".join(payloads(told)) == numbered(2_000).tobytes()
        assert not [each for each in told if isinstance(each, LossReceipt)]
        assert receiver.counters["datagrams_discarded"] > 0
        assert receiver.counters["repairs_received"] > 0


@pytest.mark.spec("FILT-10")
def test_requests_to_the_group_are_heard_by_its_publisher(channel: Channel) -> None:
    config = PublisherConfig(linger_ms=1, nack="multicast")
    asking = ReceiverConfig(join="start", nack="multicast")
    with (
        MulticastReceiver([channel], config=asking, loss=0.2) as receiver,
        MulticastPublisher(channel, config=config) as publisher,
        MulticastPublisher(channel, config=config) as other,
    ):
        for number in range(200):
            publisher.publish("t.one", str(number).encode())
        told = receive_until(receiver, lambda told: len(payloads(told)) == 200)
        assert payloads(told) == [str(number).encode() for number in range(200)]
        assert publisher.counters["repairs_sent"] > 0
        assert other.counters["nacks_received"] == 0


def test_a_slow_reader_overflows_its_socket_and_catches_up(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    """More data than the socket's buffer holds is sent before the receiver reads: the overflow is reported and
    repaired."""
    monkeypatch.setattr("penstock.net.udp.RECEIVE_BUFFER_SIZE", 4 << 20)
    config = PublisherConfig(packet_size_max=65_000, retransmission_bytes_max=256 << 20, linger_ms=1)
    window = ReceiverConfig(join="start", window_bytes_max=256 << 20)
    with MulticastReceiver([channel], config=window) as receiver, MulticastPublisher(channel, config=config) as pub:
        for number in range(1_500):
            pub.publish("t.large", number.to_bytes(8, "little") + bytes(60_000))
        told = receive_until(receiver, lambda told: len(payloads(told)) == 1_500)
        assert [int.from_bytes(each[:8], "little") for each in payloads(told)] == list(range(1_500))
        assert receiver.counters["datagrams_overflowed"] > 0


def test_every_receiver_of_a_machine_gets_everything(channel: Channel) -> None:
    with (
        MulticastReceiver([channel], config=FROM_START, loss=0.1) as one,
        MulticastReceiver([channel], config=FROM_START) as two,
        MulticastPublisher(channel, config=QUICK) as publisher,
    ):
        for number in range(300):
            publisher.publish("t.both", str(number).encode())
        for receiver in (one, two):
            told = receive_until(receiver, lambda told: len(payloads(told)) == 300)
            assert payloads(told) == [str(number).encode() for number in range(300)]


def test_a_large_message_is_put_together(channel: Channel) -> None:
    with MulticastReceiver([channel], loss=0.05) as receiver, MulticastPublisher(channel, config=QUICK) as publisher:
        content = os.urandom(1_000_000)
        publisher.publish("t.first", b"begin")  # so that the receiver has met the stream
        publisher.publish("t.huge", content)
        told = receive_until(receiver, lambda told: content in payloads(told))
        assert told[-1].topic == "t.huge"


def test_goodbye_ends_the_stream(channel: Channel) -> None:
    with MulticastReceiver([channel]) as receiver:
        with MulticastPublisher(channel, config=QUICK) as publisher:
            publisher.publish("t.last", b"words")
        told = receive_until(receiver, lambda told: bool(told) and isinstance(told[-1], StreamEnded))
        assert payloads(told) == [b"words"]
        assert told[-1].cause is Cause.GOODBYE
        with pytest.raises(LocalProtocolError):
            publisher.publish("t.late", b"too late")


PUBLISH_FOREVER = """
import sys, time
from pathlib import Path
from penstock.middleware.live import MulticastPublisher
from penstock.net.udp import Channel
channel = Channel(group=sys.argv[1], port=int(sys.argv[2]))
publisher = MulticastPublisher(channel, publisher_id=9, epoch_path=Path(sys.argv[3]))
number = 0
while True:
    publisher.publish("t.forever", str(number).encode())
    number += 1
    time.sleep(0.001)
"""


def publish_forever(channel: Channel, epoch_path: Path) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", PUBLISH_FOREVER, channel.group, str(channel.port), str(epoch_path)]
    return subprocess.Popen(arguments)


def test_a_publisher_that_is_killed_expires_and_comes_back_in_a_new_epoch(channel: Channel, tmp_path: Path) -> None:
    config = ReceiverConfig(publisher_expiry_ms=2_000)
    with MulticastReceiver([channel], config=config) as receiver:
        epochs = []
        for _ in range(2):
            with publish_forever(channel, tmp_path / "epoch") as process:
                try:
                    told = receive_until(receiver, lambda told: len(payloads(told)) >= 20)
                finally:
                    process.kill()
            epochs += [each.epoch for each in told if isinstance(each, StreamStarted)]
            ended = receive_until(receiver, lambda told: bool(told) and isinstance(told[-1], StreamEnded))
            assert ended[-1].cause is Cause.EXPIRED
            numbers = [int(each) for each in payloads(told) + payloads(ended)]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert epochs == [1, 2]


def test_garbage_on_every_port_harms_nobody(channel: Channel) -> None:
    with (
        MulticastReceiver([channel]) as receiver,
        MulticastPublisher(channel, config=QUICK) as publisher,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker,
    ):
        attacker.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        attacker.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        ports = [
            (channel.group, channel.port),
            publisher._socket.getsockname(),
            receiver._own.getsockname(),
        ]
        identity = publisher.publisher_id
        rubbish = [b"", b"x", bytes(48), b"PS\x01\x01" + os.urandom(60), os.urandom(65_000)]
        rubbish += [
            encode_nack(identity, channel.group_id, 1, [(1, 2**64 - 1)]),
            encode_gone(identity, channel.group_id, 1, [(1, 2**64 - 1)]),
            encode_nack(77, channel.group_id, 1, [(1, 5)]),
        ]
        for number in range(50):
            for data, port in itertools.product(rubbish, ports):
                attacker.sendto(data, port)
            publisher.publish("t.calm", str(number).encode())
        told = receive_until(receiver, lambda told: len(payloads(told)) == 50)
        assert payloads(told) == [str(number).encode() for number in range(50)]
        assert not [each for each in told if isinstance(each, LossReceipt)]
        assert {Cause.FOREIGN, Cause.CHECKSUM} & set(receiver.counters.by_cause("packets_dropped"))
        wait_until(lambda: publisher.counters["packets_dropped"] > 0, "the publisher counting rubbish")


def test_in_an_asyncio_loop(channel: Channel) -> None:
    async def listen(receiver: MulticastReceiver, publisher: MulticastPublisher) -> list[bytes]:
        got: list[bytes] = []
        publisher.publish("t.async", b"0")
        stream = receiver.stream()
        async for received in stream:
            new = [bytes(each.payload) for each in messages_of(received)]
            got += new
            if len(got) == 10:
                await stream.aclose()
                return got
            if new:  # not if only the beginning of the stream was reported, because its first packet is being repaired
                publisher.publish("t.async", str(len(got)).encode())
        return got

    with (
        MulticastReceiver([channel], config=FROM_START, loss=0.2) as receiver,
        MulticastPublisher(channel, config=QUICK) as publisher,
    ):
        got = asyncio.run(asyncio.wait_for(listen(receiver, publisher), 120))
    assert got == [str(number).encode() for number in range(10)]


def test_a_flood_of_garbage_does_not_stop_the_loop(channel: Channel) -> None:
    """Other tasks of the loop get their turns, however much data arrives."""

    async def listen(receiver: MulticastReceiver, attacker: socket.socket) -> int:
        turns = 0

        async def consume() -> None:
            async for _ in receiver.stream():
                raise AssertionError("garbage was delivered")

        task = asyncio.create_task(consume())
        while receiver.counters["packets_dropped"] < 5_000:
            for _ in range(200):
                attacker.sendto(b"garbage", (channel.group, channel.port))
            turns += 1
            await asyncio.sleep(0)
        task.cancel()
        return turns

    with (
        MulticastReceiver([channel]) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker,
    ):
        attacker.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        turns = asyncio.run(asyncio.wait_for(listen(receiver, attacker), 120))
    # at most two batches of 64 datagrams are handled between two turns of this task
    assert turns >= 5_000 // (2 * 64)


def test_a_publisher_whose_thread_failed_says_so(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    with MulticastPublisher(channel, config=QUICK) as publisher:
        publisher.publish("t.fine", b"1")

        def fail(now_ns: int) -> None:
            raise RuntimeError("broken on purpose")

        monkeypatch.setattr(publisher, "_tick", fail)
        wait_until(lambda: publisher._failure is not None, "the thread's failure")
        for _ in range(2):
            with pytest.raises(LocalProtocolError, match="broken on purpose"):
                publisher.publish("t.fine", b"2")
        with pytest.raises(LocalProtocolError, match="broken on purpose"):
            publisher.publish_batch(OutgoingBatch(TOPICS, 0, numbered(1)))


def test_who_did_not_listen_does_not_take_others_for_silent(channel: Channel) -> None:
    """A receiver that pauses for longer than publishers may be silent considers them alive, and gets the missed
    packets."""
    config = ReceiverConfig(publisher_expiry_ms=200)
    with (
        MulticastReceiver([channel], config=config) as receiver,
        MulticastPublisher(channel, config=QUICK) as publisher,
    ):
        publisher.publish("t.pause", b"before")
        receive_until(receiver, lambda told: payloads(told) == [b"before"])
        paused_until = time.monotonic() + 0.5
        wait_until(lambda: time.monotonic() > paused_until, "the pause")
        publisher.publish("t.pause", b"after")
        told = receive_until(receiver, lambda told: payloads(told) == [b"after"])
        assert not [each for each in told if isinstance(each, StreamEnded | LossReceipt)]


def test_nothing_is_received_or_sent_after_close(channel: Channel) -> None:
    receiver, publisher = MulticastReceiver([channel]), MulticastPublisher(channel, config=QUICK)
    publisher.publish("t.open", b"1")
    receiver.close()
    publisher.close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heir:  # take a number that one of our sockets had
        heir.bind(("127.0.0.1", 0))
        heir.sendto(b"private", heir.getsockname())
        with pytest.raises(LocalProtocolError):
            receiver.receive(0)
        with pytest.raises(LocalProtocolError):
            publisher.publish("t.closed", b"2")
        assert heir.recv(100) == b"private"


def test_a_batch_that_was_kept_too_long_is_refused(channel: Channel) -> None:
    with MulticastReceiver([channel]) as receiver, MulticastPublisher(channel, config=QUICK) as publisher:
        kept = []
        for number in range(3):
            publisher.publish("t.kept", str(number).encode())
            received = receiver.receive(10)
            kept += [each.messages for each in received if isinstance(each, DeliverBatch)]
        old, new = kept[0], kept[-1]
        assert new[0].payload == b"2"
        for use in (lambda: old[0], lambda: list(old), lambda: old.records("V1"), lambda: old.packets, old.arrivals_ns):
            with pytest.raises(LocalProtocolError, match="no longer valid"):
                use()


LISTEN_FOREVER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background of a shell ignores SIGINT
from penstock.middleware.live import MulticastReceiver
from penstock.net.udp import Channel
with MulticastReceiver([Channel(group=sys.argv[1], port=int(sys.argv[2]))], spin=sys.argv[3] == "spin") as receiver:
    print("listening", flush=True)
    for message in receiver:
        pass
"""


@pytest.mark.parametrize("mode", ["spin", "block"])
def test_ctrl_c_interrupts_a_waiting_receiver(channel: Channel, mode: str) -> None:
    arguments = [sys.executable, "-c", LISTEN_FOREVER, channel.group, str(channel.port), mode]
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


def test_what_cannot_be_published_is_refused_and_the_rest_goes_on(channel: Channel) -> None:
    config = PublisherConfig(retransmission_packets_max=4, linger_ms=1)
    with MulticastReceiver([channel]) as receiver, MulticastPublisher(channel, config=config) as publisher:
        publisher.publish("t.good", b"1")
        with pytest.raises(LimitError):
            publisher.publish_batch(OutgoingBatch(TOPICS, 0, numbered(10_000)))
        with pytest.raises(LocalProtocolError):
            publisher.publish_batch(OutgoingBatch(TOPICS, 0, numpy.zeros((1, 5_000), numpy.uint8)))
        with pytest.raises(LocalProtocolError):
            OutgoingBatch(TOPICS, 2, numbered(1))
        for wrong in (-1, 65_536, 2**70):
            with pytest.raises(LocalProtocolError, match="model id"):
                publisher.publish("t.good", b"x", model_id=wrong)
        publisher.publish("t.good", b"2")
        assert payloads(receive_until(receiver, lambda told: len(payloads(told)) == 2)) == [b"1", b"2"]


def test_addresses_that_cannot_be_used_are_explained() -> None:
    with pytest.raises(ConfigurationError, match="ip addr"):
        MulticastReceiver([Channel(interface="192.0.2.1")])
    with pytest.raises(ConfigurationError, match="ip addr"):
        MulticastPublisher(Channel(interface="192.0.2.1"))
    for wrong in ("239.1.1.1", "10.0.0.1:7000", "239.1.1.1:port", "239.1.1.1:0", "239.1.1.1:65536"):
        with pytest.raises(ConfigurationError):
            Channel.parse(wrong)
    assert str(Channel.parse("239.1.1.1:7000")) == "239.1.1.1:7000"
    with pytest.raises(ConfigurationError, match="epoch_path"):
        MulticastPublisher(Channel(), publisher_id=7)


def test_epochs_grow_with_every_start(tmp_path: Path) -> None:
    path = tmp_path / "state" / "epoch"
    assert [claim_epoch(path) for _ in range(3)] == [1, 2, 3]
    path.write_bytes(path.read_bytes()[:-3])  # the last slot was torn by a crash
    assert claim_epoch(path) == 3
    path.write_bytes(path.read_bytes() * 60_000)  # a publisher that was started very often
    assert [claim_epoch(path) for _ in range(2)] == [4, 5]
    with pytest.raises(ConfigurationError, match="cannot be kept"):
        claim_epoch(tmp_path)


@pytest.mark.spec("FILT-12")
def test_more_groups_than_sockets() -> None:
    """A receiver of many groups shares its sockets among the groups, and gets each message once."""
    where = free_channel()
    third = where.group.split(".")[2]
    groups = GroupMap.parse(f'version = 1\nport = {where.port}\n[hash]\nfirst = "239.255.{third}.1"\ncount = 150\n')
    topics = [f"t.{number}" for number in range(400)]
    channels = channels_for(groups, [">"], interface=where.interface)
    assert len(channels) == 150
    with (
        MulticastReceiver(channels, config=FROM_START) as receiver,
        MulticastPublisher(where, groups=groups, config=QUICK) as publisher,
    ):
        for topic in topics:
            publisher.publish(topic, topic.encode())
        batch = OutgoingBatch(TopicList(topics), range(400), numpy.arange(400, dtype="<u8"))
        publisher.publish_batch(batch)
        told = receive_until(receiver, lambda told: sum(hasattr(each, "payload") for each in told) >= 800)
    got = [(each.topic, bytes(each.payload)) for each in told if hasattr(each, "payload")]
    expected = [(topic, topic.encode()) for topic in topics]
    expected += [(topic, number.to_bytes(8, "little")) for number, topic in enumerate(topics)]
    assert sorted(got) == sorted(expected)
    assert {each.stream.group for each in told if isinstance(each, StreamStarted)} == {
        groups.group_of(topic) for topic in topics
    }


@pytest.mark.spec("SUB-2")
def test_channels_change_without_a_break_of_the_streams_that_stay() -> None:
    first, second = free_channel(), free_channel()
    with (
        MulticastPublisher(first, config=QUICK) as one,
        MulticastPublisher(second, config=QUICK) as two,
        MulticastReceiver([first], config=FROM_START) as receiver,
    ):
        for number in range(200):
            one.publish("t.one", number.to_bytes(8))
        receiver.listen([first, second])
        for number in range(200, 210):
            one.publish("t.one", number.to_bytes(8))
            two.publish("t.two", number.to_bytes(8))
        told = receive_until(receiver, lambda told: len(payloads(told)) == 220)
        assert [each.payload for each in told if getattr(each, "topic", "") == "t.one"] == [
            number.to_bytes(8) for number in range(210)
        ]
        assert [type(each) for each in told if not hasattr(each, "topic")] == [StreamStarted, StreamStarted]
        one.publish("t.one", b"before it is left")
        receiver.listen([second])
        one.publish("t.one", b"after it is left")
        two.publish("t.two", b"last")
        told = receive_until(receiver, lambda told: b"last" in payloads(told))
        assert sorted(payloads(told)) == [b"before it is left", b"last"]
        receiver.listen([first, second])
        told = receive_until(receiver, lambda told: b"after it is left" in payloads(told))
        assert payloads(told) == [b"after it is left"], "the keep-alive shows the loss, and it is repaired"
        with pytest.raises(ConfigurationError, match="uses interface"):
            receiver.listen([Channel(group=first.group, port=first.port, interface="127.0.0.2")])


def neighbours(count: int) -> list[Channel]:
    """Channels with different groups on one free port."""
    where = free_channel()
    prefix = where.group.rpartition(".")[0]
    return [Channel(group=f"{prefix}.{number}", port=where.port) for number in range(1, count + 1)]


@pytest.mark.spec("SUB-2", "SYNC-7")
def test_a_channel_that_was_left_returns_without_a_false_loss() -> None:
    """Two adapters publish the same messages. The client leaves the group of one for a while, and then joins again."""
    left, stays = free_channel(), free_channel()
    receiver = MulticastReceiver([left, stays], config=ReceiverConfig(publisher_expiry_ms=1_000))
    quick = PublisherConfig(linger_ms=1, keep_alive_ms=50)
    told: list[Any] = []

    with (
        MergingReceiver([receiver]) as merging,
        MulticastPublisher(left, config=quick) as one,
        MulticastPublisher(stays, config=quick) as other,
    ):

        def merge_until(number: int, is_enough: Any) -> None:
            def is_done() -> bool:
                for each in merging.receive(0.05):
                    told.extend(numbers_of([each]) or [each])
                return number in told and is_enough()

            wait_until(is_done, f"message {number}")

        def ended() -> list[StreamEnded]:
            return [each for each in told if isinstance(each, StreamEnded)]

        def publish(number: int) -> None:
            for each in (one, other):
                each.publish_batch(Originated("t.one", [number]))

        publish(1)
        merge_until(1, lambda: receiver.counters["streams_started"] == 2)
        receiver.listen([stays])
        for number in range(2, 50):
            publish(number)
        merge_until(49, lambda: len(ended()) == 1)
        assert [(each.stream.group, each.cause) for each in ended()] == [(left.group_id, Cause.EXPIRED)]
        receiver.listen([left, stays])
        publish(50)
        merge_until(50, lambda: receiver.counters["streams_started"] == 3)
        publish(51)
        merge_until(51, lambda: True)
        assert [each for each in told if isinstance(each, int)] == list(range(1, 52))
        assert [each for each in told if isinstance(each, LossReceipt | MergeGap)] == []
        assert receiver.counters["nacks_sent"] == 0
        *_, returned = [each for each in told if isinstance(each, StreamStarted)]
        assert returned.stream.group == left.group_id
        assert returned.first > 49, "the stream does not resume where it was left"


@pytest.mark.spec("SUB-2")
@pytest.mark.parametrize("failure", ["too many", "port in use"])
def test_a_receiver_works_as_before_after_listen_failed(failure: str) -> None:
    stays, left = free_channel(), free_channel()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken,
        MulticastPublisher(stays, config=QUICK) as one,
        MulticastPublisher(left, config=QUICK) as two,
        MulticastReceiver([stays, left], config=FROM_START) as receiver,
    ):
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        others = [Channel(group=stays.group, port=port)]
        if failure == "too many":
            others = [Channel(group=stays.group, port=1_024 + number) for number in range(80)]
        receiver.listen([stays])
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="channels need" if failure == "too many" else "cannot join"):
                receiver.listen([stays, *([left] if failure != "too many" else []), *others])
        two.publish("t.two", b"to the group that was left")
        one.publish("t.one", b"one")
        assert payloads(receive_until(receiver, lambda told: b"one" in payloads(told))) == [b"one"]
        receiver.listen([stays, left])
        two.publish("t.two", b"two")
        told = receive_until(receiver, lambda told: b"two" in payloads(told))
        assert payloads(told) == [b"to the group that was left", b"two"]


@pytest.mark.spec("SUB-2", "FILT-12")
def test_one_channel_more_than_there_are_sockets() -> None:
    channels = neighbours(64)
    with ExitStack() as stack:
        receiver = stack.enter_context(MulticastReceiver(channels[:63], config=FROM_START))
        publishers = [stack.enter_context(MulticastPublisher(each, config=QUICK)) for each in channels]
        for publisher in publishers[:63]:
            publisher.publish("t", b"before")
        receiver.listen(channels)
        for publisher in publishers:
            publisher.publish("t", b"after")
        told = receive_until(receiver, lambda told: len(payloads(told)) >= 63 + 64)
        assert sorted(payloads(told)) == [b"after"] * 64 + [b"before"] * 63
        receiver.listen(channels[:63])
        for publisher in publishers:
            publisher.publish("t", b"last")
        told = receive_until(receiver, lambda told: len(payloads(told)) >= 63)
        assert payloads(told) == [b"last"] * 63


@pytest.mark.spec("SUB-2", "SYNC-7")
def test_a_source_that_is_replaced_is_read_before_its_successor(channel: Channel) -> None:
    old = MulticastReceiver([channel])
    with MergingReceiver([old]) as merging, MulticastPublisher(channel, config=QUICK) as publisher:
        for number in range(1, 301):  # more datagrams than are read at once
            publisher.publish_batch(Originated("t.one", [number]))
        merging.add(MulticastReceiver([channel]))
        merging.retire(old)
        publisher.publish_batch(Originated("t.one", [301]))
        numbers: list[int] = []
        gaps: list[MergeGap] = []

        def is_complete() -> bool:
            told = merging.receive(0.1)
            numbers.extend(numbers_of(told))
            gaps.extend(each for each in told if isinstance(each, MergeGap))
            return numbers[-1:] == [301]

        wait_until(is_complete, "the last message")
        assert (numbers, gaps) == (list(range(1, 302)), [])
