"""Rights at a plant and at a multiplexer, with the three sources of rights; and accounts of the deliveries."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from account_kit import recorded
from admin_kit import config, credentials, credentials_file, policy_text
from integration.distribution_kit import Consumer, NodeHere, mux_config, node_here, packed, plant_config, quote
from logs import logs_kept
from penstock.admin.live.driver import AdminServer
from penstock.base import log
from penstock.base.errors import RefusedError
from penstock.engine import EngineConfig, EventKind
from penstock.plant.config import AccessMode
from penstock.runtime.accounts import AccountsConfig
from penstock.security.core.access import AdminAccess
from penstock.security.live.client import AdminClient
from waiting import wait_until

RULES = """
[[rule]]
who = ["alice", "bob"]
receive = ["md.us.>", "!md.us.secret.>"]

[[rule]]
who = ["carol"]
receive = ["md.us.eq.*.quote"]

[[rule]]
who = ["dora"]
receive = ["md.us.eq.>"]
delay_minutes = 15

[[rule]]
who = ["dora"]
receive = ["md.us.open.>"]

[[rule]]
who = ["filter"]
receive = [">"]
"""


class World:
    """An administration server, a plant and a multiplexer."""

    def __init__(self, server: AdminServer, directory: Path, mode: AccessMode) -> None:
        self.server = server
        self.mode = mode
        self.admin = AdminAccess(url=server.url, credentials=str(credentials_file(directory, "filter")))

    def token(self, name: str, *topics: str) -> Any:
        with AdminClient.connect(self.server.url, credentials(name)) as client:
            return client.subscribe(list(topics) or [">"])


@pytest.fixture(params=["local", "forward", "plant"])
def mode(request: pytest.FixtureRequest) -> AccessMode:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def world(tmp_path: Path, mode: AccessMode) -> Iterator[World]:
    (tmp_path / "policy.toml").write_text(policy_text(RULES))
    with AdminServer(config(tmp_path)) as server:
        yield World(server, tmp_path, mode)


@pytest.fixture
def nodes(world: World, tmp_path: Path) -> Iterator[tuple[NodeHere, NodeHere]]:
    accounts = AccountsConfig(path=str(tmp_path / "accounts"), period_s=0.1)
    above = EngineConfig(classes=("critical", "adaptive", "metered"))
    below = EngineConfig(classes=above.classes, keeps="wanted", has_upstream=True)
    with node_here(plant_config(admin=world.admin, engine=above)) as plant:
        wait_until(lambda: plant.node.status().is_in_touch, "the administration server")
        settings = {"admin": world.admin, "access": world.mode, "accounts": accounts, "engine": below}
        with node_here(mux_config(plant.port, **settings)) as mux:
            wait_until(lambda: mux.node.status().is_fed and mux.node.status().is_in_touch, "the plant")
            yield plant, mux


def test_a_multiplexer_starts_without_a_refused_login(world: World) -> None:
    """It waits for its token, and the plant for keys to check tokens with."""
    lines = io.StringIO()
    with logs_kept():
        log.configure(style="json", level="INFO", stream=lines)
        with (
            node_here(plant_config(admin=world.admin)) as plant,
            node_here(mux_config(plant.port, admin=world.admin, access=world.mode)) as mux,
        ):
            wait_until(lambda: mux.node.status().is_fed, "the plant")
    assert '"node_attached"' in lines.getvalue()
    assert "_refused" not in lines.getvalue()


@pytest.mark.spec("MUX-2")
def test_login_lists_what_is_granted_and_requests_are_judged(world: World, nodes: tuple[NodeHere, NodeHere]) -> None:
    plant, mux = nodes
    for topic in ("md.us.eq.A.quote", "md.us.eq.A.trade", "md.us.secret.B", "md.eu.C"):
        plant.publish(packed(topic, quote("A", 1)))
    with Consumer(mux.port, "alice", token=world.token("alice").token) as alice:
        alice.attached()
        assert set(alice.welcomes[0].grants) == {"md.us.>", "!md.us.secret.>"}
        alice.wait_live(alice.subscribe(">"))
        assert sorted(alice.topics.values()) == ["md.us.eq.A.quote", "md.us.eq.A.trade"]
        with pytest.raises(RefusedError) as refused:
            alice.subscribe("md.eu.>")
        assert refused.value.peer_code == "entitlement"
        with pytest.raises(RefusedError) as refused:
            alice.run(alice.link.snapshot(["md.eu.C"]))
        assert refused.value.peer_code == "entitlement"
    with Consumer(mux.port, "carol", token=world.token("carol").token) as carol:
        carol.wait_live(carol.attached().subscribe("md.us.eq.A.*"))
        assert list(carol.topics.values()) == ["md.us.eq.A.quote"]


@pytest.mark.spec("MUX-2", "AUTH-5")
def test_records_images_and_metered_updates_are_for_live_grants_only(
    world: World, nodes: tuple[NodeHere, NodeHere]
) -> None:
    plant, mux = nodes
    for topic in ("md.us.eq.A.quote", "md.us.open.A"):
        plant.publish(packed(topic, quote("A", 1)))
    for node in (plant, mux):
        with Consumer(node.port, "dora", token=world.token("dora").token) as dora:
            dora.attached()
            assert dora.welcomes[0].grants == ["md.us.open.>"]
            for request in (
                lambda dora=dora: dora.subscribe("md.us.eq.A.quote"),
                lambda dora=dora: dora.subscribe("md.us.eq.A.quote", cls="adaptive"),
                lambda dora=dora: dora.subscribe("md.us.eq.A.quote", cls="metered", per_second=1.0),
                lambda dora=dora: dora.run(dora.link.snapshot(["md.us.eq.A.quote"])),
            ):
                with pytest.raises(RefusedError) as refused:
                    request()
                assert refused.value.peer_code == "entitlement"
            dora.wait_live(dora.subscribe("md.us.>"))
            assert list(dora.topics.values()) == ["md.us.open.A"]


@pytest.mark.spec("MUX-2")
def test_without_a_good_token_nobody_comes_in(world: World, nodes: tuple[NodeHere, NodeHere]) -> None:
    plant, mux = nodes
    for node in (plant, mux):
        for token in ("", "ps1.a.b.c", world.token("alice").token[:-2] + "xx"):
            with Consumer(node.port, "thief", token=token) as thief:
                wait_until(lambda thief=thief: thief.refusals, "the refusal")
                assert thief.refusals[0].peer_code == "token"
                assert not thief.welcomes


@pytest.mark.spec("MUX-2", "ADM-7")
def test_what_is_revoked_ends_at_once_through_the_chain(world: World, nodes: tuple[NodeHere, NodeHere]) -> None:
    plant, mux = nodes
    with (
        Consumer(mux.port, "alice", token=world.token("alice").token) as alice,
        Consumer(mux.port, "bob", token=world.token("bob").token) as bob,
        AdminClient.connect(world.server.url, credentials("root")) as root,
    ):
        for each in (alice, bob):
            each.wait_live(each.attached().subscribe("md.us.>"))
        root.revoke("alice", "left the firm")
        wait_until(lambda: alice.link.failure, "the revocation")
        assert isinstance(alice.link.failure, RefusedError)
        assert alice.link.failure.peer_code == "revoked"
        wait_until(lambda: mux.consumer_names() == ["bob"], "the disconnect of alice")
        plant.publish(packed("md.us.eq.A.quote", quote("A", 7)))
        bob.wait_for("md.us.eq.A.quote", 7)
        assert 7 not in alice.sequence("md.us.eq.A.quote")


def test_a_new_token_with_less_takes_away_what_it_does_not_grant(
    world: World, nodes: tuple[NodeHere, NodeHere]
) -> None:
    plant, mux = nodes
    plant.publish(packed("md.us.eq.A.quote", quote("A", 1)), packed("md.us.eq.B.quote", quote("B", 1)))
    with Consumer(mux.port, "alice", token=world.token("alice").token) as alice:
        alice.wait_live(alice.attached().subscribe("md.us.>"))
        items = {topic: item for item, topic in alice.topics.items()}
        alice.run(alice.link.renew(world.token("alice", "md.us.eq.B.>").token))
        wait_until(
            lambda: items["md.us.eq.A.quote"] in {each.item for each in alice.of_kind(EventKind.REMOVE)},
            "the removal of topics outside the new token",
        )
        plant.publish(packed("md.us.eq.A.quote", quote("A", 2)), packed("md.us.eq.B.quote", quote("B", 2)))
        alice.wait_for("md.us.eq.B.quote", 2)
        assert 2 not in alice.sequence("md.us.eq.A.quote")


@pytest.mark.spec("MDE-2", "PIPE-7")
@pytest.mark.parametrize("mode", ["local"])
def test_accounts_of_every_consumer_are_written_down(world: World, tmp_path: Path) -> None:
    accounts = AccountsConfig(path=str(tmp_path / "accounts"), period_s=0.1)
    with node_here(plant_config(accounts=accounts)) as plant:
        for number in range(3):
            with Consumer(plant.port, "app") as app:
                app.wait_live(app.attached().subscribe("md.>"))
                plant.publish(*(packed("md.A.quote", quote("A", n)) for n in range(number + 1)))
                app.wait_for("md.A.quote", number)
            wait_until(lambda: not plant.consumer_names(), "the end")
    rows = [row for row in recorded(tmp_path / "accounts") if row["state"] == "closed"]
    critical = [row for row in rows if row.get("class_name") == "critical"]
    shown = [(row["attachment"], row["consumer"], row["sent"], row["receipts"]) for row in critical]
    assert shown == [(1, "app", 1, 0), (2, "app", 3, 0), (3, "app", 4, 0)]  # from the second on, an image first
    (closed,) = [row for row in rows if row["model"] == "engine_intake"]
    assert [closed[name] for name in ("node", "kind", "updates", "consumers")] == ["plant", "plant", 6, 0]
