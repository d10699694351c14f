"""Operators' requests about a pair's queues go to the active router; the standby refers to it."""

import json
from pathlib import Path

import pytest

from command_here import run_here
from integration.assured_kit import RouterProcess, client_of
from integration.pair_kit import ORDERS, PairOfRouters, state_of, switch_to
from penstock.assured import EndpointConfig, Want
from penstock.base.errors import RefusedError
from waiting import PATIENCE_SECONDS, wait_until

FILLS = EndpointConfig(name="fills", wants=(Want(topics=("fills.>",)),), replication="synchronous")


def done(*words: object) -> str:
    found = run_here("queue", *words)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_queues_of_a_pair_are_those_of_the_active_router(tmp_path: Path) -> None:
    with PairOfRouters(tmp_path) as pair:
        switch_to(pair.two)
        pair.wait_in_step()
        both = ",".join(pair.places)  # the standby is named first
        done("create", both, "fills", "fills.>", "--replication", "synchronous")
        done("publish", both, "fills.new", "one")
        with client_of(*pair.places) as client, client.endpoint("fills") as queue:
            assert queue.next(PATIENCE_SECONDS) is not None
            listed = [json.loads(line) for line in done("list", both, "--json").splitlines()]
            (fills,) = (each for each in listed if each["endpoint"]["name"] == "fills")
            assert (fills["messages"], fills["unsettled"], fills["flows"]) == (1, 1, 1)
        assert json.loads(done("show", both, "fills"))["endpoint"]["replication"] == "synchronous"
        wait_until(lambda: "fills: 1 message" in done("list", pair.one.place), "the copy")
        done("delete", both, "fills", "--force")
        assert "fills" not in done("list", pair.two.place)
        wait_until(lambda: "fills" not in done("list", pair.one.place), "the mirrored deletion")


def test_a_router_that_stands_by_changes_nothing_and_says_so(tmp_path: Path) -> None:
    with PairOfRouters(tmp_path) as pair:
        with client_of(*pair.places) as client, client.publisher() as publisher:
            publisher.publish("orders.new", b"one")
        standby = pair.two.place
        found = run_here("queue", "create", standby, "fills", "fills.>")
        assert found.returncode != 0
        assert "this router is the standby" in found.stderr
        assert f"is at {pair.one.place}" in found.stderr
        with client_of(standby, role="operator") as operator:
            for change in (
                lambda: operator.create_endpoint(FILLS),
                lambda: operator.alter_endpoint(ORDERS),
                lambda: operator.delete_endpoint("orders", force=True),
                lambda: operator.empty_endpoint("orders"),
                operator.publisher,
                lambda: operator.endpoint("orders"),
            ):
                with pytest.raises(RefusedError, match="is the standby") as refused:
                    change()
                assert refused.value.peer_code == "not_active"
                assert pair.one.place in str(refused.value)
            assert operator.is_standing_by
        looked = run_here("queue", "list", standby)
        assert "orders: 1 message" in looked.stdout
        assert " 0 unsettled" in looked.stdout
        assert f"{standby} is the standby" in looked.stderr
        assert "is the standby" in run_here("queue", "show", standby, "orders").stderr
        assert "is the standby" not in run_here("queue", "list", pair.one.place).stderr
        (orders,) = (each for each in pair.two.status().endpoints if each.endpoint.name == "orders")
        assert (orders.messages, orders.unsettled) == (1, 0)


def test_endpoints_that_are_not_mirrored_are_defined_at_the_router_that_stands_by(tmp_path: Path) -> None:
    with PairOfRouters(tmp_path, mirror="none") as pair:
        done("create", pair.two.place, "fills", "fills.>")
        assert "fills" in done("list", pair.two.place)
        assert "fills" not in done("list", ",".join(pair.places))


def lacking_at(router: RouterProcess) -> tuple[str, ...]:
    replication = router.status().replication
    assert replication is not None
    return replication.lacking


def test_repl_3_an_endpoint_that_one_router_lacks_is_named_and_what_it_has_stays_behind_until_it_is_there(
    tmp_path: Path,
) -> None:
    with PairOfRouters(tmp_path, mirror="none") as pair:
        done("create", pair.one.place, "fills", "fills.>", "--replication", "synchronous")
        wait_until(
            lambda: [lacking_at(each) for each in pair.routers] == [("fills",)] * 2, "the report of missing copies"
        )
        with client_of(*pair.places) as client, client.publisher() as publisher:
            assert publisher.publish("fills.new", b"one") == "degraded"
            wait_until(lambda: publisher.publish("orders.new", b"one") == "synchronous", "copies of other endpoints")
        for router, told in ((pair.one, "not at the other router"), (pair.two, "only at the other router")):
            shown = run_here("router", "status", "--node", router.facts["url"].removeprefix("http://"))
            assert f"{told}: fills" in shown.stdout
        switched = run_here("router", "switch", pair.two.place)
        assert "fills: 1 message stays behind at the other router" in switched.stdout
        pair.wait_in_step()
        switch_to(pair.one)
        wait_until(
            lambda: [state_of(each) for each in pair.routers] == ["degraded", "degraded"],
            "degradation for an endpoint without copies",
        )
        done("create", pair.two.place, "fills", "fills.>", "--replication", "synchronous")
        pair.wait_in_step()
        wait_until(lambda: "fills: 1 message" in done("list", pair.two.place), "the message that stayed behind")
        with client_of(*pair.places) as client, client.publisher() as publisher:
            wait_until(lambda: publisher.publish("fills.new", b"two") == "synchronous", "copies")
