"""A real tree of agents: messages published at the root reach subscribers once and in order, restricted to their
interests."""

import socket
import time
from datetime import timedelta
from pathlib import Path

import pytest

from integration.tree_kit import (
    AgentHere,
    Reader,
    agent_config,
    agent_here,
    publish,
    publisher,
    root_config,
    trade,
)
from penstock.base.errors import FilterExpressionError, PenstockError, RefusedError, UnreachableError
from penstock.tree.client import open_publisher, open_stream
from penstock.tree.client.operator import give_order
from waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture
def root(tmp_path: Path):
    with agent_here(root_config(tmp_path / "root")) as made:
        yield made


@pytest.mark.spec("TREE-1")
def test_messages_come_down_two_agents_once_and_in_order(root: AgentHere) -> None:
    with (
        agent_here(agent_config("middle", root.place)) as middle,
        agent_here(agent_config("leaf", middle.place)) as leaf,
        Reader(leaf.wait_rooted().place) as all_of_it,
        Reader(leaf.place, "md.us.MSFT.>") as some,
        publisher(root.place) as source,
    ):
        all_of_it.wait_live(), some.wait_live()
        for number in range(1, 201):
            source.publish(f"md.us.{'MSFT' if number % 10 == 0 else 'IBM'}.trade", trade(number))
        assert source.flush(120)
        assert all_of_it.wait_for(200) == list(range(1, 201))
        assert all_of_it.seqs == list(range(1, 201))
        assert some.wait_for(200) == list(range(10, 201, 10))


@pytest.mark.spec("TREE-2")
def test_a_condition_is_applied_at_the_root(root: AgentHere) -> None:
    with (
        agent_here(agent_config("leaf", root.place)) as leaf,
        Reader(leaf.wait_rooted().place, where="symbol = 'IBM' and quantity > 0 and price > 150") as reader,
        publisher(root.place) as source,
    ):
        reader.wait_live()
        publish(source, range(1, 201))
        assert source.flush(120)
        assert reader.wait_for(200) == list(range(151, 201))
        (below,) = [each for each in root.agent.status().links if each.name == "leaf"]
        infos = sum(1 for _ in range(0))
        assert below.packets_out - infos < 150, "unwanted messages were sent"


@pytest.mark.spec("TREE-5")
def test_a_subscription_begins_in_the_past_and_runs_into_live(root: AgentHere) -> None:
    with agent_here(agent_config("leaf", root.place)) as leaf, publisher(root.place) as source:
        leaf.wait_rooted()
        publish(source, range(1, 501))
        assert source.flush(120)
        middle_ns = time.time_ns()
        publish(source, range(501, 601))
        assert source.flush(120)
        from penstock.tree.client import Position

        with (
            Reader(leaf.place, since="oldest") as oldest,
            Reader(leaf.place, since=250) as later,
            Reader(leaf.place, since=timedelta(hours=1)) as hour,
            Reader(leaf.place, since=Position("time", middle_ns)) as timed,
            Reader(root.place, since="oldest", where="price > 400") as filtered,
        ):
            publish(source, range(601, 701))
            assert oldest.wait_for(700) == list(range(1, 701))
            assert later.wait_for(700) == list(range(251, 701))
            assert hour.wait_for(700) == list(range(1, 701))
            # the journal may have got the last messages a moment after their acknowledgement
            assert timed.wait_for(700)[-200:] == list(range(501, 701))
            assert filtered.wait_for(700) == list(range(401, 701))


def test_what_the_memory_has_no_more_comes_from_the_journal(tmp_path: Path) -> None:
    config = root_config(tmp_path / "root", history_bytes=1024 * 1024)
    with agent_here(config) as root, agent_here(agent_config("leaf", root.place)) as leaf:
        leaf.wait_rooted()
        with publisher(root.place) as source:
            publish(source, range(1, 20_001))
            assert source.flush(120)
            with Reader(leaf.place, since="oldest") as reader:
                publish(source, range(20_001, 20_101))
                assert reader.wait_for(20_100) == list(range(1, 20_101))


def test_a_stream_that_is_not_there_is_refused_or_made(root: AgentHere, tmp_path: Path) -> None:
    with publisher(root.place) as source:
        source.publish("orders.new", trade(1))
        with pytest.raises(PenstockError, match="stream"):
            source.flush(120)
    with (
        agent_here(root_config(tmp_path / "other", streams=(), create_on_use=True)) as other,
        Reader(other.place, "orders.>") as reader,
        publisher(other.place) as source,
    ):
        wait_until(lambda: reader.stream.agent, "the agent")
        publish(source, range(1, 11), "orders.new")
        assert reader.wait_for(10)[-1] == 10


# Bad input


