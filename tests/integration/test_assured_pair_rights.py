"""REPL-6: clients move to the other router of a pair with the same credentials, even if only one of the two ever
reached the administration server; configuration that must be equal at both is compared."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from integration.assured_kit import client_of
from integration.console_kit import SECRETS, policy_text
from integration.pair_kit import PairOfRouters
from integration.test_assured_rights import NOTES, RULES
from penstock.admin import AdminConfig, AdminLimits
from penstock.admin.live.driver import AdminServer
from penstock.assured import EndpointConfig, Want
from penstock.base.errors import PenstockError
from penstock.net.secret import write_private
from penstock.net.udp import free_ports
from penstock.security import Credentials
from penstock.security.core.access import AdminAccess
from penstock.security.live.client import AdminClient
from waiting import PATIENCE_SECONDS, wait_until


class Scene:
    """An administration server that only the first router of a pair reaches."""

    def __init__(self, directory: Path, stack: ExitStack, **values: object) -> None:
        (directory / "policy.toml").write_text(policy_text(RULES))
        limits = AdminLimits(key_grace_s=0.0, failures_max=1_000, address_failures_max=1_000)
        policy = str(directory / "policy.toml")
        self.admin = AdminServer(AdminConfig(directory=str(directory / "admin"), policy=policy, port=0, limits=limits))
        stack.enter_context(self.admin)
        write_private(directory / "nodes.toml", f'client = "nodes"\nsecret = "{SECRETS["nodes"]}"\n'.encode())
        write_private(directory / "secret", b"the secret of this pair")
        access = AdminAccess(url=self.admin.url, credentials=str(directory / "nodes.toml"))
        (nowhere,) = free_ports(1)
        lost = AdminAccess(url=f"penstock://127.0.0.1:{nowhere}", credentials=str(directory / "nodes.toml"))
        self.pair: PairOfRouters = stack.enter_context(
            PairOfRouters(
                directory,
                NOTES,
                router={"admin": access, "operators": ("boss",)},
                second={"admin": lost},
                secret_file=str(directory / "secret"),
                **values,
            )
        )

    def token(self, name: str, *, send: tuple[str, ...] = (), receive: tuple[str, ...] = ()) -> str:
        with AdminClient.connect(self.admin.url, Credentials(name, secret=SECRETS[name].encode())) as client:
            return client.subscribe(receive, send=send).token

    def revoke(self, name: str) -> None:
        with AdminClient.connect(self.admin.url, Credentials("boss", secret=SECRETS["boss"].encode())) as client:
            client.revoke(name, "left the firm")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.spec("REPL-6")
def test_clients_log_in_at_the_other_router_after_kill_9_with_the_tokens_that_they_have(
    tmp_path: Path, stack: ExitStack
) -> None:
    scene = Scene(tmp_path, stack)
    pair = scene.pair
    alice = scene.token("alice", send=("app.>",), receive=("queue.notes",))
    bob = scene.token("bob", send=("app.>",), receive=("queue.>",))
    boss = scene.token("boss", receive=(">",))
    scene.revoke("bob")
    known = tmp_path / "two" / "tokens.json"
    wait_until(lambda: known.exists() and "left the firm" in known.read_text(), "the other router to know of it")
    scene.admin.stop()
    operator = stack.enter_context(client_of(pair.two.place, role="operator", token=boss))
    with client_of(*pair.places, token=alice) as client, client.publisher() as publisher:
        assert publisher.publish("app.notes.desk", b"1", timeout=PATIENCE_SECONDS) == "stored"
        pair.one.kill()
        operator.switch(force=True)
        assert publisher.publish("app.notes.desk", b"2", timeout=PATIENCE_SECONDS) == "stored"
        with pytest.raises(PenstockError, match="may not publish"):
            publisher.publish("app.other", b"3", timeout=PATIENCE_SECONDS)
    assert "left the firm" in refusal(pair.two.place, bob)
    assert "token" in refusal(pair.two.place)
    pair.two.kill()
    pair.two.start()
    with client_of(pair.two.place, role="operator", token=boss) as again:
        again.switch(force=True)
        with client_of(pair.two.place, token=alice) as client, client.publisher() as publisher:
            assert publisher.publish("app.notes.desk", b"4", timeout=PATIENCE_SECONDS) == "stored"


@pytest.mark.spec("REPL-6")
@pytest.mark.parametrize("mirror", ["endpoints", "none"])
def test_what_is_not_mirrored_is_not_taken_over(tmp_path: Path, stack: ExitStack, mirror: str) -> None:
    scene = Scene(tmp_path, stack, mirror=mirror)
    boss = scene.token("boss", receive=(">",))
    made = EndpointConfig(name="made", wants=(Want(topics=("made.>",)),))
    with client_of(scene.pair.one.place, role="operator", token=boss) as operator:
        operator.create_endpoint(made)
    happened = "defined" if mirror == "endpoints" else "endpoint_differs"

    def names() -> set[str]:
        status = scene.pair.two.status()
        is_told = any(each.values.get("endpoint") == "made" for each in status.happenings if each.what == happened)
        return {each.endpoint.name for each in status.endpoints} if is_told or mirror == "endpoints" else set()

    expected = {"notes", "dead", "made"} if mirror == "endpoints" else {"notes", "dead"}
    wait_until(lambda: names() == expected, "the report about the endpoint")
    assert "cannot be checked" in refusal(scene.pair.two.place, boss)


@pytest.mark.spec("REPL-6")
def test_what_operators_have_said_differently_is_seen(tmp_path: Path) -> None:
    write_private(tmp_path / "secret", b"the secret of this pair")
    second = {"message_bytes_max": 1_000, "operators": ("boss",)}
    with PairOfRouters(tmp_path, second=second, secret_file=str(tmp_path / "secret")) as pair:
        for each in pair.routers:
            replication = each.status().replication
            assert replication is not None
            assert replication.differences == ("message_bytes_max", "operators")


def refusal(place: str, token: str = "") -> str:
    with client_of(place, token=token) as client, pytest.raises(PenstockError) as refused:
        client.publisher()
    return str(refused.value)
