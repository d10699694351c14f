"""Strangers on the segment, as processes of their own, against clients, filters and publishers with keys."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from admin_kit import credentials, credentials_file
from client_kit import Originated, adapter_on, registered_on
from integration.filter_kit import filter_here
from integration.test_client import A_ID, AAPL, take
from penstock.admin.live.driver import AdminServer
from penstock.base.counters import Cause
from penstock.client import Client, ClientConfig, Subscription
from penstock.filter.client import FilteredReceiver
from penstock.filter.core.control import Wish
from penstock.middleware import PublisherConfig
from penstock.middleware.live import MulticastPublisher, MulticastReceiver
from penstock.net.udp import Channel, free_channel, group_socket, host_socket
from penstock.security.core.access import AdminAccess
from penstock.security.live.client import AdminClient
from penstock.wire import (
    TRAILER_SIZE,
    AuthenticationKey,
    AuthenticationScope,
    Authenticator,
    Packer,
    PacketFlag,
    VouchedPublisher,
    decode,
    encode_gone,
    encode_nack,
)
from penstock.wire._authentication import strip_trailer
from waiting import wait_until

ATTACKS = ["next", "far", "discontinuity", "sealed", "epoch", "end"]
KEY = AuthenticationKey(3, b"of this test ...")


@contextlib.contextmanager
def forger(attack: str, channel: Channel, publisher_id: int) -> Iterator[None]:
    """Run a forger: it has sent all its forgeries at least once when the block begins, and continues until the end of
    the block."""
    command = [sys.executable, "-m", "integration.forger", attack, channel.group, str(channel.port), str(publisher_id)]
    tests = Path(__file__).parent.parent
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tests, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "1\n"
        yield
    finally:
        process.communicate(timeout=60)
        assert process.returncode == 0


def refused(subscription: Subscription) -> int:
    return subscription._around.counters.by_cause("packets_dropped").get(Cause.UNAUTHENTICATED, 0)


def check_undisturbed(client: Client, channel: Channel, feed: AdminClient, attack: str) -> Subscription:
    """Messages before, during and after the forgeries arrive once, in order, without a loss report."""
    subscription = client.subscribe("md.us.eq.>")
    with adapter_on(channel, A_ID, feed) as publisher:
        with forger(attack, channel, A_ID):
            for first in range(1, 31, 10):
                publisher.publish_batch(Originated(AAPL, range(first, first + 10)))
            quotes = take(subscription, 30)
        publisher.publish_batch(Originated(AAPL, range(31, 41)))
        quotes += take(subscription, 10)
    assert [(each.seq, each.bid_size, each.ask_size) for each in quotes] == [(n, n, 0) for n in range(1, 41)]
    assert subscription.losses == []
    statistics = subscription.statistics()
    assert (statistics.lost, statistics.discontinuities, statistics.unreadable) == (0, 0, 0)
    return subscription


@pytest.mark.spec("AUTH-1", "AUTH-2")
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_client_is_not_disturbed_by_forged_packets(server: AdminServer, feed: AdminClient, attack: str) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    alone = ClientConfig(filter="none")
    with penstock.connect(server.url, credentials=credentials("alice"), config=alone) as alice:
        subscription = check_undisturbed(alice, channel, feed, attack)
        assert refused(subscription) > 0


@pytest.mark.spec("AUTH-1", "AUTH-2")
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_filter_module_is_not_disturbed_by_forged_packets(
    server: AdminServer, feed: AdminClient, tmp_path: Path, attack: str
) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    admin = AdminAccess(url=server.url, credentials=str(credentials_file(tmp_path, "filter")))
    with filter_here(admin=admin, state_directory=str(tmp_path / "state")) as beside:
        wait_until(lambda: beside.module.status().is_in_touch, "the administration server")
        through = ClientConfig(filter=f"127.0.0.1:{beside.port}")
        with penstock.connect(server.url, credentials=credentials("alice"), config=through) as alice:
            check_undisturbed(alice, channel, feed, attack)
        assert beside.module.counters.by_cause("packets_dropped").get(Cause.UNAUTHENTICATED, 0) > 0


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("delivery", ["unicast", "shared"])
def test_nobody_forges_packets_or_requests_between_a_filter_module_and_an_application(
    server: AdminServer, feed: AdminClient, tmp_path: Path, delivery: Wish
) -> None:
    """The forger sends from the very sockets of both, as a host on the segment could with their addresses."""
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    admin = AdminAccess(url=server.url, credentials=str(credentials_file(tmp_path, "filter")))
    with (
        filter_here(admin=admin, state_directory=str(tmp_path / "state"), channels=(str(channel),)) as beside,
        AdminClient.connect(server.url, credentials("alice")) as alice,
        adapter_on(channel, A_ID, feed) as publisher,
    ):
        wait_until(lambda: beside.module.status().is_in_touch, "the administration server")
        token = alice.subscribe(["md.us.eq.>"]).token
        where = f"127.0.0.1:{beside.port}"
        with FilteredReceiver(where, ["md.us.eq.>"], token=token, delivery=delivery) as application:
            data, asked = beside.module._data, application.counters
            assert application.receive(0) == []  # the application joins the streams
            assert application._attachment is not None
            registered = application._attachment.registered
            group = (registered.group, registered.group_port) if delivery == "shared" else None
            to = group or application._own.getsockname()
            heard: list[bytes] = []

            def hear(count: int) -> bool:
                for each in application.receive(0.01):
                    heard.extend(bytes(message.payload) for message in getattr(each, "messages", ()))
                return len(heard) >= count

            for number in range(1, 11):
                publisher.publish_batch(Originated(AAPL, [number]))
                wait_until(lambda number=number: hear(number), "the message")
                for forged in forgeries(A_ID, channel.group_id, publisher.next_sequence):
                    data._own.sendto(forged, to)
                    data._own.sendto(forged + bytes(TRAILER_SIZE), to)
                request = encode_nack(A_ID, channel.group_id, 1, [(1, number)], requester=5, number=number)
                application._own.sendto(request, data.address)
            unauthenticated = beside.module.counters.by_cause
            wait_until(lambda: unauthenticated("packets_dropped").get(Cause.UNAUTHENTICATED, 0) == 10, "the drops")
            wait_until(lambda: hear(0) and asked["packets_dropped"] >= 100, "the drops at the application")
            assert beside.module.counters["nacks_received"] == 0
            assert len(heard) == len(set(heard)) == 10
            assert b"forged" not in heard


def forgeries(publisher_id: int, group: int, sequence: int) -> list[bytes]:
    """The next number, a number near 2^64, an end, a later epoch, and a false loss report."""
    made = []
    for first, epoch in ((sequence, 1), (2**63, 1), (1, 2**32 - 1)):
        packer = Packer(publisher_id, group, epoch, first_sequence=first)
        packer.add("md.us.eq.AAPL.quote", b"forged")
        made.append(packer.flush() or b"")
    goodbye = Packer(publisher_id, group, 1, first_sequence=sequence).empty(PacketFlag.GOODBYE)
    return [*made, goodbye, encode_gone(publisher_id, group, 1, [(1, sequence + 10)])]


@pytest.mark.spec("AUTH-2")
def test_an_adapter_that_starts_again_is_heard_at_once(server: AdminServer, feed: AdminClient) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    with penstock.connect(server.url, credentials=credentials("alice"), config=ClientConfig(filter="none")) as alice:
        subscription = alice.subscribe("md.us.eq.>")
        with adapter_on(channel, A_ID, feed) as publisher:
            publisher.publish_batch(Originated(AAPL, [1]))
            assert [each.seq for each in take(subscription, 1)] == [1]
            key = publisher._core.key
        assert key is not None
        again = MulticastPublisher(
            channel, publisher_id=A_ID, epoch=2, config=PublisherConfig(linger_ms=1), keys=(key,)
        )
        with again:  # without a word to the server
            again.publish_batch(Originated(AAPL, [2]))
            assert [each.seq for each in take(subscription, 1)] == [2]


def scope() -> AuthenticationScope:
    return AuthenticationScope("test", (KEY,), KEY.key_id, (VouchedPublisher(A_ID, 1, 1),))


@pytest.mark.spec("AUTH-1")
def test_publisher_and_receiver_with_keys_repair_what_is_lost() -> None:
    channel = free_channel()
    receiver = MulticastReceiver([channel], loss=0.3, authenticator=Authenticator([scope()]))
    publisher = MulticastPublisher(
        channel, publisher_id=A_ID, epoch=1, config=PublisherConfig(linger_ms=1), keys=(KEY,)
    )
    heard: list[bytes] = []

    def hear() -> bool:
        for each in receiver.receive(0.01):
            heard.extend(bytes(message.payload) for message in getattr(each, "messages", ()))
        return len(heard) > 0 and heard[-1] == b"999"

    with receiver, publisher:
        for number in range(1_000):
            publisher.publish("a.b", str(number).encode())
        wait_until(hear, "the last message")
    assert heard == [str(number).encode() for number in range(int(heard[0]), 1_000)]
    assert receiver.counters["repairs_received"] > 0
    assert receiver.counters.by_cause("packets_dropped").keys() <= {Cause.DUPLICATE, Cause.BEFORE_JOIN}


@pytest.mark.spec("AUTH-1", "AUTH-4")
def test_a_recorded_packet_does_not_take_a_stream_from_its_publisher() -> None:
    """An attacker sends a recorded packet to a receiver that has just started, and keeps sending it."""
    channel = free_channel()
    silent = PublisherConfig(linger_ms=1, keep_alive_first_ms=3_600_000, keep_alive_ms=3_600_000)
    publisher = MulticastPublisher(channel, publisher_id=A_ID, epoch=1, config=silent, keys=(KEY,))
    heard: list[bytes] = []
    with publisher, group_socket(channel) as recorder, host_socket("127.0.0.1") as stranger:
        recorder.settimeout(60)
        publisher.publish("a.b", b"0")
        recorded = recorder.recv(65_536)
        with MulticastReceiver([channel], authenticator=Authenticator([scope()])) as receiver:

            def hear(last: bytes) -> bool:
                stranger.sendto(recorded, (channel.group, channel.port))
                for each in receiver.receive(0.01):
                    heard.extend(bytes(message.payload) for message in getattr(each, "messages", ()))
                return last in heard

            wait_until(lambda: hear(b"0"), "the recorded packet")
            assert [each.source for each in receiver._core.streams()] == [stranger.getsockname()]
            for number in range(1, 4):
                publisher.publish("a.b", str(number).encode())
            wait_until(lambda: hear(b"3"), "the last message")
            assert [each.source for each in receiver._core.streams()] == [publisher.address]
            assert heard == [b"0", b"1", b"2", b"3"]
            dropped = receiver.counters.by_cause("packets_dropped")
    assert dropped.keys() == {Cause.DUPLICATE}


@pytest.mark.spec("AUTH-1", "AUTH-3")
def test_a_request_without_a_key_is_not_answered() -> None:
    channel = free_channel()
    publisher = MulticastPublisher(
        channel, publisher_id=A_ID, epoch=1, config=PublisherConfig(linger_us=0, linger_ms=1), keys=(KEY,)
    )
    with publisher, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", 0))
        for number in range(10):  # each has a packet of its own
            publisher.publish("a.b", str(number).encode())
        request = encode_nack(A_ID, channel.group_id, 1, [(1, 10)])
        stranger.sendto(request, publisher.address)
        dropped = publisher.counters
        wait_until(lambda: dropped.by_cause("packets_dropped").get(Cause.UNAUTHENTICATED, 0) == 1, "the drop")
        request = encode_nack(A_ID, channel.group_id, 1, [(1, 10)], requester=7, number=1)
        authentic = request + Authenticator([scope()]).trailer(request)
        stranger.sendto(authentic, publisher.address)
        stranger.settimeout(60)
        assert sorted(decode(strip_trailer(stranger.recv(65_536))).sequence for _ in range(10)) == [*range(1, 11)]
        assert publisher.counters["nacks_received"] == 1
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:  # sends the recorded request again
            other.bind(("127.0.0.1", 0))
            for asking in (stranger, other):
                asking.sendto(authentic, publisher.address)
            wait_until(lambda: dropped.by_cause("packets_dropped").get(Cause.STALE_REQUEST, 0) == 2, "the drops")
        assert publisher.counters["nacks_received"] == 1
        assert publisher.counters["repairs_sent"] == 10


@pytest.mark.spec("AUTH-3")
def test_a_flood_of_requests_is_dropped_before_it_is_looked_at() -> None:
    channel = free_channel()
    limits = PublisherConfig(
        linger_us=0,
        linger_ms=1,
        keep_alive_first_ms=3_600_000,
        keep_alive_ms=3_600_000,
        request_source_rate_max=50,
        repair_source_rate_max=100,
        repair_packets_max=10,
    )
    publisher = MulticastPublisher(channel, publisher_id=A_ID, epoch=1, config=limits)
    with publisher, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for number in range(10):
            publisher.publish("a.b", str(number).encode())
        request = encode_nack(A_ID, channel.group_id, 1, [(1, 10)])
        sent = 0
        while publisher.counters["nacks_limited"] < 1_000:
            stranger.sendto(request, publisher.address)
            sent += 1
            assert sent < 1_000_000
        assert publisher.counters["nacks_received"] < sent / 2
        publisher.publish("a.b", b"the last")
        assert publisher.next_sequence == 12
