"""A live pair of message routers: copies, switches, kill -9, the return of the old router (REPL-2 to REPL-8)."""

from pathlib import Path

import pytest

from integration.assured_kit import client_of
from integration.failing_syncs import failing_syncs
from integration.pair_kit import ORDERS, PairOfRouters, Traffic, replication_of, state_of, switch_to
from integration.test_assured_router import number_of, taken
from penstock.assured import EndpointConfig, Want
from penstock.base.errors import NotEntitledError, RefusedError, UnreachableError
from penstock.model import shipped
from waiting import wait_until

SYNC, ASYNC, NONE = "synchronous", "asynchronous", "stored"


def queue_of(name: str, replication: str = "none", **values: object) -> EndpointConfig:
    return EndpointConfig(name=name, wants=(Want(topics=(f"{name}.>",)),), replication=replication, **values)  # type: ignore[arg-type]


def counts(pair: PairOfRouters, which: int) -> dict[str, int]:
    return {each.endpoint.name: each.messages for each in pair.routers[which].status().endpoints if each.messages}


@pytest.mark.spec("REPL-3", "REPL-7")
def test_nothing_synchronous_is_lost_when_the_active_router_is_killed_and_the_other_is_forced(tmp_path: Path) -> None:
    with PairOfRouters(tmp_path) as pair, client_of(*pair.places) as client:
        with client.publisher(window=64) as publisher:
            for number in range(500):
                publisher.send("orders.new", b"%d" % number)
            publisher.flush()
            assert publisher.publish("orders.new", b"500") == SYNC
            pair.one.kill()
            with pytest.raises(RefusedError, match="does not answer"):
                switch_to(pair.two)
            switch_to(pair.two, force=True)
            assert publisher.publish("orders.new", b"501") == "degraded"
        with client.endpoint("orders", prefetch=1_000) as queue:
            messages = taken(queue, 502)
    assert [number_of(each) for each in messages] == list(range(502))
    assert all(each.is_redelivered for each in messages[:501])


@pytest.mark.spec("REPL-2", "REPL-3", "REPL-8")
def test_all_treatments_go_side_by_side_and_where_nothing_degrades_only_synchronous_ones_wait(tmp_path: Path) -> None:
    """The replication attribute of the matching endpoints decides: one synchronous endpoint makes a message
    synchronous."""
    everything = EndpointConfig(name="everything", wants=(Want(topics=(">",)),))
    queues = [queue_of("a", "synchronous"), queue_of("b", "asynchronous"), queue_of("c"), everything]
    with PairOfRouters(tmp_path, *queues, degrade="never") as pair, client_of(*pair.places) as client:
        with client.publisher() as publisher:
            for topic, outcome in (("a.x", SYNC), ("b.x", ASYNC), ("c.x", NONE), ("d.x", NONE)):
                assert publisher.publish(topic, b"1") == outcome
            wait_until(lambda: counts(pair, 1) == {"a": 1, "b": 1}, "copies, where endpoints are replicated")
            pair.relay.cut()
            with pytest.raises(UnreachableError, match="not acknowledged in time"):
                publisher.publish("a.x", b"2", timeout=0.5)
            assert publisher.publish("b.x", b"2") == ASYNC
            assert publisher.publish("c.x", b"2") == NONE
            assert publisher.unacknowledged, "the synchronous message still waits"
            pair.relay.heal()
            publisher.flush()
            assert publisher.publish("a.x", b"3") == SYNC
        wait_until(lambda: counts(pair, 1) == {"a": 3, "b": 2}, "the rest of the copies")
        pair.one.kill()
        switch_to(pair.two, force=True)
        with client.endpoint("a") as queue:
            assert [number_of(each) for each in taken(queue, 3)] == [1, 2, 3]


@pytest.mark.spec("REPL-2")
@pytest.mark.parametrize("by", ["publisher", "topic"])
def test_publishers_flags_or_topics_decide_if_configured(tmp_path: Path, by: str) -> None:
    topics = {"synchronous_topics": ("a.>",), "asynchronous_topics": ("b.>",)} if by == "topic" else {}
    wishes = {} if by == "topic" else {"a.x": SYNC, "b.x": ASYNC}
    everything = EndpointConfig(name="everything", wants=(Want(topics=(">",)),))
    settings = {"replicate_by": by, **topics}
    with PairOfRouters(tmp_path, everything, router=settings) as pair, client_of(*pair.places) as client:
        with client.publisher() as publisher:
            for topic, outcome in (("a.x", SYNC), ("b.x", ASYNC), ("c.x", NONE)):
                assert publisher.publish(topic, b"", replication=wishes.get(topic, "none")) == outcome
        wait_until(lambda: counts(pair, 1) == {"everything": 2}, "copies of two messages")


