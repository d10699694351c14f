"""The client as a consumer of real nodes: plants and multiplexers."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import penstock
from admin_kit import credentials, credentials_file
from integration.distribution_kit import NodeHere, mux_config, node_here, packed, plant_config, quote
from integration.node_kit import both, take
from penstock.admin.live.driver import AdminServer
from penstock.base.errors import LocalProtocolError, RefusedError, RevokedError, UnreachableError
from penstock.client import ClientConfig
from penstock.engine.client import Records, open_messages, open_records
from penstock.net.udp import free_ports
from penstock.security.core.access import AdminAccess
from penstock.security.live.client import AdminClient
from waiting import wait_until

AAPL, IBM = "md.us.eq.AAPL.quote", "md.us.eq.IBM.quote"


def publish(node: NodeHere, topic: str, *numbers: int) -> None:
    node.publish(*(packed(topic, quote(topic.split(".")[3], number)) for number in numbers))


@both
@pytest.mark.spec("TP-2")
def test_a_subscription_through_a_plant_begins_with_what_there_is(server: AdminServer, is_offloaded: bool) -> None:
    with node_here(plant_config()) as plant, penstock.connect(server.url, credentials=credentials("alice")) as alice:
        publish(plant, AAPL, 1, 2)
        publish(plant, IBM, 7)
        with alice.subscribe("md.us.eq.*.quote", node=f"127.0.0.1:{plant.port}", offload=is_offloaded) as messages:
            first = take(messages.next, 2)
            assert {(each.topic, each.bid_price, each.seq) for each in first} == {(AAPL, 2.0, 2), (IBM, 7.0, 1)}
            publish(plant, AAPL, *range(3, 103))
            updates = take(messages.next, 100)
            assert [(each.bid_price, each.seq) for each in updates] == [(float(each), each) for each in range(3, 103)]
            assert messages.is_live
            assert messages.losses == []
        assert [each for each in plant.consumer_names() if each.startswith("alice")] == []


def test_options_of_another_way_are_refused(server: AdminServer) -> None:
    with penstock.connect(server.url, credentials=credentials("alice")) as alice:
        with pytest.raises(LocalProtocolError, match="cannot be used with node"):
            alice.subscribe(AAPL, node="auto", image=True)  # type: ignore[call-overload]
        with pytest.raises(LocalProtocolError, match="cannot be used with node"):
            alice.subscribe(AAPL, node="auto", transport="unicast")  # type: ignore[call-overload]
        with pytest.raises(LocalProtocolError, match="need a node"):
            alice.subscribe(AAPL, convert=True)  # type: ignore[call-overload]


def test_why_no_node_answers_is_told(server: AdminServer) -> None:
    (port,) = free_ports(1)
    with (
        penstock.connect(server.url, credentials=credentials("alice"), config=ClientConfig(node_wait_s=0.5)) as alice,
        pytest.raises(UnreachableError, match="cannot connect"),
    ):
        alice.subscribe(AAPL, node=f"127.0.0.1:{port}")


def test_a_node_is_looked_for_on_this_host(server: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with node_here(plant_config()) as plant, penstock.connect(server.url, credentials=credentials("alice")) as alice:
        monkeypatch.setenv("PENSTOCK_NODE", f"127.0.0.1:{plant.port}")
        publish(plant, AAPL, 1)
        with alice.subscribe(AAPL, node="auto") as messages:
            assert take(messages.next, 1)[0].bid_price == 1.0


@pytest.mark.spec("CRIT-5")
@pytest.mark.parametrize("waits", ["block", "spin"])
def test_a_consumer_sleeps_or_spins_while_nothing_comes(server: AdminServer, waits: Literal["block", "spin"]) -> None:
    with node_here(plant_config()) as plant:
        config = ClientConfig(node=f"127.0.0.1:{plant.port}", node_waits=waits)
        with penstock.connect(server.url, credentials=credentials("alice"), config=config) as alice:
            messages = alice.subscribe(AAPL, node=config.node)
            clock, begun = time.pthread_getcpuclockid(threading.get_ident()), time.monotonic()
            before = time.thread_time()

            def publish_later() -> None:
                """After a second or, for a consumer that spins, after some of its CPU time."""
                is_spinning = waits == "spin"
                wait_until(
                    lambda: time.monotonic() > begun + 1 and time.clock_gettime(clock) > before + is_spinning * 0.05
                )
                publish(plant, AAPL, 1)

            later = threading.Thread(target=publish_later)
            later.start()
            assert take(messages.next, 1)[0].bid_price == 1.0
            spent = time.thread_time() - before
            later.join()
            assert spent > 0.05 if waits == "spin" else spent < 0.05


def test_a_node_that_is_not_there(server: AdminServer) -> None:
    config = ClientConfig(node=f"127.0.0.1:{free_ports(1)[0]}", node_wait_s=0.2)
    with penstock.connect(server.url, credentials=credentials("alice"), config=config) as alice:
        with pytest.raises(UnreachableError):
            alice.records("md.>")
        with pytest.raises(UnreachableError):
            alice.metered("md.>", per_second=1)


@both
@pytest.mark.spec("CRIT-4")
def test_a_consumer_that_was_too_slow_is_told_what_it_missed_and_put_right(is_offloaded: bool) -> None:
    """Every update is received once, or reported in a receipt; the newest is always received."""
    with node_here(plant_config()) as plant:
        publish(plant, AAPL, 1)
        with open_messages(f"127.0.0.1:{plant.port}", AAPL, offload=is_offloaded) as messages:
            take(messages.next, 1)
            newest = 40_000
            for start in range(2, newest, 1_000):
                publish(plant, AAPL, *range(start, min(start + 1_000, newest + 1)))
            seen: list[int] = []
            while newest not in seen[-1:]:
                seen += [each.seq for each in take(messages.next, 1)]
            missed = {number for each in messages.losses for number in range(each.first, each.last + 1)}
            assert seen == sorted(set(seen))
            assert missed | set(seen) >= set(range(2, newest + 1))
            assert bool(missed) == (len(seen) < newest - 1)
            assert messages.statistics().overruns > 0 or is_offloaded
            publish(plant, AAPL, newest + 1)
            assert take(messages.next, 1)[0].seq == newest + 1


@both
def test_messages_through_a_chain(is_offloaded: bool) -> None:
    with node_here(plant_config()) as plant, node_here(mux_config(plant.port)) as mux:
        publish(plant, AAPL, 1)
        with open_messages(f"127.0.0.1:{mux.port}", "md.us.eq.>", offload=is_offloaded, convert=True) as messages:
            assert take(messages.next, 1)[0].bid_price == 1.0
            publish(plant, AAPL, 2, 3)
            assert [each.seq for each in take(messages.next, 2)] == [2, 3]


def records_at(node: NodeHere, is_offloaded: bool, **options: Any) -> Records:
    return open_records(f"127.0.0.1:{node.port}", "md.us.eq.*.quote", offload=is_offloaded, **options)


@both
@pytest.mark.spec("ADPT-1", "ADPT-5")
def test_a_slow_reader_of_records_sees_the_newest(is_offloaded: bool) -> None:
    with node_here(plant_config()) as plant:
        publish(plant, AAPL, 1)
        publish(plant, IBM, 1)
        with records_at(plant, is_offloaded) as quotes:
            assert quotes.wait(30.0)
            changes = quotes.changes()
            assert {each.topic for each in take(changes.next, 2)} == {AAPL, IBM}
            publish(plant, AAPL, *range(2, 5_002))
            wait_until(lambda: quotes[AAPL].bid_price == 5_001.0, "the newest record")
            told = [each.bid_price for each in changes.batch(30.0)]
            assert told == [5_001.0]
            assert changes.next(0.0) is None
            assert sorted(quotes) == [AAPL, IBM]


@both
@pytest.mark.spec("ADPT-3")
def test_topics_that_come_later_have_records_too(is_offloaded: bool) -> None:
    """More records than the region has room for: the node replaces it by a larger one."""
    with node_here(plant_config()) as plant:
        publish(plant, AAPL, 1)
        with records_at(plant, is_offloaded) as quotes:
            assert quotes[AAPL].bid_price == 1.0
            changes = quotes.changes(fields=["bid_price"])
            take(changes.next, 1)
            topics = {f"md.us.eq.S{number}.quote" for number in range(300)}
            for number, topic in enumerate(sorted(topics)):
                publish(plant, topic, number + 1)
            seen: set[str] = set()
            while not topics <= seen:
                seen.update(each.topic for each in take(changes.next, 1))
            wait_until(lambda: set(quotes) == topics | {AAPL}, "every topic")
            assert quotes["md.us.eq.S7.quote"].symbol == "S7"
            publish(plant, AAPL, 2)
            wait_until(lambda: quotes[AAPL].bid_price == 2.0, "the newest record")


@both
def test_what_a_conflated_record_adds_up_holds_since_the_read_before(is_offloaded: bool) -> None:
    with node_here(plant_config()) as plant:
        node_quote = quote("AAPL", 1)
        node_quote.update_count = 1
        plant.publish(packed(AAPL, node_quote))
        with records_at(plant, is_offloaded) as quotes:
            assert quotes[AAPL].update_count == 1
            for _ in range(50):
                plant.publish(packed(AAPL, node_quote))
            wait_until(lambda: quotes.delta(AAPL) and quotes.is_updated(AAPL), "an update")
            total = 0
            while total < 50:
                message = quotes.read(AAPL, 30.0)
                assert message is not None
                total += message.update_count
            assert total == 50


@both
@pytest.mark.spec("METR-4")
def test_metered_messages_are_few_and_the_last_one_comes(is_offloaded: bool) -> None:
    with node_here(plant_config()) as plant:
        publish(plant, AAPL, 1)
        with open_messages(
            f"127.0.0.1:{plant.port}", AAPL, cls="metered", per_second=20, offload=is_offloaded
        ) as messages:
            assert take(messages.next, 1)[0].bid_price == 1.0
            publish(plant, AAPL, *range(2, 1_002))
            seen = []
            while 1_001 not in seen[-1:]:
                seen += [each.seq for each in take(messages.next, 1)]
            assert len(seen) < 500
            assert messages.statistics().merged == 1_000 - len(seen)
            assert messages.losses == []


@pytest.fixture
def guarded(server: AdminServer, tmp_path: Path) -> Iterator[NodeHere]:
    """A plant that requires tokens."""
    admin = AdminAccess(url=server.url, credentials=str(credentials_file(tmp_path, "filter")))
    with node_here(plant_config(admin=admin)) as plant:
        wait_until(lambda: plant.node.status().is_in_touch, "the administration server")
        publish(plant, AAPL, 1)
        publish(plant, IBM, 1)
        yield plant


@both
def test_a_client_shows_its_token_and_gets_what_it_may_have(
    server: AdminServer, guarded: NodeHere, is_offloaded: bool
) -> None:
    with pytest.raises(RefusedError):
        open_messages(f"127.0.0.1:{guarded.port}", "md.>", offload=is_offloaded, timeout_s=0.5)
    config = ClientConfig(node=f"127.0.0.1:{guarded.port}", offload=is_offloaded)
    with penstock.connect(server.url, credentials=credentials("alice"), config=config) as alice:
        quotes = alice.records(AAPL)
        assert quotes[AAPL].bid_price == 1.0
        assert list(quotes) == [AAPL]
        metered = alice.metered(AAPL, per_second=5)
        assert take(metered.next, 1)[0].topic == AAPL


@both
@pytest.mark.parametrize("kind", ["messages", "records"])
def test_rights_that_are_taken_back_end_it(
    server: AdminServer, guarded: NodeHere, is_offloaded: bool, kind: str
) -> None:
    config = ClientConfig(node=f"127.0.0.1:{guarded.port}", offload=is_offloaded)
    with penstock.connect(server.url, credentials=credentials("alice"), config=config) as alice:
        if kind == "messages":
            following = alice.subscribe(AAPL, node=config.node)
        else:
            following = alice.records(AAPL).changes()  # type: ignore[assignment]
        take(following.next, 1)
        with AdminClient.connect(server.url, credentials("root")) as root:
            root.revoke("alice", "left the firm")
        with pytest.raises(RevokedError):
            take(following.next, 1)
        wait_until(lambda: guarded.consumer_names() == [], "the end of the consumer")


def test_tokens_are_renewed_before_they_expire(server: AdminServer, guarded: NodeHere) -> None:
    with penstock.connect(server.url, credentials=credentials("alice")) as alice:
        messages = alice.subscribe(AAPL, node=f"127.0.0.1:{guarded.port}")
        take(messages.next, 1)
        before = messages.token
        alice.hurry()
        wait_until(lambda: messages.token != before, "a newer token")
        publish(guarded, AAPL, 2)
        assert take(messages.next, 1)[0].bid_price == 2.0
        messages.cancel()
        messages.cancel()
        assert messages.next(0.0) is None
