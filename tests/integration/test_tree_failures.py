"""Agents that are killed, a root that is replaced, a full disk: no message is lost, and none is repeated."""

import threading
from pathlib import Path

import pytest

from integration.tree_kit import (
    MD,
    Reader,
    agent_config,
    agent_here,
    agent_process,
    publish,
    publisher,
    root_config,
)
from penstock.base.errors import ConfigurationError
from penstock.net.udp import free_ports
from penstock.node.checking import check_files
from penstock.node.plant import Plant
from penstock.tree.client.operator import give_order
from penstock.tree.config import AgentAccess, ReactionConfig
from waiting import wait_until

COUNT = 2_000


@pytest.mark.spec("TREE-4")
def test_a_killed_parent_is_replaced_by_the_alternate(tmp_path: Path) -> None:
    with (
        agent_here(root_config(tmp_path / "root")) as root,
        agent_process(agent_config("doomed", root.place), tmp_path) as doomed,
        agent_here(agent_config("other", root.place)) as other,
        agent_here(agent_config("leaf", doomed.place, other.wait_rooted().place)) as leaf,
        Reader(leaf.wait_rooted().place) as below,
        Reader(doomed.place, alternates=(other.place,)) as beside,
        publisher(root.place) as source,
    ):
        below.wait_live(), beside.wait_live()
        publishing = threading.Thread(target=publish, args=(source, range(1, COUNT + 1)))
        publishing.start()
        below.wait_for_any()
        doomed.kill()
        publishing.join()
        publish(source, range(COUNT + 1, COUNT + 101))
        assert below.wait_for(COUNT + 100) == list(range(1, COUNT + 101))
        assert beside.wait_for(COUNT + 100) == list(range(1, COUNT + 101))
        assert leaf.agent.status(0).parent == "other"
        assert "parent_lost" not in below.kinds() or "parent_found" in below.kinds()


@pytest.mark.spec("TREE-5")
def test_a_killed_root_comes_back_with_everything_it_had_said(tmp_path: Path) -> None:
    with (
        agent_process(root_config(tmp_path / "root"), tmp_path) as root,
        agent_here(agent_config("leaf", root.place)) as leaf,
        Reader(leaf.wait_rooted().place) as reader,
        publisher(root.place, name="source") as source,
    ):
        reader.wait_live()
        publishing = threading.Thread(target=publish, args=(source, range(1, COUNT + 1)))
        publishing.start()
        reader.wait_for_any()
        root.kill()
        root.start()
        publishing.join()
        assert source.flush(120)
        publish(source, range(COUNT + 1, COUNT + 11))
        assert reader.wait_for(COUNT + 10) == list(range(1, COUNT + 11))
        assert reader.seqs == list(range(1, COUNT + 11))
        with Reader(leaf.place, since="oldest") as again:
            assert again.wait_for(COUNT + 10) == list(range(1, COUNT + 11))


