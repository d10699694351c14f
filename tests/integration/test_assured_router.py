"""Message routers on real sockets and disks: publish, consume, settle, transactions, restarts, kill -9."""

import asyncio
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from account_kit import recorded
from integration.assured_kit import ORDERS, RouterHere, client_of, router_config, router_here, router_process
from penstock.assured import EndpointConfig, Want
from penstock.assured.client import AssuredEndpoint, Delivery
from penstock.base.errors import LocalProtocolError, PenstockError, RefusedError, UnreachableError
from penstock.journal import JournalConfig
from penstock.net.udp import free_ports
from penstock.runtime.accounts import AccountsConfig
from waiting import PATIENCE_SECONDS, wait_until

FORKED = """
import os
from penstock.assured.client import open_assured
from penstock.base.errors import LocalProtocolError
session = open_assured("{place}")
publisher = session.publisher()
for _ in range(100):
    publisher.publish("orders.new", b"")
if not (child := os.fork()):
    try:
        publisher.publish("orders.new", b"of a child")
    except LocalProtocolError:
        print("another", flush=True)
    session.close()
    os._exit(0)
os.waitpid(child, 0)
print(publisher.publish("orders.new", b""))
session.close()
"""

UNFLUSHED = """
from penstock.assured.client import open_assured
publisher = open_assured("{place}").publisher()
print("connected", flush=True)
input()
for _ in range(100):
    publisher.send("orders.new", b"")
"""


def taken(queue: AssuredEndpoint, count: int) -> list[Delivery]:
    """This number of messages, or fewer if no more arrive."""
    found: list[Delivery] = []
    while len(found) < count and (more := queue.take(count - len(found), PATIENCE_SECONDS)):
        found += more
    return found


def number_of(message: Delivery) -> int:
    return int(message.payload)


@pytest.mark.spec("REPL-1")
def test_what_is_published_is_queued_delivered_and_settled(tmp_path: Path) -> None:
    with router_here(router_config(tmp_path)) as router, client_of(router.place) as client:
        with client.publisher() as publisher:
            assert publisher.publish("orders.new", b"0") == "stored"
            assert publisher.publish("nobody.wants.it", b"x") == "unmatched"
            for number in range(1, 1_000):
                publisher.send("orders.new", b"%d" % number)
            assert publisher.flush(PATIENCE_SECONDS)
        with client.endpoint("orders", prefetch=100) as queue:
            messages = []
            for message in queue:
                message.ack()
                messages.append(message)
                if len(messages) == 1_000:
                    break
            assert [number_of(each) for each in messages] == list(range(1_000))
            assert not any(each.is_redelivered for each in messages)
            assert [each.id for each in messages] == sorted(each.id for each in messages)
        wait_until(lambda: client.endpoints("orders")[0].messages == 0, "the queue to be empty")
        assert client.endpoints("orders")[0].settled == 1_000


@pytest.mark.spec("REPL-1")
def test_an_acknowledged_message_survives_kill_9(tmp_path: Path) -> None:
    """A publisher publishes through three kills; every acknowledged message is in the queue, once, and in order."""
    acknowledged = 0
    with router_process(router_config(tmp_path / "state"), tmp_path) as router, client_of(router.place) as client:
        with client.publisher(window=64) as publisher:
            is_over = threading.Event()
            failed: list[BaseException] = []

            def publish() -> None:
                nonlocal acknowledged
                try:
                    while not is_over.is_set():
                        for number in range(acknowledged, acknowledged + 50):
                            publisher.send("orders.new", b"%d" % number)
                        publisher.flush()
                        acknowledged += 50
                except BaseException as error:
                    failed.append(error)

            thread = threading.Thread(target=publish, daemon=True)
            thread.start()
            for _ in range(3):
                before = acknowledged
                wait_until(lambda before=before: failed or acknowledged >= before + 200, "acknowledgements")
                router.kill()
                router.start()
            is_over.set()
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
            assert not failed
        with client.endpoint("orders", prefetch=acknowledged) as queue:
            messages = taken(queue, acknowledged)
        assert [number_of(each) for each in messages] == list(range(acknowledged)), "every message once, in order"


