"""A live pair of message routers that switches by itself, by a lease that two of three voters give (REPL-14)."""

from pathlib import Path

import pytest

from integration.assured_kit import client_of
from integration.failing_syncs import failing_syncs
from integration.pair_kit import ORDERS, state_of, switch_to
from integration.test_assured_router import number_of, taken
from integration.voting_kit import NAMES, VotingPair, stopped, wait_active
from penstock.assured import EndpointConfig, Want
from penstock.base.errors import RefusedError
from waiting import PATIENCE_SECONDS, wait_until

EPOCH_SHIFT = 40
"""The bits below this one are a message's number in its epoch."""

pytestmark = pytest.mark.spec("REPL-14")


@pytest.mark.spec("REPL-7")
def test_when_the_active_router_is_killed_the_other_takes_over_and_nothing_synchronous_is_lost(tmp_path: Path) -> None:
    with VotingPair(tmp_path) as pair, client_of(*pair.places) as client:
        assert pair.one.status().role == "active"
        with client.publisher(window=64) as publisher:
            for number in range(500):
                publisher.send("orders.new", b"%d" % number)
            assert publisher.publish("orders.new", b"500") == "synchronous"
            pair.one.kill()
            for number in range(501, 600):
                publisher.send("orders.new", b"%d" % number)
            assert publisher.flush()
        assert pair.two.status().role == "active"
        assert pair.witness.status().holder == NAMES[1]
        with client.endpoint("orders", prefetch=1_000) as queue:
            messages = taken(queue, 600)
        assert [number_of(each) for each in messages] == list(range(600))
        assert all(each.is_redelivered for each in messages[:501])

        pair.one.start()  # it returns as the standby, and does not disturb the active router
        pair.wait_in_step()
        assert [each.status().role for each in pair.routers] == ["standby", "active"]
        assert pair.one.status().epoch == pair.two.status().epoch


@pytest.mark.spec("REPL-7")
def test_a_router_that_stood_still_beyond_its_lease_neither_acknowledges_nor_delivers(tmp_path: Path) -> None:
    """Messages that wait in the stopped router's sockets are acknowledged and delivered by the router that has the
    lease: their ids belong to its epoch."""
    with (
        VotingPair(tmp_path) as pair,
        client_of(pair.one.place, silence_ms=600_000) as at_one,
        client_of(pair.two.place) as at_two,
        at_one.publisher() as late,
        at_one.endpoint("orders") as queue,
    ):
        assert late.publish("orders.new", b"0") == "synchronous"
        (first,) = taken(queue, 1)
        with stopped(pair.one):
            late.send("orders.new", b"2")  # the message waits in the router's socket
            wait_active(pair.two)
            with at_two.publisher() as publisher:
                publisher.publish("orders.new", b"1")
        assert late.flush()
        epoch = pair.two.status().epoch
        assert (at_one.router, at_one.epoch) == (NAMES[1], epoch)
        again, *others = taken(queue, 3)
        assert (again.id, again.is_redelivered) == (first.id, True)
        assert [number_of(each) for each in others] == [1, 2]
        assert [each.id >> EPOCH_SHIFT for each in others] == [epoch, epoch]
        pair.wait_in_step()
        assert [each.status().role for each in pair.routers] == ["standby", "active"]


def test_without_a_majority_nobody_is_active(tmp_path: Path) -> None:
    with VotingPair(tmp_path) as pair, client_of(*pair.places) as client, client.publisher() as publisher:
        assert publisher.publish("orders.new", b"0") == "synchronous"
        pair.two.kill()
        pair.witness.kill()
        wait_until(lambda: pair.one.status().role == "standby", "the lease to expire")
        publisher.send("orders.new", b"1")
        assert publisher.unacknowledged == 1
        epoch = pair.one.status().epoch
        pair.witness.start()
        assert publisher.flush()
        assert pair.one.status().epoch > epoch
        assert pair.one.status().role == "active"


@pytest.mark.spec("REPL-8")
def test_there_is_no_automatic_switch_while_degraded(tmp_path: Path) -> None:
    """Messages that only the active router has are not lost by an automatic switch."""
    with VotingPair(tmp_path, degrade_after_ms=2_000) as pair, client_of(*pair.places) as client:
        with client.publisher() as publisher:
            assert publisher.publish("orders.new", b"0") == "synchronous"
            pair.relay.cut()
            assert publisher.publish("orders.new", b"1") == "degraded"
        assert pair.witness.status().alone == NAMES[0]
        pair.one.kill()
        wait_until(lambda: not pair.witness.status().bound_to, "the promise to end")
        with pytest.raises(RefusedError):
            switch_to(pair.two)
        assert pair.two.status().role == "standby"
        pair.relay.heal()
        pair.one.start()
        wait_active(pair.one)
        pair.wait_in_step()
        assert pair.two.status().role == "standby"
        wait_until(lambda: not pair.witness.status().alone, "the record of degradation to be removed")
        with client.endpoint("orders") as queue:
            assert [number_of(each) for each in taken(queue, 2)] == [0, 1]


