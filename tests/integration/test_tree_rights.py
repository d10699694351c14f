"""What a party of a tree may have, by its administration server alone: no console, no operator of the tree."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from integration.console_kit import SECRETS, administration
from integration.tree_kit import AgentHere, Reader, agent_here, publish, publisher, root_config
from penstock.base.errors import PenstockError
from penstock.net.secret import write_private
from penstock.security import Credentials
from penstock.security.access import AdminAccess
from penstock.security.client import AdminClient
from penstock.tree.config import StreamConfig
from waiting import wait_until

TOPIC = "app.notes.desk"
Login = Callable[[str], AdminClient]


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[tuple[AgentHere, Login]]:
    """A root, and how to log in at its administration server."""
    write_private(tmp_path / "nodes.toml", f'client = "nodes"\nsecret = "{SECRETS["nodes"]}"\n'.encode())
    with administration(tmp_path) as admin, ExitStack() as stack:
        access = AdminAccess(url=admin.url, credentials=str(tmp_path / "nodes.toml"))
        streams = (StreamConfig(name="notes", topics=("app.notes.>",)),)

        def log_in(name: str) -> AdminClient:
            credentials = Credentials(name, secret=SECRETS[name].encode())
            return stack.enter_context(AdminClient.connect(admin.url, credentials))

        with agent_here(root_config(tmp_path / "root", admin=access, streams=streams)) as root:
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
        wait_until(lambda: reader.error, "bob to be told")
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