@pytest.mark.spec("REPL-1")
def test_what_was_not_settled_comes_again_after_kill_9_and_is_flagged(tmp_path: Path) -> None:
    other = EndpointConfig(name="other", wants=(Want(topics=("other.>",)),))
    config = router_config(tmp_path / "state", ORDERS, other)
    with router_process(config, tmp_path) as router, client_of(router.place) as client:
        publisher = client.publisher()
        for number in range(20):
            publisher.send("orders.new", b"%d" % number)
        publisher.flush()
        with client.endpoint("orders") as queue:
            first = taken(queue, 20)
            queue.ack(first[:10])
            wait_until(lambda: client.endpoints("orders")[0].messages == 10, "ten to be settled")
            publisher.publish("other.new", b"")  # what was settled before is logged before
            router.kill()
            router.start()
            again = taken(queue, 10)
            assert [number_of(each) for each in again] == list(range(10, 20))
            assert all(each.is_redelivered for each in again)
            assert queue.ack(first[10:]) == 0, "messages of a lost link cannot be settled"
            assert queue.ack(again) == 10
        wait_until(lambda: client.endpoints("orders")[0].messages == 0, "the rest to be settled")
        status = router.status()
        assert (status.role, status.epoch, status.is_storing) == ("active", 1, True)


def test_what_is_no_longer_in_memory_comes_from_the_journal(tmp_path: Path) -> None:
    """Many more messages than the router keeps in memory, some of them settled, before and after a restart."""
    small = {"cache_bytes": 131_072, "message_bytes_max": 32_768, "fetch_bytes_max": 65_536}
    journal = JournalConfig(preallocate_bytes=0, segment_bytes=262_144, linger_us=0)
    with router_here(router_config(tmp_path, journal=journal, **small)) as router, client_of(router.place) as client:
        with client.publisher() as publisher:
            for number in range(3_000):
                publisher.send("orders.new", b"%-500d" % number)
        with client.endpoint("orders", prefetch=50) as queue:
            messages = taken(queue, 50)
            assert queue.ack(messages[::2]) == 25
            more = taken(queue, 25)
            assert [number_of(each) for each in (*messages, *more)] == list(range(75))
            queue.ack(more)
        wait_until(lambda: client.endpoints("orders")[0].messages == 2_950, "half of the first to be settled")
    with router_here(router_config(tmp_path, journal=journal, **small)) as router, client_of(router.place) as client:
        with client.endpoint("orders", prefetch=300) as queue:
            found: list[int] = []
            while len(found) < 2_950:
                messages = taken(queue, min(100, 2_950 - len(found)))
                found += [number_of(each) for each in messages]
                assert all(each.is_redelivered for each in messages)
                queue.ack(messages)
            assert found == [*range(1, 50, 2), *range(75, 3_000)]
        wait_until(lambda: client.endpoints("orders")[0].messages == 0, "the queue to be empty")


@pytest.mark.spec("REPL-13")
def test_an_endpoint_begins_in_what_the_log_still_holds(tmp_path: Path) -> None:
    with router_here(router_config(tmp_path, retain_s=3_600)) as router, client_of(router.place) as client:
        with client.publisher() as publisher:
            for number in range(100):
                publisher.send("orders.new", b"%d" % number)
        with client.endpoint("orders") as queue:
            messages = taken(queue, 100)
            queue.ack(messages)
        wait_until(lambda: client.endpoints("orders")[0].messages == 0, "all to be settled")
        for name, beginning in (
            ("by-id", {"from_id": messages[40].id}),
            ("by-time", {"from_time_ns": messages[0].published_ns}),
        ):
            client.create_endpoint(EndpointConfig(name=name, wants=ORDERS.wants), **beginning)
        with client.publisher() as publisher:
            publisher.publish("orders.new", b"100")
        with client.endpoint("by-id") as by_id, client.endpoint("by-time") as by_time:
            found = taken(by_id, 61)
            assert [number_of(each) for each in found] == list(range(40, 101))
            assert [each.is_replayed for each in found] == [True] * 60 + [False]
            assert [number_of(each) for each in taken(by_time, 101)] == list(range(101))


@pytest.mark.spec("REPL-10")
def test_a_transaction_happens_as_one_or_not_at_all(tmp_path: Path) -> None:
    filled = EndpointConfig(name="filled", wants=(Want(topics=("filled.>",)),))
    config = router_config(tmp_path, ORDERS, filled)
    with router_here(config) as router, client_of(router.place) as client:
        with client.publisher() as publisher:
            publisher.publish("orders.new", b"1")
        with client.endpoint("orders") as orders, client.endpoint("filled") as fills:
            (order,) = taken(orders, 1)

            def fail() -> None:
                with client.transaction() as transaction:
                    transaction.publish("filled.new", b"1")
                    transaction.ack(order)
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                fail()
            (again,) = taken(orders, 1)
            assert number_of(again) == 1, "a message consumed in a rolled-back transaction is delivered again"
            assert again.is_redelivered
            assert fills.next(0.05) is None
            with client.transaction() as transaction:
                transaction.publish("filled.new", b"1")
                transaction.ack(again)
            assert [number_of(each) for each in taken(fills, 1)] == [1]
            wait_until(lambda: client.endpoints("orders")[0].messages == 0, "the order to be gone")