@pytest.mark.spec("REPL-8")
def test_there_is_no_automatic_switch_while_one_router_has_what_the_other_has_no_endpoint_for(tmp_path: Path) -> None:
    solo = EndpointConfig(name="solo", wants=(Want(topics=("solo.>",)),), replication="synchronous")
    alone = {"second": {"endpoints": (ORDERS,)}, "mirror": "none"}
    with VotingPair(tmp_path, ORDERS, solo, **alone) as pair, client_of(*pair.places) as client:
        with client.publisher() as publisher:
            assert publisher.publish("orders.new", b"0") == "synchronous"
            assert publisher.publish("solo.x", b"1") == "degraded"
            assert publisher.publish("orders.new", b"2") == "synchronous"
        assert pair.witness.status().alone == NAMES[0]
        assert [state_of(each) for each in pair.routers] == ["degraded", "degraded"]
        pair.one.kill()
        wait_until(lambda: not pair.witness.status().bound_to, "the promise to end")
        assert pair.two.status().role == "standby"
        pair.one.start()
        wait_active(pair.one)
        with client.endpoint("solo") as queue:
            message = queue.next(timeout=PATIENCE_SECONDS)
            assert message is not None
            message.ack()
        pair.wait_in_step()
        wait_until(lambda: not pair.witness.status().alone, "the record of degradation to be removed")
        pair.one.kill()
        wait_active(pair.two)


def test_a_witness_that_is_killed_and_started_again_remembers_and_the_pair_goes_on_meanwhile(tmp_path: Path) -> None:
    with VotingPair(tmp_path) as pair, client_of(*pair.places) as client, client.publisher() as publisher:
        before = pair.witness.status()
        assert before.holder == NAMES[0]
        pair.witness.kill()
        for number in range(100):
            assert publisher.publish("orders.new", b"%d" % number) in ("synchronous", "degraded")
        pair.witness.start()
        wait_until(lambda: pair.witness.status().in_touch == list(NAMES), "both routers to come back")
        after = pair.witness.status()
        assert (after.epoch, after.holder, after.bound_to) == (before.epoch, NAMES[0], NAMES[0])
        assert pair.one.status().epoch == before.epoch


def test_not_even_an_operator_makes_two_routers_active(tmp_path: Path) -> None:
    with VotingPair(tmp_path, degrade_after_ms=2_000) as pair:
        epoch = pair.one.status().epoch
        pair.relay.cut()
        pair.relay.end()
        wait_until(lambda: pair.witness.status().alone == NAMES[0], "the active router to be recorded as degraded")
        with pytest.raises(RefusedError):
            switch_to(pair.two, force=True)
        assert [each.status().role for each in pair.routers] == ["active", "standby"]
        assert pair.one.status().epoch == epoch
        pair.one.kill()
        wait_until(lambda: not pair.witness.status().bound_to, "the promise to end")
        switch_to(pair.two, force=True)  # only an operator can give up messages that only the other router has
        assert pair.two.status().role == "active"


def test_when_the_disk_of_the_active_router_fails_the_other_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with VotingPair(tmp_path) as pair, client_of(*pair.places) as client, client.publisher() as publisher:
        pair.two.kill()
        with monkeypatch.context() as patch:
            failing = failing_syncs(tmp_path, patch)
            pair.two.start()
        pair.wait_in_step()
        switch_to(pair.two)
        pair.wait_in_step()
        assert publisher.publish("orders.new", b"0") == "synchronous"
        failing.touch()
        assert publisher.publish("orders.new", b"1") in ("synchronous", "degraded", "known")
        assert [each.status().role for each in pair.routers] == ["active", "standby"]
        with pytest.raises(RefusedError, match="disk accepts no data"):
            switch_to(pair.two, force=True)
        with client.endpoint("orders") as queue:
            assert [number_of(each) for each in taken(queue, 2)] == [0, 1]


def test_an_active_router_that_is_told_to_stop_hands_the_lease_over(tmp_path: Path) -> None:
    with VotingPair(tmp_path) as pair, client_of(*pair.places) as client, client.publisher() as publisher:
        assert publisher.publish("orders.new", b"0") == "synchronous"
        pair.one.stop()
        assert pair.two.status().role == "active"
        assert publisher.publish("orders.new", b"1") in ("synchronous", "degraded", "known")
        pair.one.start()
        pair.wait_in_step()
        assert [each.status().role for each in pair.routers] == ["standby", "active"]


def test_a_planned_switch_hands_the_lease_over(tmp_path: Path) -> None:
    with VotingPair(tmp_path) as pair, client_of(*pair.places) as client, client.publisher() as publisher:
        assert publisher.publish("orders.new", b"0") == "synchronous"
        with pytest.raises(RefusedError, match="does not end its lease"):
            switch_to(pair.two, force=True)
        switch_to(pair.two)
        pair.wait_in_step()
        assert publisher.publish("orders.new", b"1") == "synchronous"
        assert [each.status().role for each in pair.routers] == ["standby", "active"]
