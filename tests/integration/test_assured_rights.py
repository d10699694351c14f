"""Rights at a message router: by tokens of an administration server, by a secret, by TLS."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import penstock
from admin_kit import signed_token
from certificates import make_certificate
from integration.assured_kit import RouterHere, client_of, router_config, router_here
from integration.console_kit import SECRETS, policy_text
from penstock.admin import AdminConfig, AdminLimits
from penstock.admin.live.driver import AdminServer
from penstock.assured import EndpointConfig, Want
from penstock.assured.node_config import RouterAccess
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ConfigurationError, NotEntitledError, PenstockError, RefusedError
from penstock.net.config import TlsConfig
from penstock.net.guard import Guard
from penstock.net.secret import read_secret, write_private
from penstock.net.tls import client_context
from penstock.security import Credentials, Grant
from penstock.security.core.access import AdminAccess
from penstock.security.live.client import AdminClient
from waiting import PATIENCE_SECONDS, wait_until

NOTES = EndpointConfig(name="notes", wants=(Want(topics=("app.>",)),))
RULES = """
[[rule]]
who = ["alice"]
send = ["app.notes.>"]
receive = ["queue.notes"]

[[rule]]
who = ["bob"]
send = ["app.other.>"]
receive = ["queue.others"]

[[rule]]
who = ["nodes", "boss"]
receive = [">"]
"""


class Scene:
    """A router, and an administration server that issues its clients' tokens."""

    def __init__(self, router: RouterHere, url: str, directory: Path, stack: ExitStack) -> None:
        self.router = router
        self.url = url
        self.signing_key = directory / "admin" / "signing.pem"
        self._directory = directory
        self._stack = stack

    def log_in(self, name: str) -> AdminClient:
        credentials = Credentials(name, secret=SECRETS[name].encode())
        return self._stack.enter_context(AdminClient.connect(self.url, credentials))

    def client(self, name: str) -> penstock.client.Client:
        path = self._directory / f"{name}.toml"
        write_private(path, f'client = "{name}"\nsecret = "{SECRETS[name]}"\n'.encode())
        return self._stack.enter_context(penstock.connect(self.url, credentials=path))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    (tmp_path / "policy.toml").write_text(policy_text(RULES))
    limits = AdminLimits(key_grace_s=0.0, failures_max=1_000, address_failures_max=1_000)
    admin = AdminConfig(directory=str(tmp_path / "admin"), policy=str(tmp_path / "policy.toml"), port=0, limits=limits)
    write_private(tmp_path / "nodes.toml", f'client = "nodes"\nsecret = "{SECRETS["nodes"]}"\n'.encode())
    with ExitStack() as stack:
        server = stack.enter_context(AdminServer(admin))
        access = AdminAccess(url=server.url, credentials=str(tmp_path / "nodes.toml"))
        config = router_config(tmp_path / "router", NOTES, admin=access, operators=("boss",))
        yield Scene(stack.enter_context(router_here(config)), server.url, tmp_path, stack)


def test_a_client_publishes_and_consumes_what_it_is_granted(scene: Scene) -> None:
    with scene.client("alice").assured(scene.router.place, send=["app.>"], receive=["queue.notes"]) as alice:
        with alice.publisher() as publisher:
            assert publisher.publish("app.notes.desk", b"1", timeout=PATIENCE_SECONDS) == "stored"
            with pytest.raises(RefusedError, match="may not publish"):
                publisher.publish("app.other", b"2", timeout=PATIENCE_SECONDS)
        with alice.endpoint("notes") as queue:
            (message,) = queue.take(2, PATIENCE_SECONDS)
            assert message.payload == b"1"
        with pytest.raises(NotEntitledError):
            alice.endpoint("dead")
        assert [each.endpoint.name for each in alice.endpoints()] == ["notes"]
        with pytest.raises(NotEntitledError):
            alice.create_endpoint(EndpointConfig(name="own"))
    with (
        scene.client("bob").assured(scene.router.place, send=["app.>"], receive=["queue.>"]) as bob,
        pytest.raises(NotEntitledError),
    ):
        bob.endpoint("notes")