@pytest.mark.spec("REPL-10")
def test_what_cannot_be_settled_is_no_part_of_a_transaction(tmp_path: Path) -> None:
    with (
        router_here(router_config(tmp_path)) as router,
        client_of(router.place) as client,
        client_of(router.place) as other,
    ):
        with client.publisher() as publisher:
            for number in range(4):
                publisher.publish("orders.new", b"%d" % number)
        with client.endpoint("orders") as orders:
            one, two, three, four = taken(orders, 4)
            assert (orders.ack(one), orders.ack(one)) == (1, 0)
            with pytest.raises(RefusedError, match="already settled"), client.transaction() as transaction:
                transaction.ack(one)
            with client.transaction() as first, client.transaction() as second:
                first.ack(two)
                with pytest.raises(RefusedError, match="already settled"):
                    second.ack(two)
                second.ack(three)
            with pytest.raises(LocalProtocolError, match="another connection"), other.transaction() as transaction:
                transaction.ack(four)
        assert orders.ack(four) == 0, "its flow is closed"
        with pytest.raises(RefusedError, match="will be delivered again"), client.transaction() as transaction:
            transaction.ack(four)
        with client.endpoint("orders") as orders:
            assert [number_of(each) for each in taken(orders, 1)] == [3]


def test_a_message_that_goes_back_comes_again_though_the_others_are_unsettled(tmp_path: Path) -> None:
    with router_here(router_config(tmp_path)) as router, client_of(router.place) as client:
        with client.publisher() as publisher:
            for number in range(4):
                publisher.publish("orders.new", b"%d" % number)
        with client.endpoint("orders", prefetch=4) as orders:
            taken(orders, 4)[1].nack()
            assert [number_of(each) for each in taken(orders, 1)] == [1]


def test_messages_are_returned_rejected_and_given_up(tmp_path: Path) -> None:
    config = router_config(tmp_path, EndpointConfig(name="orders", wants=ORDERS.wants, deliveries_max=2))
    with router_here(config) as router, client_of(router.place) as client:
        with client.publisher() as publisher:
            publisher.publish("orders.new", b"1")
            publisher.publish("orders.new", b"2")
        with client.endpoint("orders") as orders, client.endpoint("dead") as dead:
            one, two = taken(orders, 2)
            one.reject()
            assert [number_of(each) for each in taken(dead, 1)] == [1]
            two.nack()
            (again,) = taken(orders, 1)
            assert (number_of(again), again.is_redelivered, again.deliveries) == (2, True, 1)
            again.nack()
            assert [number_of(each) for each in taken(dead, 1)] == [2], "delivered as often as it may be"


@pytest.mark.spec("REPL-12")
def test_what_a_consumer_has_not_read_when_it_ends_does_not_count_as_delivered(tmp_path: Path) -> None:
    endpoint = EndpointConfig(name="orders", wants=(Want(topics=("orders.>",)),), deliveries_max=1)
    with router_here(router_config(tmp_path, endpoint)) as router, client_of(router.place) as client:
        with client.publisher() as publisher:
            for number in range(4):
                publisher.publish("orders.new", b"%d" % number)
        for _ in range(2):
            with client_of(router.place) as other:
                queue = other.endpoint("orders")
                wait_until(lambda queue=queue: queue.waiting == 4, "all four messages")
        with client.endpoint("orders") as queue:
            queue.take(4, PATIENCE_SECONDS)
            queue.close(as_unread=True)
        with client_of(router.place) as other:
            assert number_of(taken(other.endpoint("orders"), 1)[0]) == 0
        with client.endpoint("orders") as queue:
            rest = taken(queue, 3)
            assert [(number_of(each), each.deliveries) for each in rest] == [(1, 0), (2, 0), (3, 0)]
            queue.ack(rest)
        wait_until(lambda: client.endpoints("orders")[0].messages == 0, "the queue to be empty")
        assert client.endpoints("dead")[0].messages == 1