@pytest.mark.parametrize("where", ["price >", "nonsense = 1", "price > 1 and (", "x" * 4_000])
def test_a_condition_with_a_mistake_is_refused_with_a_reason(root: AgentHere, where: str) -> None:
    with Reader(root.place, where=where) as reader:
        wait_until(lambda: reader.error, "the refusal")
        assert isinstance(reader.error, FilterExpressionError), reader.error
    with pytest.raises(PenstockError, match="4096"):
        open_stream(root.place, "md.>", where="price > 1 or " * 1_000 + "price > 2")


@pytest.mark.spec("TREE-3")
def test_a_subscriber_or_publisher_on_the_infostream_is_put_out(root: AgentHere) -> None:
    from penstock.tree.core.infostream import Infostream, MoveTo
    from penstock.tree.core.kernel._frame import encode_block

    with Reader(root.place) as good, Reader(root.place, name="liar") as liar:
        good.wait_live(), liar.wait_live()
        packet = Infostream("root").encode(MoveTo("127.0.0.1:9"))
        loop = liar.stream._loop
        link = liar.stream._runner.links[liar.stream._core.link]
        loop.call_soon_threadsafe(link.write, encode_block(packet))
        wait_until(lambda: liar.stream.statistics().parents_lost, "the link to be ended")
        assert "move" not in good.kinds()
        with publisher(root.place) as source:
            source.publish("infostream.move", b"x")
            with pytest.raises(PenstockError):
                source.flush(120)


def test_garbage_on_the_port_harms_nobody(root: AgentHere) -> None:
    host, port = root.place.split(":")
    with Reader(root.place) as reader, publisher(root.place) as source:
        reader.wait_live()
        for garbage in (b"\xff" * 100, b"GET / HTTP/1.0\r\n\r\n", bytes(4) * 10, b"\x05\0\0\0hello"):
            with socket.create_connection((host, int(port))) as rude:
                rude.sendall(garbage)
                rude.settimeout(PATIENCE_SECONDS)
                while rude.recv(4_096):
                    pass
        publish(source, range(1, 11))
        assert reader.wait_for(10) == list(range(1, 11))


def test_an_agent_with_the_wrong_secret_is_not_let_in(tmp_path: Path) -> None:
    from penstock.net.secret import write_private
    from penstock.tree.config import AgentAccess

    for name in ("right", "wrong"):
        write_private(tmp_path / name, f"the {name} secret of agents".encode())
    access = AgentAccess(port=0, secret_file=str(tmp_path / "right"))
    with (
        agent_here(root_config(tmp_path / "root", control=access)) as root,
        agent_here(agent_config("good", root.place, secret_file=str(tmp_path / "right"))) as good,
        agent_here(agent_config("bad", root.place, secret_file=str(tmp_path / "wrong"))) as bad,
        agent_here(agent_config("none", root.place)) as none,
    ):
        good.wait_rooted()
        counted = root.agent._links.counters
        wait_until(lambda: sum(counted.by_cause("connections_refused").values()) >= 4, "refusals")
        assert root.children() == ["good"]
        assert not bad.agent.status(0).is_rooted
        assert not none.agent.status(0).is_rooted


def test_only_agents_that_are_named_are_let_in(tmp_path: Path) -> None:
    with (
        agent_here(root_config(tmp_path / "root", agents=("good",))) as root,
        agent_here(agent_config("good", root.place)) as good,
        agent_here(agent_config("other", root.place)) as other,
    ):
        good.wait_rooted()
        counted = root.agent._links.counters
        wait_until(lambda: counted.by_cause("requests_refused"), "the refusal")
        assert root.children() == ["good"]
        assert not other.agent.status(0).is_rooted


def test_a_second_publisher_of_a_name_and_a_wrong_tree_are_refused(root: AgentHere) -> None:
    with pytest.raises(PenstockError, match="tree"):
        open_publisher(root.place, tree="another", open_seconds=PATIENCE_SECONDS)
    with Reader(root.place, tree="another") as reader:
        wait_until(lambda: reader.error, "the refusal")
        assert isinstance(reader.error, RefusedError)
    with pytest.raises(UnreachableError):
        open_publisher("127.0.0.1:1", open_seconds=0.2)


# Slow children


@pytest.mark.spec("TREE-10")
def test_one_that_does_not_read_loses_nothing_and_slows_nobody(tmp_path: Path) -> None:
    config = root_config(tmp_path / "root", history_bytes=1024 * 1024, queue_packets=1_000, sends_bytes_max=65_536)
    with (
        agent_here(config) as root,
        Reader(root.place) as quick,
        Reader(root.place, is_reading=False, inbox_messages_max=100) as stalled,
        publisher(root.place) as source,
    ):
        quick.wait_live(), stalled.wait_live()
        publish(source, range(1, 40_001))
        assert source.flush(120)
        assert quick.wait_for(40_000) == list(range(1, 40_001))
        assert stalled.stream.waiting < 40_000
        stalled.read()
        assert stalled.wait_for(40_000) == list(range(1, 40_001))
        assert stalled.stream.losses == []


