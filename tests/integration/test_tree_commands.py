"""`penstock agent move|return|promote|revoke|restore|tree` against real agents."""

import json
from pathlib import Path

import pytest

from command_here import run_here
from integration.console_kit import SECRETS
from integration.console_tree_kit import running_tree
from integration.tree_kit import AgentHere, Reader, agent_config, agent_here, publish, publisher, root_config
from penstock.net.guard import Guard
from penstock.net.secret import read_secret, write_private
from penstock.net.udp import free_ports
from penstock.tree.config import AgentAccess
from waiting import wait_until


def ordered(*words: object) -> str:
    done = run_here("agent", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*words: object) -> str:
    done = run_here("agent", *words)
    assert done.returncode != 0, done.stdout
    return done.stderr


def pages(*agents: AgentHere) -> list[str]:
    return [word for each in agents for word in ("--node", each.agent.node.url.removeprefix("http://"))]


@pytest.mark.spec("TREE-7")
def test_a_child_is_moved_returned_and_shown_below_whom_it_is(tmp_path: Path) -> None:
    with (
        agent_here(root_config(tmp_path / "root")) as root,
        agent_here(agent_config("left", root.place)) as left,
        agent_here(agent_config("right", root.place)) as right,
        agent_here(agent_config("leaf", left.wait_rooted().place)) as leaf,
    ):
        right.wait_rooted(), leaf.wait_rooted()
        wait_until(lambda: left.children() == ["leaf"], "the leaf")
        everybody = pages(root, left, right, leaf)
        lines = ordered("tree", *everybody).splitlines()
        assert [line.split(",")[0] for line in lines] == [
            "root: root",
            "  left: agent",
            "    leaf: agent",
            "  right: agent",
        ]

        said = ordered("move", left.place, "leaf", "--to", right.place, "--reason", "load")
        assert said == f"{left.place}: move was started\n"
        wait_until(lambda: right.children() == ["leaf"] and left.children() == [], "the move")
        moved = [json.loads(line) for line in ordered("tree", "--json", *everybody).splitlines()]
        assert {each["name"]: each["parent"] for each in moved}["leaf"] == "right"
        assert {"place": right.place, "reason": "load"}.items() <= left.said("move")[0].items()

        ordered("return", right.place, "leaf")
        wait_until(lambda: left.children() == ["leaf"], "the return")
        assert f"{left.place}: the agent refuses: nobody is not below left" in refused("move", left.place, "nobody")
        assert "is not a standby" in refused("promote", left.place)
        assert "either a plant or the pages" in refused("tree")


@pytest.mark.spec("TREE-6")
def test_a_right_is_revoked_and_restored(tmp_path: Path) -> None:
    write_private(tmp_path / "secret", b"the secret of this tree")
    access = AgentAccess(port=0, secret_file=str(tmp_path / "secret"))
    config = root_config(tmp_path / "root", control=access, operators=())
    secret = ("--secret", tmp_path / "secret")
    with agent_here(config) as root:
        guard = Guard(read_secret(tmp_path / "secret"))
        with Reader(root.place, name="bob", guard=guard) as bob, publisher(root.place, guard=guard) as source:
            bob.wait_live()
            publish(source, range(1, 11))
            bob.wait_for(10)
            ordered("revoke", root.place, "bob", "md.us.>", "--reason", "not paid", *secret)
            wait_until(lambda: "revoked" in bob.kinds(), "the revocation for bob")
            publish(source, range(11, 21))
            publish(source, range(21, 22), "md.eu.SAP.trade")
            bob.wait_for(21)
            assert bob.numbers == [*range(1, 11), 21]
        ordered("restore", root.place, "bob", *secret)
        with Reader(root.place, name="bob", guard=guard, since="oldest") as again:
            assert again.wait_for(21) == list(range(1, 22))
        assert "error [" in refused("revoke", root.place, "bob")  # the caller does not know the secret


@pytest.mark.spec("TREE-11")
def test_a_standby_is_promoted(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    place = f"127.0.0.1:{port}"
    access = AgentAccess(port=port)
    copy = {"name": "standby", "role": "standby", "control": access}
    with (
        agent_here(root_config(tmp_path / "root", replicate="asynchronous", standby=place)) as root,
        agent_here(root_config(tmp_path / "other", parent=root.place, **copy)) as standby,
        publisher(root.place, standby.place) as source,
    ):
        publish(source, range(1, 101))
        assert source.flush(60)
        wait_until(lambda: any(each.last == 100 for each in standby.agent.status(0).streams), "the copy")
        ordered("promote", standby.place, "--reason", "maintenance")
        wait_until(lambda: standby.agent.status(0).state == "root", "the promotion")
        publish(source, range(101, 201))
        with Reader(standby.place, since="oldest") as reader:
            assert reader.wait_for(200) == list(range(1, 201))


@pytest.mark.spec("TREE-7")
def test_an_operator_shows_who_it_is_by_a_token(tmp_path: Path) -> None:
    with running_tree(tmp_path) as tree:
        for name in ("boss", "bob"):
            text = f'client = "{name}"\nsecret = "{SECRETS[name]}"\n'
            write_private(tmp_path / f"{name}.toml", text.encode())
        parent = tree.agents[str(tree.agents["leaf-1"].agent.status(0).parent)]
        other = tree.agents["mid-2" if parent.agent.config.name == "mid-1" else "mid-1"]
        move = ["move", parent.place, "leaf-1", "--to", other.place, "--connect", tree.console.admin.url]
        assert "bob" in refused(*move, "--credentials", tmp_path / "bob.toml")
        ordered(*move, "--credentials", tmp_path / "boss.toml")
        wait_until(lambda: "leaf-1" in other.children(), "the move")
        held = tree.boss.get("/api/entitlements").document["subscriptions"]
        assert not [each for each in held if each["client"] in ("boss", "bob")], "tokens were given back"
