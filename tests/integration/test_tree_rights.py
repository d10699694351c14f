"""Rights of a party of a tree, from its administration server alone: without a console or an operator of the tree."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from admin_kit import signed_token
from integration.console_kit import SECRETS, administration
from integration.tree_kit import AgentHere, Reader, agent_config, agent_here, publish, publisher, root_config
from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.net.live.link import connect_link
from penstock.net.place import parse_place
from penstock.net.secret import write_private
from penstock.security import Credentials, Grant
from penstock.security.core.access import AdminAccess
from penstock.security.live.client import AdminClient
from penstock.tree.client.core_runner import LINK
from penstock.tree.client.operator import _Ordering
from penstock.tree.config import StreamConfig
from penstock.tree.core import control
from penstock.tree.core.control import TREE
from waiting import PATIENCE_SECONDS, wait_until

TOPIC = "app.notes.desk"
SHORT_TOKEN_S = 5
Login = Callable[[str], AdminClient]


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[tuple[AgentHere, Login]]:
    """A root, and logins at its administration server."""
    write_private(tmp_path / "nodes.toml", f'client = "nodes"\nsecret = "{SECRETS["nodes"]}"\n'.encode())
    with administration(tmp_path) as admin, ExitStack() as stack:
        access = AdminAccess(url=admin.url, credentials=str(tmp_path / "nodes.toml"))
        streams = (StreamConfig(name="notes", topics=("app.notes.>",)),)

        def log_in(name: str) -> AdminClient:
            credentials = Credentials(name, secret=SECRETS[name].encode())
            return stack.enter_context(AdminClient.connect(admin.url, credentials))

        rights = {"admin": access, "agents": {"leaf": "nodes"}, "operators": ("alice",)}
        with agent_here(root_config(tmp_path / "root", streams=streams, **rights)) as root:
            yield root, log_in


@pytest.mark.spec("TREE-6")
def test_who_loses_a_subscription_is_told_and_gets_no_more(plant: tuple[AgentHere, Login]) -> None:
    root, log_in = plant
    alice, bob, boss = log_in("alice"), log_in("bob"), log_in("boss")
    tokens = {each: client.subscribe(("app.>",)).token for each, client in (("alice", alice), ("bob", bob))}
    sending = alice.subscribe((), send=("app.notes.>",)).token
    with (
        Reader(root.place, TOPIC, name="alice", token=tokens["alice"]) as neighbour,
        Reader(root.place, TOPIC, name="bob", token=tokens["bob"]) as reader,
        publisher(root.place, token=sending) as source,
    ):
        neighbour.wait_live(), reader.wait_live()
        publish(source, range(1, 11), TOPIC)
        neighbour.wait_for(10), reader.wait_for(10)
        boss.revoke("bob", "not paid")
        wait_until(lambda: reader.error, "the revocation for bob")
        assert "not paid" in str(reader.error)
        publish(source, range(11, 21), TOPIC)
        assert neighbour.wait_for(20) == list(range(1, 21))
        assert reader.numbers == list(range(1, 11))
        assert "revoked" not in neighbour.kinds()
        with Reader(root.place, TOPIC, name="bob", token=tokens["bob"]) as again:
            wait_until(lambda: again.error, "the old token to be refused")
        boss.restore("bob")
        newer = bob.subscribe(("app.>",)).token
        with Reader(root.place, TOPIC, name="bob", token=newer, since="oldest") as restored:
            assert restored.wait_for(20) == list(range(1, 21)), "under its old name, with a newer token"


@pytest.mark.spec("TREE-6", "AUTH-5")
def test_a_delayed_grant_gives_nothing_live_and_no_history(plant: tuple[AgentHere, Login], tmp_path: Path) -> None:
    root, log_in = plant
    alice = log_in("alice")
    key = tmp_path / "admin" / "signing.pem"
    late = signed_token(key, "bob", [Grant("app.notes.late.>", "receive", 900), Grant("app.notes.now.>", "receive")])
    sending = alice.subscribe((), send=("app.notes.>",)).token
    with (
        Reader(root.place, "app.notes.>", name="bob", token=late) as reader,
        publisher(root.place, token=sending) as source,
    ):
        reader.wait_live()
        publish(source, range(1, 6), "app.notes.late.x")
        publish(source, range(6, 11), "app.notes.now.x")
        assert reader.wait_for(10) == list(range(6, 11))
    only_late = signed_token(key, "bob", [Grant("app.notes.>", "receive", 900)])
    with Reader(root.place, "app.notes.>", name="bob", token=only_late, since="oldest") as refused:
        wait_until(lambda: refused.error, "the refusal")
        assert refused.numbers == []


def test_who_has_no_right_is_refused(plant: tuple[AgentHere, Login]) -> None:
    root, log_in = plant
    bob = log_in("bob")
    with Reader(root.place, TOPIC, name="nobody") as reader:
        wait_until(lambda: reader.error, "the refusal")
        assert "token" in str(reader.error)
    with pytest.raises(PenstockError):
        publisher(root.place, open_seconds=60)
    with publisher(root.place, token=bob.subscribe(("app.>",)).token) as source:  # it may receive, not send
        source.publish(TOPIC, b"x")
        with pytest.raises(PenstockError):
            source.flush(60)


@pytest.mark.spec("TREE-6")
def test_an_operator_whose_token_is_revoked_is_put_out(plant: tuple[AgentHere, Login]) -> None:
    root, log_in = plant
    token = log_in("alice").subscribe(("app.>",)).token

    async def told() -> str:
        """The refusal that an idle connected operator receives."""
        ordering = _Ordering([control.Login("alice", "operator", token=token)])
        host, port = parse_place(root.place)
        link = await connect_link(
            TREE, host, port, ordering, node="alice", secret=None, tls=None, config=LINK, counters=Counters("operator")
        )
        await asyncio.to_thread(wait_until, lambda: root.agent._access.operators("alice"), "the operator")
        await asyncio.to_thread(log_in("boss").revoke, "alice", "left the firm")
        with pytest.raises(PenstockError) as refused:
            await asyncio.wait_for(ordering.answer, PATIENCE_SECONDS)
        await link.over
        return str(refused.value)

    assert "left the firm" in asyncio.run(told())


@pytest.mark.spec("TREE-3")
def test_an_agent_renews_its_token_on_its_link(tmp_path: Path) -> None:
    access = tmp_path / "nodes.toml"
    write_private(access, f'client = "nodes"\nsecret = "{SECRETS["nodes"]}"\n'.encode())
    with administration(tmp_path, token_s=SHORT_TOKEN_S) as server:
        admin = AdminAccess(url=server.url, credentials=str(access))
        known = {"admin": admin, "agents": {"leaf": "nodes"}}
        with (
            agent_here(root_config(tmp_path / "root", **known)) as root,
            agent_here(agent_config("leaf", root.place, **known)) as leaf,
        ):
            leaf.wait_rooted()
            first = expiry_of(root, "leaf")
            wait_until(lambda: expiry_of(root, "leaf") > first, "a newer token on the same link")
            assert leaf.agent._core.environment.counters["upstream_lost"] == 0


@pytest.mark.spec("TREE-3")
def test_an_agent_with_a_token_of_another_is_refused_and_says_why(tmp_path: Path) -> None:
    access = tmp_path / "nodes.toml"
    write_private(access, f'client = "nodes"\nsecret = "{SECRETS["nodes"]}"\n'.encode())
    with administration(tmp_path) as server:
        known = {"admin": AdminAccess(url=server.url, credentials=str(access)), "agents": ("nodes", "leaf")}
        with (
            agent_here(root_config(tmp_path / "root", **known)) as root,
            agent_here(agent_config("leaf", root.place, **known)) as leaf,
            agent_here(agent_config("nodes", root.place, **known)) as nodes,
        ):
            nodes.wait_rooted()
            wait_until(leaf.why_alone, "the reason")
            assert "agent leaf presents a token of nodes" in leaf.why_alone()
            assert root.children() == ["nodes"]


def expiry_of(root: AgentHere, child: str) -> int:
    """The time until which the root admits the child."""
    parties = list(root.agent._access.parties.values())
    return max((each.rights.expires_ns for each in parties if each.name == child), default=0)