@pytest.mark.spec("TREE-10")
def test_classes_conflate_or_disconnect(tmp_path: Path) -> None:
    config = root_config(tmp_path / "root", history_bytes=1024 * 1024, queue_packets=1_000, sends_bytes_max=65_536)
    with (
        agent_here(config) as root,
        Reader(root.place, is_reading=False, inbox_messages_max=100, cls="conflating") as newest,
        Reader(root.place, is_reading=False, inbox_messages_max=100, cls="disconnect", name="cut") as cut,
        publisher(root.place) as source,
    ):
        newest.wait_live(), cut.wait_live()
        for number in range(1, 40_001):
            source.publish(f"md.us.S{number % 5}.trade", trade(number))
        assert source.flush(120)
        wait_until(lambda: cut.stream.statistics().parents_lost, "the slow child to be cut off")
        newest.read(), cut.read()
        got = newest.wait_for(40_000)
        assert got == sorted(set(got))
        assert len(got) < 40_000
        assert set(range(39_996, 40_001)) <= set(got)
        assert cut.wait_for(40_000) == list(range(1, 40_001)), "it comes back with its position"


# Operators


@pytest.mark.spec("TREE-7")
def test_a_child_is_moved_and_sent_back_and_misses_nothing(root: AgentHere) -> None:
    with (
        agent_here(agent_config("left", root.place)) as left,
        agent_here(agent_config("right", root.place)) as right,
        agent_here(agent_config("leaf", left.place)) as leaf,
        Reader(leaf.wait_rooted().place) as reader,
        publisher(root.place) as source,
    ):
        left.wait_rooted(), right.wait_rooted(), reader.wait_live()
        publish(source, range(1, 101))
        give_order(left.place, "move", party="leaf", place=right.place, reason="load")
        publish(source, range(101, 201))
        wait_until(lambda: "leaf" in right.children() and "leaf" not in left.children(), "the move")
        publish(source, range(201, 301))
        give_order(right.place, "return", party="leaf")
        publish(source, range(301, 401))
        wait_until(lambda: "leaf" in left.children() and "leaf" not in right.children(), "the return")
        publish(source, range(401, 501))
        assert source.flush(120)
        assert reader.wait_for(500) == list(range(1, 501))
        with pytest.raises(PenstockError, match="nobody is not below left"):
            give_order(left.place, "move", party="nobody")
        with pytest.raises(PenstockError, match="not a standby"):
            give_order(left.place, "promote")


@pytest.mark.spec("TREE-7")
def test_a_subscriber_is_moved(root: AgentHere) -> None:
    with (
        agent_here(agent_config("left", root.place)) as left,
        agent_here(agent_config("right", root.place)) as right,
        Reader(left.wait_rooted().place, name="app") as reader,
        publisher(root.place) as source,
    ):
        right.wait_rooted(), reader.wait_live()
        publish(source, range(1, 101))
        give_order(left.place, "move", party="app", place=right.place)
        publish(source, range(101, 201))
        wait_until(lambda: right.children() == ["app"] and left.children() == [], "the move")
        give_order(right.place, "return", party="app")
        publish(source, range(201, 301))
        wait_until(lambda: left.children() == ["app"], "the return")
        publish(source, range(301, 401))
        assert reader.wait_for(400) == list(range(1, 401))


@pytest.mark.spec("TREE-6")
def test_what_is_revoked_of_one_is_nothing_to_its_neighbours(root: AgentHere) -> None:
    with (
        Reader(root.place, name="alice") as alice,
        Reader(root.place, name="bob") as bob,
        publisher(root.place) as source,
    ):
        alice.wait_live(), bob.wait_live()
        publish(source, range(1, 51))
        alice.wait_for(50), bob.wait_for(50)
        give_order(root.place, "revoke", party="bob", reason="not paid")
        wait_until(lambda: bob.error, "the revocation for bob")
        publish(source, range(51, 101))
        assert alice.wait_for(100) == list(range(1, 101))
        assert "not paid" in str(bob.error)
        assert bob.numbers == list(range(1, 51))
        assert "revoked" not in alice.kinds()
        with Reader(root.place, name="bob") as again:
            wait_until(lambda: again.error, "bob to be refused")
        give_order(root.place, "restore", party="bob")
        with Reader(root.place, name="bob") as restored:
            restored.wait_live()


@pytest.mark.spec("TREE-7")
def test_an_agent_measures_how_busy_it_is(root: AgentHere) -> None:
    def busy() -> bool:
        sum(range(1_000_000))
        return root.agent.status(0).load_percent >= 20

    wait_until(busy, "the load to be seen")