@pytest.mark.spec("REPL-12")
def test_a_full_queue_refuses_and_says_so(tmp_path: Path) -> None:
    config = router_config(tmp_path, EndpointConfig(name="orders", wants=ORDERS.wants, messages_max=10))
    with router_here(config) as router, client_of(router.place) as client, client.publisher() as publisher:
        for _ in range(10):
            assert publisher.publish("orders.new", b"x") == "stored"
        why = r"endpoint 'orders' is full: 10 messages \(messages_max\)"
        with pytest.raises(RefusedError, match=f"message 11 was refused: {why}"):
            publisher.publish("orders.new", b"x")
        with pytest.raises(RefusedError, match=why):
            asyncio.run(publisher.publish_async("orders.new", b"x"))
        with pytest.raises(RefusedError, match=f"rolled back: {why}"), client.transaction() as transaction:
            transaction.publish("orders.new", b"x")
        for _ in range(5):
            publisher.send("orders.new", b"x")
        with pytest.raises(RefusedError, match=f"message 13 was refused: {why}"):
            publisher.flush()
        assert publisher.refused[-1][2] == 33
        assert publisher.flush()
        client.empty_endpoint("orders")
        assert publisher.publish("orders.new", b"x") == "stored"


def test_what_was_sent_and_nobody_wants_is_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with router_here(router_config(tmp_path)) as router, client_of(router.place) as client:
        with client.publisher() as publisher:
            assert publisher.publish("nobody.wants.it", b"x") == "unmatched"
            assert publisher.flush()
            assert "messages_unmatched" not in caplog.messages, "publish() has returned this outcome already"
            for _ in range(2):
                publisher.send("nobody.wants.it", b"x")
                publisher.send("orders.new", b"x")
                assert publisher.flush()
            assert publisher.outcomes == {"stored": 2, "unmatched": 3}
        assert caplog.messages.count("messages_unmatched") == 1


def test_endpoints_are_created_changed_and_deleted_and_outlive_a_restart(tmp_path: Path) -> None:
    audit = EndpointConfig(name="audit", wants=(Want(topics=(">",)),), messages_max=5)
    with router_here(router_config(tmp_path)) as router, client_of(router.place) as client:
        client.create_endpoint(audit)
        client.create_endpoint(audit)
        with pytest.raises(RefusedError):
            client.create_endpoint(EndpointConfig(name="audit"))
        client.alter_endpoint(EndpointConfig(name="audit", wants=audit.wants, messages_max=6))
    with router_here(router_config(tmp_path)) as router, client_of(router.place) as client:
        (found,) = client.endpoints("audit")
        assert found.endpoint.messages_max == 6
        with client.endpoint("audit") as queue:
            with pytest.raises(RefusedError):
                client.delete_endpoint("audit")
            client.delete_endpoint("audit", force=True)
            with pytest.raises(PenstockError):
                queue.next(PATIENCE_SECONDS)
        with pytest.raises(RefusedError):
            client.endpoint("audit")


def test_an_exclusive_endpoint_has_one_consumer_and_the_next_takes_over(tmp_path: Path) -> None:
    config = router_config(tmp_path, EndpointConfig(name="orders", wants=ORDERS.wants, consumers="exclusive"))
    with router_here(config) as router, client_of(router.place) as one, client_of(router.place) as two:
        first, second = one.endpoint("orders"), two.endpoint("orders")
        assert (first.is_active, second.is_active) == (True, False)
        with one.publisher() as publisher:
            publisher.publish("orders.new", b"1")
        (message,) = taken(first, 1)
        assert second.waiting == 0
        first.close()
        (again,) = taken(second, 1)
        assert second.is_active
        assert (again.id, again.is_redelivered) == (message.id, True)
        again.ack()


def test_publishing_in_an_asyncio_loop(tmp_path: Path) -> None:
    async def work(place: str) -> list[int]:
        client = await asyncio.to_thread(client_of, place)
        publisher = await asyncio.to_thread(client.publisher)
        stored = await asyncio.gather(*(publisher.publish_async("orders.new", b"%d" % each) for each in range(500)))
        assert set(stored) == {"stored"}
        queue = await asyncio.to_thread(client.endpoint, "orders")
        found = []
        async for message in queue:
            found.append(number_of(message))
            message.ack()
            if len(found) == 500:
                break
        await asyncio.to_thread(client.close)
        return found

    with router_here(router_config(tmp_path)) as router:
        assert sorted(asyncio.run(work(router.place))) == list(range(500))


def test_without_a_router_nothing_hangs() -> None:
    with client_of(f"127.0.0.1:{free_ports(1)[0]}", answer_seconds=0.2) as client, pytest.raises(UnreachableError):
        client.publisher()