@pytest.mark.spec("REPL-7")
def test_a_planned_switch_under_load_loses_nothing_and_clients_go_on(tmp_path: Path) -> None:
    with PairOfRouters(tmp_path) as pair, client_of(*pair.places) as client, Traffic(client) as traffic:
        for router, name in ((pair.two, "two"), (pair.one, "one"), (pair.two, "two")):
            traffic.wait_for(200)
            switch_to(router)
            traffic.wait_for(100)
            assert client.router == name
            pair.wait_in_step()
        traffic.check()
        assert {each for outcomes in traffic.outcomes for each in outcomes} <= {SYNC, "known"}, "no degraded message"
        wait_until(lambda: not counts(pair, 0) and not counts(pair, 1), "both routers to have deleted settled messages")
        happened = [each.what for each in pair.two.status().happenings]
        assert "active" in happened
        assert "stands_by" in happened


@pytest.mark.spec("REPL-7")
def test_an_active_router_that_is_told_to_stop_hands_over_and_nothing_is_lost(tmp_path: Path) -> None:
    with PairOfRouters(tmp_path) as pair, client_of(*pair.places) as client, Traffic(client) as traffic:
        for stopped, other in ((pair.one, pair.two), (pair.two, pair.one)):
            traffic.wait_for(200)
            pair.wait_in_step()
            stopped.stop()
            assert other.status().role == "active"
            traffic.wait_for(100)
            stopped.start()
            pair.wait_in_step()
        traffic.check()


@pytest.mark.spec("REPL-8")
def test_both_routers_say_so_when_the_disk_of_the_one_that_stands_by_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PairOfRouters(tmp_path) as pair, client_of(*pair.places) as client, client.publisher() as publisher:
        pair.two.kill()
        with monkeypatch.context() as patch:
            failing = failing_syncs(tmp_path, patch)
            pair.two.start()
        pair.wait_in_step()
        failing.touch()
        assert publisher.publish("orders.new", b"0") == "degraded"
        wait_until(lambda: not pair.two.status().is_storing, "the report of the standby")
        wait_until(lambda: not replication_of(pair.one).is_other_storing, "the report of the active router")
        active = pair.one.status()
        assert active.is_storing
        assert replication_of(pair.one).state == "degraded"
        assert "other_disk_troubled" in [each.what for each in active.happenings]
        with pytest.raises(RefusedError, match="disk accepts no data"):
            switch_to(pair.two, force=True)
        pair.one.stop()  # the active router does not wait for a router that cannot take over


@pytest.mark.spec("REPL-7")
def test_a_killed_router_returns_cannot_deliver_catches_up_and_becomes_active_again(tmp_path: Path) -> None:
    settings = {"degrade_after_ms": 2_000}
    with PairOfRouters(tmp_path, **settings) as pair, client_of(*pair.places) as client, Traffic(client) as traffic:
        traffic.wait_for(200)
        pair.one.kill()
        switch_to(pair.two, force=True)
        traffic.wait_for(200)
        pair.one.start()
        with client_of(pair.one.place) as other, other.publisher():
            assert other.router == "two", "the old router refuses clients"
        pair.wait_in_step()
        assert (pair.one.status().role, pair.one.status().epoch) == ("standby", pair.two.status().epoch)
        switch_to(pair.one)
        traffic.wait_for(200)
        assert (client.router, pair.one.status().role, pair.two.status().role) == ("one", "active", "standby")
        traffic.check()