@pytest.mark.spec("TREE-11")
def test_a_standby_takes_over_and_everybody_goes_over_to_it(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    standby_place = f"127.0.0.1:{port}"
    config = root_config(tmp_path / "root", replicate="synchronous", standby=standby_place)
    with agent_process(config, tmp_path) as root:
        standby_config = root_config(
            tmp_path / "standby",
            name="standby",
            role="standby",
            parent=root.place,
            control=AgentAccess(port=port),
            on=ReactionConfig(root_lost="promote", promote_after_ms=200),
        )
        with (
            agent_here(standby_config) as standby,
            agent_here(agent_config("leaf", root.place, standby_place)) as leaf,
            Reader(leaf.wait_rooted().place) as reader,
            publisher(root.place, standby_place, name="source") as source,
        ):
            reader.wait_live()
            standby.wait_rooted()
            publish(source, range(1, 101))
            assert source.flush(120)
            publishing = threading.Thread(target=publish, args=(source, range(101, COUNT + 1)))
            publishing.start()
            root.kill()
            publishing.join()
            assert source.flush(120)
            assert reader.wait_for(COUNT) == list(range(1, COUNT + 1))
            wait_until(lambda: standby.agent.status(0).state == "root", "the takeover")
            assert source.agent == "standby"
            root.start()  # and learns that another agent is the root now
            publish(source, range(COUNT + 1, COUNT + 11))
            assert reader.wait_for(COUNT + 10) == list(range(1, COUNT + 11))


@pytest.mark.spec("TREE-11")
def test_a_publisher_is_told_what_was_acknowledged_without_a_standby(tmp_path: Path) -> None:
    with (
        agent_here(root_config(tmp_path / "root", replicate="synchronous")) as root,
        publisher(root.place, name="source") as source,
    ):
        publish(source, range(1, 101))
        assert source.flush(120)
        assert source.degraded == 100
        assert root.agent.status(0).is_degraded
        assert "degraded" in root.agent._health().detail
        standby_config = root_config(tmp_path / "standby", name="standby", role="standby", parent=root.place)
        with agent_here(standby_config):
            wait_until(lambda: not root.agent.status(0).is_degraded, "a standby that has everything")
            publish(source, range(101, 201))
            assert source.flush(120)
            assert source.degraded == 100
        wait_until(lambda: root.agent.status(0).is_degraded, "its end")
        publish(source, range(201, 211))
        assert source.flush(120)
        assert source.degraded == 110


@pytest.mark.spec("TREE-11")
def test_an_operator_promotes_a_standby(tmp_path: Path) -> None:
    with (
        agent_here(root_config(tmp_path / "root", replicate="asynchronous")) as root,
        agent_here(root_config(tmp_path / "standby", name="standby", role="standby", parent=root.place)) as standby,
        publisher(root.place, standby.place, name="source") as source,
    ):
        standby.wait_rooted()
        publish(source, range(1, 101))
        assert source.flush(120)
        wait_until(lambda: [each.last for each in standby.agent.status().streams] == [100], "the replica")
        give_order(standby.place, "promote", reason="maintenance")
        wait_until(lambda: standby.agent.status(0).state == "root", "the takeover")
        with Reader(standby.place, since="oldest") as reader:
            assert reader.wait_for(100) == list(range(1, 101))


@pytest.mark.spec("TREE-8")
def test_peers_have_two_ways_and_nothing_comes_twice(tmp_path: Path) -> None:
    with agent_here(root_config(tmp_path / "root")) as root:
        ports = free_ports(2)
        places = [f"127.0.0.1:{port}" for port in ports]
        configs = [
            agent_config(name, root.place, control=AgentAccess(port=port), peers=(peer,))
            for name, port, peer in (("one", ports[0], places[1]), ("two", ports[1], places[0]))
        ]
        with (
            agent_here(configs[0]) as one,
            agent_here(configs[1]) as two,
            Reader(one.wait_rooted().place) as first,
            Reader(two.wait_rooted().place) as second,
            publisher(root.place) as source,
        ):
            first.wait_live(), second.wait_live()
            publish(source, range(1, 501))
            assert first.wait_for(500) == list(range(1, 501))
            assert second.wait_for(500) == list(range(1, 501))


def test_a_cycle_in_a_document_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plant.toml"
    path.write_text(
        'name = "trees"\n'
        '[[agent]]\nname = "one"\nparent = "127.0.0.1:7431"\ncontrol.port = 7430\n'
        '[[agent]]\nname = "two"\nparent = "127.0.0.1:7430"\ncontrol.port = 7431\n'
    )
    with pytest.raises(ConfigurationError, match="form a cycle: one - two - one"):
        check_files(Plant.load(path))


def test_agents_that_are_above_each_other_never_serve(tmp_path: Path) -> None:
    ports = free_ports(2)
    configs = [
        agent_config(name, f"127.0.0.1:{other}", control=AgentAccess(port=port))
        for name, port, other in (("one", ports[0], ports[1]), ("two", ports[1], ports[0]))
    ]
    with agent_here(configs[0]) as one, agent_here(configs[1]) as two:
        both = one, two

        def have_tried() -> bool:
            is_rooted = any(each.agent.status(0).is_rooted for each in both)
            return is_rooted or all(each.refusals().total() >= 5 for each in both)

        wait_until(have_tried, "failed attempts of both")
        assert [(each.agent.status(0).parent, each.agent.status(0).is_rooted) for each in both] == [("", False)] * 2


def test_other_streams_and_another_table_are_read_again(tmp_path: Path) -> None:
    with agent_process(root_config(tmp_path / "root"), tmp_path) as root, publisher(root.place) as source:
        text = root.path.read_text()
        assert MD.name in text
        more = '[{ name = "md", topics = ["md.>"] }, { name = "orders", topics = ["orders.>"] }]'
        lines = [f"streams = {more}" if line.startswith("streams =") else line for line in text.splitlines()]
        root.path.write_text("\n".join(lines))
        with Reader(root.place, "orders.>") as reader:
            root.hang_up()
            wait_until(lambda: "orders" in reader.stream.positions(), "the stream to be defined")
            publish(source, range(1, 11), "orders.new")
            assert reader.wait_for(10) == list(range(1, 11))