def test_a_client_that_sends_rubbish_ends_its_own_link_only(tmp_path: Path) -> None:
    with router_here(router_config(tmp_path)) as router, client_of(router.place) as client:
        host, _, port = router.place.rpartition(":")
        for junk in (
            b"\xff" * 64,
            struct.pack("<I", 2**31),
            b"GET / HTTP/1.1\r\n\r\n",
            struct.pack("<I", 3) + b"\x01\x02\x03",
        ):
            with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as stranger:
                stranger.sendall(junk)
                stranger.shutdown(socket.SHUT_WR)
                stranger.settimeout(PATIENCE_SECONDS)
                while stranger.recv(4_096):
                    pass
        with client.publisher() as publisher:
            assert publisher.publish("orders.new", b"1") == "stored"


def test_an_argument_that_no_router_takes_is_the_one_calls_mistake(tmp_path: Path) -> None:
    with (
        router_here(router_config(tmp_path)) as router,
        client_of(router.place) as client,
        client.publisher() as publisher,
    ):
        more = EndpointConfig(name="more")
        for attempt in (
            lambda: client.create_endpoint(more, from_id=-3),
            lambda: client.create_endpoint(more, from_id=2**64),
            lambda: client.create_endpoint(more, from_time_ns="now"),  # type: ignore[arg-type]
            lambda: client.create_endpoint(EndpointConfig(name="no name")),
            lambda: client.alter_endpoint(EndpointConfig(name="more", wants=(Want(topics=("x" * 2**23,)),))),
            lambda: client.delete_endpoint("no name"),
            lambda: client.empty_endpoint(""),
            lambda: client.endpoints("x" * 65),
            lambda: client.endpoint("no name"),
            lambda: client.endpoint("orders", prefetch=2**32),
            lambda: client.publisher(publisher_id=-1),
            lambda: client.publisher(publisher_id=2**64),
            lambda: client.publisher(window=-1),
            lambda: client.publisher(window=2**32),
            lambda: client.publisher(window_bytes_max=2**64),
        ):
            with pytest.raises(PenstockError):
                attempt()
        client.create_endpoint(more)
        assert publisher.publish("orders.new", b"x") == "stored"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"priority": -1}, "invalid priority -1 .0 to 9"),
        ({"priority": 10}, "invalid priority 10 .0 to 9"),
        ({"priority": 256}, "invalid priority 256 .0 to 9"),
        ({"ttl_ms": -5}, "invalid ttl_ms -5 .0 to 4,294,967,295"),
        ({"ttl_ms": 2**70}, "invalid ttl_ms"),
        ({"model_id": 65_536}, "invalid model_id 65536"),
    ],
)
def test_options_that_a_message_has_no_room_for_are_told(tmp_path: Path, options: dict[str, int], told: str) -> None:
    with (
        router_here(router_config(tmp_path)) as router,
        client_of(router.place) as client,
        client.publisher() as publisher,
    ):
        with pytest.raises(LocalProtocolError, match=told):
            publisher.publish("orders.new", b"x", **options)
        assert publisher.publish("orders.new", b"x") == "stored"


def test_a_closed_publisher_says_so(tmp_path: Path) -> None:
    with router_here(router_config(tmp_path)) as router, client_of(router.place) as client:
        publisher = client.publisher()
        publisher.publish("orders.new", b"0")
        publisher.close()
        for use in (publisher.publish, publisher.send):
            with pytest.raises(LocalProtocolError, match="closed"):
                use("orders.new", b"1")
        assert publisher.flush(PATIENCE_SECONDS)


def test_a_forked_child_has_no_part_in_its_parents_session(tmp_path: Path) -> None:
    """Neither publishing nor closing hangs in the child, and the parent's session continues."""
    with router_process(router_config(tmp_path / "state"), tmp_path) as router:
        script = FORKED.format(place=router.place)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.stdout.split() == ["another", "stored"], done.stderr


def test_a_program_that_ends_without_flush_is_told(tmp_path: Path) -> None:
    with router_process(router_config(tmp_path / "state"), tmp_path) as router:
        command = [sys.executable, "-c", UNFLUSHED.format(place=router.place)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == "connected\n"
            router.pause()
            _, errors = program.communicate("\n", PATIENCE_SECONDS)
        router.resume()
    assert "100 assured messages were not acknowledged" in errors


def test_a_router_that_cannot_open_its_journal_writes_no_accounts(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "journal").write_text("not a directory")
    accounts = AccountsConfig(path=str(tmp_path / "accounts"))
    with pytest.raises(PenstockError):
        RouterHere(router_config(tmp_path / "state", accounts=accounts))
    assert recorded(tmp_path / "accounts") == []