@pytest.mark.spec("REPL-8")
def test_without_a_link_synchronous_traffic_degrades_and_recovers_and_the_moments_are_seen(tmp_path: Path) -> None:
    with PairOfRouters(tmp_path, degrade_after_ms=2_000) as pair, client_of(*pair.places) as client:
        with client.publisher() as publisher:
            assert publisher.publish("orders.new", b"0") == SYNC
            pair.relay.cut()
            for number in range(1, 50):
                assert publisher.publish("orders.new", b"%d" % number) == "degraded"
            assert state_of(pair.one) == "degraded"
            pair.relay.heal()
            pair.wait_in_step()
            assert publisher.publish("orders.new", b"50") == SYNC
        told = pair.one.status()
        modes = [(each.values["mode"], each.time_ns) for each in told.happenings if each.what == "replication"]
        assert [mode for mode, _ in modes] == ["degrading", "degraded", "synchronous"]
        assert told.replication is not None
        assert modes[1][1] < modes[2][1] <= told.replication.since_ns + 10**9
        pair.one.kill()
        switch_to(pair.two, force=True)
        with client.endpoint("orders") as queue:
            assert [number_of(each) for each in taken(queue, 51)] == list(range(51))


@pytest.mark.spec("REPL-8")
def test_a_router_that_stands_still_degrades_the_other_and_is_brought_up_to_date(tmp_path: Path) -> None:
    with PairOfRouters(tmp_path, degrade_after_ms=2_000, silence_ms=400) as pair, client_of(*pair.places) as client:
        with client.publisher(window=512) as publisher:
            pair.two.pause()
            for number in range(3_000):
                publisher.send("orders.new", b"%d" % number)
            publisher.flush()
            wait_until(lambda: not pair.one.status().replication.is_linked, "the end of the link to the silent router")  # type: ignore[union-attr]
            pair.two.resume()
            pair.wait_in_step()
            assert publisher.publish("orders.new", b"3000") == SYNC
        wait_until(lambda: counts(pair, 1) == {"orders": 3_001}, "every copy")


@pytest.mark.spec("REPL-8")
def test_an_operator_orders_degradation_and_takes_it_back(tmp_path: Path) -> None:
    with (
        PairOfRouters(tmp_path, ORDERS, degrade="never") as pair,
        client_of(*pair.places) as client,
        client.publisher() as publisher,
        client_of(pair.one.place, role="operator") as operator,
    ):
        operator.degrade()
        assert publisher.publish("orders.new", b"1") == "degraded"
        told = pair.one.status().replication
        assert told is not None
        assert (told.state, told.is_ordered, told.is_linked) == ("degraded", True, True)
        operator.degrade(end=True)
        pair.wait_in_step()
        assert publisher.publish("orders.new", b"2") == SYNC
        with client_of(pair.two.place, role="operator") as other, pytest.raises(RefusedError, match="is the standby"):
            other.degrade()
        with pytest.raises(NotEntitledError, match="operator"):
            client.degrade()


@pytest.mark.spec("REPL-4")
@pytest.mark.parametrize("matching", ["secondary", "primary"])
def test_each_queue_of_the_other_router_has_what_it_wants_by_topic_and_content(tmp_path: Path, matching: str) -> None:
    """Whichever router matches; also for messages published while the routers were disconnected, and for an endpoint
    created later."""
    quote = shipped("quote")
    large = Want(topics=("md.>",), where="bid_price > 100")
    queues = [queue_of("md", "synchronous"), EndpointConfig(name="large", wants=(large,), replication="synchronous")]
    with PairOfRouters(tmp_path, *queues, matching=matching) as pair, client_of(*pair.places) as client:
        with client.publisher() as publisher, client_of(pair.one.place, role="operator") as operator:

            def publish(*bids: int) -> list[str]:
                return [publisher.publish("md.quote", quote.new(bid_price=bid)) for bid in bids]

            assert publish(50, 150) == [SYNC, SYNC]
            assert counts(pair, 1) == {"md": 2, "large": 1}
            pair.relay.cut()
            wait_until(lambda: publish(60) == ["degraded"], "a degraded publish after the loss of the link")
            pair.relay.heal()
            pair.wait_in_step()
            operator.create_endpoint(queue_of("md.late", "synchronous"))
            assert publish(160) == [SYNC]
            assert publisher.publish("md.late.x", b"") == SYNC
            expected = counts(pair, 0)
            assert (expected["large"], expected["md.late"]) == (2, 1)
            assert counts(pair, 1) == expected
        pair.one.kill()
        switch_to(pair.two, force=True)
        with client.endpoint("large") as queue:
            assert [quote.view(each.payload).bid_price for each in taken(queue, 2)] == [150, 160]
