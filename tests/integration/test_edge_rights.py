"""Rights at an edge cache: real tokens of an administration server, on WebSockets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from admin_kit import config, credentials, credentials_file, policy_text
from integration.distribution_kit import NodeHere, node_here, packed, plant_config, quote
from integration.edge_kit import Screen, edge_here, websocket_port
from penstock.admin.live.driver import AdminServer
from penstock.engine import EventKind, control
from penstock.plant.config import AccessMode
from penstock.security.core.access import AdminAccess
from penstock.security.live.client import AdminClient
from waiting import wait_until

RULES = """
[[rule]]
who = ["alice", "bob"]
receive = ["md.us.>", "!md.us.secret.>"]

[[rule]]
who = ["filter"]
receive = [">"]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    (tmp_path / "policy.toml").write_text(policy_text(RULES))
    with AdminServer(config(tmp_path)) as made:
        yield made


@pytest.fixture(params=["local", "forward"])
def nodes(server: AdminServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[NodeHere, NodeHere]]:
    admin = AdminAccess(url=server.url, credentials=str(credentials_file(tmp_path, "filter")))
    mode: AccessMode = request.param
    with node_here(plant_config(admin=admin)) as plant:
        wait_until(lambda: plant.node.status().is_in_touch, "the administration server")
        with edge_here(plant.port, access=mode, admin=admin) as edge:
            wait_until(lambda: edge.node.status().is_in_touch, "the administration server")
            yield plant, edge


def token(server: AdminServer, name: str) -> str:
    with AdminClient.connect(server.url, credentials(name)) as client:
        return client.subscribe([">"]).token


@pytest.mark.spec("EDGE-1", "MUX-2")
def test_an_edge_gives_what_the_token_grants_until_it_is_revoked(
    server: AdminServer, nodes: tuple[NodeHere, NodeHere]
) -> None:
    plant, edge = nodes
    for topic in ("md.us.A", "md.us.secret.B", "md.eu.C"):
        plant.publish(packed(topic, quote("A", 1)))
    with Screen(websocket_port(edge), "thief", token="ps1.a.b.c") as thief:
        assert thief.answer("refused")["code"] == "token"
    with (
        Screen(websocket_port(edge), "alice", token=token(server, "alice")) as alice,
        Screen(websocket_port(edge), "bob", token=token(server, "bob")) as bob,
    ):
        assert set(alice.answer("welcome")["grants"]) == {"md.us.>", "!md.us.secret.>"}
        for each in (alice, bob):
            each.subscribe(">")
        assert {event.topic for event in alice.events if event.kind == EventKind.DEFINE} == {b"md.us.A"}
        alice.say(control.Subscribe(2, ["md.eu.>"]))
        assert alice.answer("refused")["code"] == "entitlement"
        with AdminClient.connect(server.url, credentials("root")) as root:
            root.revoke("alice", "left the firm")
        assert alice.answer("refused")["code"] == "revoked"
        plant.publish(packed("md.us.A", quote("A", 2)))
        assert bob.versions(2)[-1] == 2
        assert len(alice._versions()) == 1
