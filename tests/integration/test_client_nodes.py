"""The client as a consumer of real nodes: plants and multiplexers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from admin_kit import config, credentials
from integration.distribution_kit import NodeHere, mux_config, node_here, packed, plant_config, quote
from integration.node_kit import both, take
from penstock.admin.driver import AdminServer
from penstock.base.errors import UnreachableError
from penstock.client import ClientConfig
from penstock.engine.application import open_messages
from penstock.net.udp import free_ports

AAPL, IBM = "md.us.eq.AAPL.quote", "md.us.eq.IBM.quote"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with AdminServer(config(tmp_path)) as server:
        yield server


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


def test_a_node_is_looked_for_on_this_host(server: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with node_here(plant_config()) as plant, penstock.connect(server.url, credentials=credentials("alice")) as alice:
        monkeypatch.setenv("PENSTOCK_NODE", f"127.0.0.1:{plant.port}")
        publish(plant, AAPL, 1)
        with alice.subscribe(AAPL, node="auto") as messages:
            assert take(messages.next, 1)[0].bid_price == 1.0


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
    """Every update is seen once, or is in a receipt; the newest is always seen."""
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