@pytest.mark.spec("AUTH-5")
def test_a_delayed_client_consumes_what_is_old_enough_and_a_live_one_at_once(scene: Scene) -> None:
    delay_s = 2
    boss = scene.log_in("boss")
    with client_of(scene.router.place, role="operator", token=boss.subscribe((">",)).token) as operator:
        operator.create_endpoint(EndpointConfig(name="copies", wants=NOTES.wants))
    token = signed_token(scene.signing_key, "bob", [Grant("queue.notes", "receive", delay_s)])
    sending = scene.log_in("alice").subscribe((), send=("app.>",)).token
    with (
        client_of(scene.router.place, token=token) as bob,
        client_of(scene.router.place, token=boss.subscribe(("queue.>",)).token) as live,
        client_of(scene.router.place, token=sending) as alice,
        bob.endpoint("notes") as delayed_queue,
        live.endpoint("copies") as live_queue,
        alice.publisher() as publisher,
    ):
        for number in range(3):
            publisher.publish("app.notes.desk", bytes([number]), timeout=PATIENCE_SECONDS)
            assert live_queue.take(1, PATIENCE_SECONDS)[0].payload == bytes([number])
        for number in range(3):
            message = delayed_queue.next(PATIENCE_SECONDS)
            came_ns = time.time_ns()
            assert message is not None
            assert message.payload == bytes([number])
            assert came_ns - message.published_ns >= delay_s * NS_PER_SECOND
            message.ack()


def test_who_has_no_token_is_refused_and_who_is_revoked_is_put_out(scene: Scene) -> None:
    with client_of(scene.router.place) as nobody, pytest.raises(PenstockError, match="token"):
        nobody.publisher()
    with scene.client("alice").assured(scene.router.place, send=["app.>"]) as alice:
        publisher = alice.publisher()
        publisher.publish("app.notes.desk", b"1", timeout=PATIENCE_SECONDS)
        scene.log_in("boss").revoke("alice", "left the firm")
        wait_until(lambda: alice.is_over, "the end of alice's session")
        with pytest.raises(PenstockError, match="left the firm"):
            publisher.publish("app.notes.desk", b"2")


def test_operators_define_endpoints_and_others_do_not(scene: Scene) -> None:
    token = scene.log_in("boss").subscribe((">",)).token
    with client_of(scene.router.place, role="operator", token=token) as boss:
        boss.create_endpoint(EndpointConfig(name="made"))
        assert [each.endpoint.name for each in boss.endpoints("made")] == ["made"]
    token = scene.log_in("alice").subscribe((), send=("app.>",)).token
    with client_of(scene.router.place, role="operator", token=token) as alice, pytest.raises(NotEntitledError):
        alice.endpoints()


def test_beyond_this_machine_a_router_needs_tls_and_a_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a loopback address"):
        RouterAccess(host="0.0.0.0")


def test_tls_and_a_secret(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "127.0.0.1")
    write_private(tmp_path / "secret", b"the secret of this router")
    tls = TlsConfig(certificate=str(certificate), private_key=str(key), ca_file=str(certificate))
    access = RouterAccess(port=0, tls=tls, secret_file=str(tmp_path / "secret"))
    context = client_context(TlsConfig(certificate="", private_key="", ca_file=str(certificate)))
    guard = Guard(read_secret(tmp_path / "secret"), context, is_needed_here=True)
    with router_here(router_config(tmp_path / "router", control=access)) as router:
        with client_of(router.place, guard=guard) as client, client.publisher() as publisher:
            assert publisher.publish("orders.new", b"1", timeout=PATIENCE_SECONDS) == "stored"
        for wrong in (Guard(), Guard(None, context, is_needed_here=True)):
            with client_of(router.place, guard=wrong, answer_seconds=0.3) as stranger, pytest.raises(PenstockError):
                stranger.publisher()
