"""The administration server over real sockets: good requests, bad ones, and garbage."""

import contextlib
import http.client
import io
import random
import re
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from admin_kit import KEYS, RULES, SECRETS, config, confirm_keys, credentials, policy_text, registration
from certificates import make_certificate
from penstock.admin import AdminLimits
from penstock.admin.live.driver import AdminServer
from penstock.base import log
from penstock.base.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectionLostError,
    CredentialsExpiredError,
    NotEntitledError,
    PenstockError,
    RateLimitedError,
    RevokedError,
    UnreachableError,
)
from penstock.net.page_access import PageTokenConfig
from penstock.net.secret import write_private
from penstock.security import Credentials, PrivateKey, PublicKey, TokenVerifier
from penstock.security.core import brokering as b
from penstock.security.core.brokering import AdapterHeartbeat, AuthenticationChanged, KeysChanged, Revoked
from penstock.security.core.proof import ScryptCost
from penstock.security.live.client import AdminClient
from penstock.security.live.http import parse_addresses
from waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminServer]:
    """For tests that do not change the server."""
    with AdminServer(config(tmp_path_factory.mktemp("admin"))) as server:
        yield server


@pytest.fixture
def own(tmp_path: Path) -> Iterator[AdminServer]:
    """For tests that change the server."""
    with AdminServer(config(tmp_path)) as server:
        yield server


def client(server: AdminServer, name: str) -> AdminClient:
    return AdminClient.connect(server.url, credentials(name))


def raw(server: AdminServer, method: str, path: str, body: bytes = b"", token: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        return response.status, msgspec.json.decode(response.read())
    finally:
        connection.close()


@pytest.mark.spec("FILT-15")
def test_publishers_get_ids_from_the_server(own: AdminServer) -> None:
    with client(own, "quill") as quill:
        first = quill.claim_publisher("desk.quotes")
        again = quill.claim_publisher("desk.quotes")
        assert (first.publisher_id, first.epoch + 1) == (again.publisher_id, again.epoch)
        assert quill.claim_publisher("desk.trades").publisher_id != first.publisher_id


@pytest.mark.spec("ADM-1", "ADM-3", "ADM-4", "ADM-5")
def test_a_subscription_from_login_to_cancellation(own: AdminServer) -> None:
    with client(own, "feed") as adapter, client(own, "alice") as alice:
        registered = adapter.register(registration())
        brokered = alice.subscribe(["md.us.eq.AAPL.>"], send=["derived.desk.>"])
        (stream,) = brokered.streams
        assert (stream.topics, stream.send) == (["md.us.eq.AAPL.>"], ["derived.desk.>"])
        assert stream.addresses[0].group == "239.255.1.1"
        verifier = TokenVerifier([PublicKey.parse(text) for text in registered.token_keys])
        assert verifier.verify(brokered.token, time.time_ns()).subscription_id == brokered.subscription_id
        (event,) = adapter.events(registered.events_after).events
        assert event.body.subscription_id == brokered.subscription_id  # type: ignore[union-attr]
        changed = alice.modify(brokered.subscription_id, ["md.us.eq.IBM.>"])
        assert changed.streams[0].topics == ["md.us.eq.IBM.>"]
        (renewed,) = alice.renew(brokered.subscription_id).streams
        assert (renewed.topics, renewed.addresses) == (changed.streams[0].topics, changed.streams[0].addresses)
        again = alice.subscribe(["md.us.eq.IBM.>"], subscription_id=brokered.subscription_id)  # as after a lost answer
        assert again.subscription_id == brokered.subscription_id
        alice.cancel(brokered.subscription_id)
        with pytest.raises(RevokedError, match="cancelled"):
            alice.renew(brokered.subscription_id)
        kinds = [type(each.body).__name__ for each in adapter.events(event.number).events]
        assert kinds == ["SubscriptionBrokered", "SubscriptionBrokered", "SubscriptionCancelled", "Revoked"]


@pytest.mark.spec("ADM-5", "ADM-7")
def test_a_waiting_client_hears_of_its_revocation_at_once(own: AdminServer) -> None:
    with client(own, "feed") as adapter, client(own, "alice") as alice, client(own, "root") as root:
        bob = client(own, "bob")
        held = [each.subscribe(["md.us.eq.>"]).subscription_id for each in (alice, bob)]
        registered = adapter.register(registration(sealed=True))
        brokered, entitled = alice.renew(held[0]), bob.renew(held[1])
        found: dict[str, Any] = {}

        def wait() -> None:
            found["alice"] = alice.events(brokered.events_after, wait_s=30)

        waiting = threading.Thread(target=wait)
        waiting.start()
        ended = root.revoke("alice", "left the firm").subscriptions
        waiting.join(PATIENCE_SECONDS)
        assert ended == [brokered.subscription_id]
        revoked = found["alice"].events[0].body
        assert isinstance(revoked, Revoked)
        assert revoked.reason == "left the firm"
        told = [each.body for each in adapter.events(registered.events_after).events]
        assert revoked in told
        heard = [each.body for each in bob.events(entitled.events_after).events]
        (keys,) = [each for each in heard if isinstance(each, KeysChanged)]
        assert [each for each in heard if isinstance(each, AuthenticationChanged)]
        (new,) = keys.keys
        adapter.heartbeat(AdapterHeartbeat(feed="itch", adapter="a", term=1, key_ids=[1, new.key_id]))

        def is_active() -> bool:
            heartbeat = AdapterHeartbeat(feed="itch", adapter="a", term=1, key_ids=[1, new.key_id])
            return adapter.heartbeat(heartbeat).active_key_id == new.key_id

        wait_until(is_active, "the new key to be used")
        with pytest.raises(RevokedError, match="left the firm"):
            alice.subscribe(["md.us.eq.>"])
        root.restore("alice")
        again = alice.subscribe(["md.us.eq.>"])
        assert again.streams[0].keys == []

        def given() -> list[int]:
            confirm_keys(adapter)
            return [each.key_id for each in alice.renew(again.subscription_id).streams[0].keys]

        wait_until(lambda: bool(given()), "a key for alice")
        assert given() == [1, new.key_id + 1], "not the key that was in use while alice had no right"
        bob.close()


@pytest.mark.spec("ADM-1")
def test_credentials_that_are_wrong(server: AdminServer) -> None:
    with pytest.raises(AuthenticationError, match="unknown client"):
        AdminClient.connect(server.url, Credentials("alice", secret=SECRETS["bob"])).login()
    with pytest.raises(AuthenticationError, match="unknown client"):
        AdminClient.connect(server.url, Credentials("carol", key=KEYS["root"])).login()
    with pytest.raises(AuthenticationError, match="unknown client"):
        AdminClient.connect(server.url, Credentials("mallory", key=KEYS["root"])).login()
    with pytest.raises(CredentialsExpiredError):
        AdminClient.connect(server.url, credentials("old")).login()
    lines = client(server, "root").audit().entries
    refused = [each.code for each in lines if each.action == "login" and each.outcome == "refused"]
    assert {"authentication", "credentials-expired"} <= set(refused)


@pytest.mark.spec("ADM-1")
def test_who_tries_too_often_has_to_wait(tmp_path: Path) -> None:
    with AdminServer(config(tmp_path, limits=AdminLimits(failures_max=2))) as server:
        wrong = AdminClient.connect(server.url, Credentials("alice", secret=SECRETS["bob"]))
        for _ in range(2):
            with pytest.raises(AuthenticationError):
                wrong.login()
        with pytest.raises(RateLimitedError) as caught:
            wrong.login()
        assert 0 < caught.value.retry_after_s <= 60


@pytest.mark.spec("ADM-1", "ADM-2")
@pytest.mark.parametrize(
    ("name", "method", "path", "document", "status", "code"),
    [
        ("alice", "POST", "/v1/subscriptions", {"subscription_id": "x", "topics": ["fx.>"]}, 403, "not-entitled"),
        ("alice", "POST", "/v1/subscriptions", {"subscription_id": "x", "send": ["md.us.x"]}, 403, "not-entitled"),
        ("alice", "POST", "/v1/subscriptions", {"subscription_id": "x", "topics": ["a..b"]}, 400, "topic"),
        ("alice", "POST", "/v1/subscriptions", {"subscription_id": "x", "topics": []}, 400, "request"),
        ("alice", "POST", "/v1/subscriptions", {"subscription_id": "x", "topics": "md.>"}, 400, "request"),
        ("alice", "POST", "/v1/subscriptions", {"subscription_id": "../x", "topics": ["md.us.>"]}, 400, "request"),
        ("alice", "POST", "/v1/subscriptions", {"topics": ["md.us.>"]}, 400, "request"),
        ("alice", "POST", "/v1/subscriptions", {"subscription_id": "x", "topic": []}, 400, "request"),
        ("alice", "POST", "/v1/subscriptions", [], 400, "request"),
        ("alice", "GET", "/v1/subscriptions/nothing", None, 404, "not-found"),
        ("alice", "DELETE", "/v1/subscriptions/..%2F..%2Fetc", None, 404, "not-found"),
        ("alice", "GET", "/v1/events?after=-1", None, 400, "request"),
        ("alice", "GET", "/v1/events?after=x", None, 400, "request"),
        ("alice", "GET", "/v1/events?wait_s=1e9", None, 400, "request"),
        ("alice", "GET", "/v1/events?bogus=1", None, 400, "request"),
        ("alice", "GET", "/v1/models/99", None, 404, "not-found"),
        ("alice", "GET", "/v1/models/..%2f1", None, 404, "not-found"),
        ("alice", "GET", "/v1/models/x", None, 404, "not-found"),
        ("alice", "GET", "/v1/models/1?version=7", None, 404, "not-found"),
        ("alice", "POST", "/v1/revocations", {"client": "bob", "reason": "x"}, 403, "forbidden"),
        ("alice", "POST", "/v1/restorations", {"client": "bob"}, 403, "forbidden"),
        ("alice", "PUT", "/v1/policy", {"text": ""}, 403, "forbidden"),
        ("alice", "POST", "/v1/promote", {"reason": "x"}, 403, "forbidden"),
        ("alice", "GET", "/v1/audit", None, 403, "forbidden"),
        ("alice", "GET", "/v1/status", None, 403, "forbidden"),
        ("alice", "GET", "/v1/changes", None, 403, "forbidden"),
        ("alice", "POST", "/v1/adapters", {}, 403, "forbidden"),
        ("feed", "POST", "/v1/adapters", {"feed": "itch"}, 400, "request"),
        ("alice", "POST", "/v1/publishers", {"name": "x"}, 403, "forbidden"),
        ("quill", "POST", "/v1/publishers", {"name": "../x"}, 400, "request"),
        ("root", "POST", "/v1/revocations", {"client": "nobody", "reason": "x"}, 404, "not-found"),
        ("root", "POST", "/v1/revocations", {"client": "bob", "reason": ""}, 400, "request"),
        ("root", "PUT", "/v1/policy", {"text": "[clients"}, 400, "config"),
        ("root", "PUT", "/v1/policy", {"text": "bogus = 1"}, 400, "config-unknown-key"),
        ("root", "GET", "/v1/changes", None, 403, "forbidden"),
    ],
)  # fmt: skip
def test_refusals_have_a_code_and_are_written_down(
    server: AdminServer, name: str, method: str, path: str, document: Any, status: int, code: str
) -> None:
    token = client(server, name).login().token
    root = client(server, "root")
    before = last_number(root)
    body = b"" if document is None else msgspec.json.encode(document)
    answered, answer = raw(server, method, path, body, token)
    assert answered == status
    assert answer["code"] == code
    assert answer["what"]

    def is_written() -> bool:
        lines = root.audit(before).entries
        return (name, "refused", code) in [(each.client, each.outcome, each.code) for each in lines]

    if "%2" not in path:  # which leads nowhere
        wait_until(is_written, "an audit line for the request, or for several requests of a second")


def last_number(root: AdminClient) -> int:
    number = 0
    while entries := root.audit(number).entries:
        number = entries[-1].number
    return number


@pytest.mark.spec("ADM-1")
@pytest.mark.parametrize("token", ["", "x", "ps1.a.b.c", "ps1." + "A" * 5_000, "ä"])
def test_without_a_session_nothing_is_answered(server: AdminServer, token: str) -> None:
    header = token.encode("utf-8").decode("latin-1")
    for method, path in [("GET", "/v1/events"), ("POST", "/v1/subscriptions"), ("GET", "/v1/status")]:
        status, answer = raw(server, method, path, b"{}", header)
        assert (status, answer["code"]) == (401, "token")
    status, answer = raw(server, "GET", "/v1/events", b"", client(server, "alice").subscribe(["md.us.>"]).token)
    assert (status, answer["code"]) == (401, "token")  # a stream token is no session


def test_paths_and_methods_that_there_are_not(server: AdminServer) -> None:
    for method, path in [("GET", "/"), ("GET", "/v1/../etc/passwd"), ("PUT", "/v1/login"), ("GET", "//v1/status")]:
        status, answer = raw(server, method, path)
        assert status in (404, 405)
        assert answer["code"] == "not-found"


def test_bodies_are_bounded(tmp_path: Path) -> None:
    with AdminServer(config(tmp_path, limits=AdminLimits(body_size_max=2_000, body_s=0.2))) as server:
        status, answer = raw(server, "POST", "/v1/challenge", b'{"client": "' + b"a" * 3_000 + b'"}')
        assert (status, answer["code"]) == (413, "limit")
        with socket.create_connection(("127.0.0.1", server.port), timeout=120) as slow:
            slow.sendall(b"POST /v1/challenge HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            answer = b""
            while b"}" not in answer:
                data = slow.recv(65_536)
                assert data
                answer += data
            assert b"was not complete within" in answer


def test_garbage_does_no_harm(server: AdminServer, soak: bool) -> None:
    """Random bytes, and requests with random bodies, to every path; then a client works as before."""
    source = random.Random(7)
    token = client(server, "root").login().token
    paths = ["/v1/challenge", "/v1/login", "/v1/subscriptions", "/v1/adapters", "/v1/adapters/heartbeat",
             "/v1/revocations", "/v1/policy", "/v1/restorations"]  # fmt: skip
    good = [
        b'{"client":"alice"}',
        b'{"subscription_id":"a","topics":["md.us.>"]}',
        b'{"text":null}',
        b"[[[[",
        b'{"a":1e999}',
    ]
    for number in range(2_000 if soak else 150):
        if number % 3 == 0:
            with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
                connection.sendall(source.randbytes(source.randrange(1, 400)) + b"\r\n\r\n")
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):
                    pass
            continue
        body = bytearray(source.choice(good))
        for _ in range(source.randrange(4)):
            body[source.randrange(len(body))] = source.randrange(256)
        path = source.choice(paths)
        method = "PUT" if path == "/v1/policy" else "POST"
        status, answer = raw(server, method, path, bytes(body), token if source.random() < 0.5 else "")
        assert status < 500, answer
        if status >= 400:
            assert answer["code"]
    deep = b"[" * 100_000
    status, answer = raw(server, "POST", "/v1/challenge", deep)
    assert (status, answer["code"]) == (400, "request")
    with client(server, "alice") as alice:
        assert alice.subscribe(["md.us.>"]).token


@pytest.mark.spec("ADM-6")
def test_models_by_id_and_version(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    text = '[[field]]\nname = "a"\ntype = "i64"\n'
    (models / "one.toml").write_text('id = 900\nname = "mine"\nversion = 1\n' + text)
    newer = '[[field]]\nname = "b"\ntype = "i64"\nsince = 2\n'
    (models / "two.toml").write_text('id = 900\nname = "mine"\nversion = 2\n' + text + newer)
    with AdminServer(config(tmp_path, models=str(models))) as server, client(server, "alice") as alice:
        assert {"quote", "trade", "mine"} <= {each.name for each in alice.models()}
        newest, oldest = alice.model(900), alice.model(900, 1)
        assert (newest.version, oldest.version) == (2, 1)
        assert alice.model(900) is newest  # 304, from the client's memory
        record = bytes(newest.new(a=1, b=2))
        assert oldest.view(record, version=2).a == 1  # an older client reads what a newer server's model wrote
    (models / "two.toml").write_text('id = 900\nname = "mine"\nversion = 2\n' + newer.replace("since = 2\n", ""))
    with pytest.raises(ConfigurationError, match="cannot be read by programs that know version 1"):
        AdminServer(config(tmp_path, models=str(models))).start()


def test_the_openapi_document_describes_what_is_served(server: AdminServer) -> None:
    status, document = raw(server, "GET", "/openapi.json")
    assert status == 200
    assert document["openapi"] == "3.1.0"
    assert document["paths"]["/v1/subscriptions"]["post"]["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/SubscribeRequest"
    }
    text = msgspec.json.encode(document).decode()
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])
    assert {"Brokered", "StreamKey", "ErrorDocument", "Revoked"} <= set(document["components"]["schemas"])
    assert raw(server, "GET", "/health") == (200, {"is_healthy": True, "role": "primary"})


@pytest.mark.spec("OPS-1")
def test_metrics_are_numbers_for_everybody(server: AdminServer) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as answer:
        lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#"))
    assert float(lines["penstock_uptime_seconds"]) > 0
    assert float(lines["penstock_admin_is_primary"]) == 1
    assert {"penstock_admin_subscriptions", "penstock_admin_adapters", "penstock_admin_denials"} <= set(lines)


@pytest.mark.spec("ADM-2", "ADM-5")
def test_the_policy_is_exchanged_while_running(own: AdminServer) -> None:
    with client(own, "alice") as alice, client(own, "root") as root:
        brokered = alice.subscribe(["md.us.>"])
        with pytest.raises(ConfigurationError, match=r"rule\[0\]"):
            root.set_policy(policy_text(RULES.replace("@desk", "@nobody")))
        alice.renew(brokered.subscription_id)  # nothing has changed
        path = Path(own.config.policy)
        path.write_text(policy_text(RULES.replace('"md.us.>"', '"md.us.eq.>"')))
        assert root.set_policy().revoked == [brokered.subscription_id]
        with pytest.raises(RevokedError, match="policy"):
            alice.renew(brokered.subscription_id)
        with pytest.raises(NotEntitledError):
            alice.subscribe(["md.us.opt.>"])
        path.write_text(policy_text())
        own.reload_policy()
        alice.subscribe(["md.us.opt.>"])


@pytest.mark.spec("ADM-1", "OPS-2")
def test_no_secret_is_ever_logged(tmp_path: Path, lines: io.StringIO) -> None:
    log.configure(style="json", level="DEBUG", stream=lines)
    with AdminServer(config(tmp_path)) as server, client(server, "feed") as adapter, client(server, "alice") as alice:
        subscription_id = alice.subscribe(["md.us.eq.>"]).subscription_id
        registered = adapter.register(registration(sealed=True))
        brokered = alice.renew(subscription_id)
        assert brokered.streams[0].keys == registered.keys
        session = alice.login()
        with pytest.raises(NotEntitledError):
            alice.subscribe(["fx.>"])
        log.logger("test").info("careless", brokered=brokered, registered=registered)
    text = lines.getvalue()
    assert '"code":"not-entitled"' in text
    key = msgspec.json.encode(registered.keys[0].key).decode().strip('"')
    for secret in (SECRETS["alice"].decode(), brokered.token, session.token, key, registered.keys[0].key.hex()):
        assert secret not in text


def test_close_ends_a_waiting_call(server: AdminServer) -> None:
    alice = client(server, "alice")
    after = alice.subscribe(["md.us.>"]).events_after
    outcome: list[PenstockError] = []
    started = threading.Event()

    def wait() -> None:
        started.set()
        try:
            alice.events(after, wait_s=30)
        except PenstockError as error:
            outcome.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    started.wait()
    wait_until(lambda: alice._caller._open, "the request to be on its way")
    alice.close()
    waiting.join(PATIENCE_SECONDS)
    assert isinstance(outcome[0], ConnectionLostError)
    with pytest.raises(ConnectionLostError):
        alice.status()


def test_a_client_goes_on_after_its_session_was_forgotten(own: AdminServer) -> None:
    with client(own, "alice") as alice:
        alice.login()
        stale = alice._session
        assert stale is not None
        alice._session = msgspec.structs.replace(stale, token=stale.token[:-4] + "AAAA")
        assert alice.subscribe(["md.us.>"]).token
        assert alice._session != stale


def test_nobody_is_there(tmp_path: Path) -> None:
    with AdminServer(config(tmp_path)) as server:
        url = server.url
    with pytest.raises(UnreachableError):
        AdminClient.connect(url, credentials("alice")).login()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1",
        "penstock://10.0.0.1:7400",
        "penstock://",
        "penstock://a@127.0.0.1",
        "penstock://127.0.0.1:99999",
        "penstock://::1:x",
    ],
)
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_addresses(url)


def test_addresses() -> None:
    found = parse_addresses("penstock://127.0.0.1:7401,localhost,[::1]:7402")
    assert [(each.host, each.port) for each in found] == [("127.0.0.1", 7_401), ("localhost", 7_400), ("::1", 7_402)]
    assert parse_addresses("penstocks://admin.example.com")[0].is_tls


# TLS


@pytest.mark.spec("OPS-2")
def test_tls_and_only_tls_beyond_this_machine(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with pytest.raises(ConfigurationError, match="TLS is not configured"):
        config(tmp_path, host="0.0.0.0")
    write_private(tmp_path / "page.token", b"a-token-of-the-operator")
    access = PageTokenConfig(token_file=str(tmp_path / "page.token"))
    tls = config(tmp_path, host="0.0.0.0", certificate=str(certificate), private_key=str(key), metrics_access=access)
    with AdminServer(tls) as server:
        url = f"penstocks://localhost:{server.port}"
        trusting = Credentials("alice", secret=SECRETS["alice"], ca_file=certificate)
        assert AdminClient.connect(url, trusting).subscribe(["md.us.>"]).token
        with pytest.raises(UnreachableError, match="not trusted"):
            AdminClient.connect(url, credentials("alice")).login()
        with pytest.raises(ConnectionLostError):
            AdminClient.connect(f"penstock://127.0.0.1:{server.port}", credentials("alice")).login()
    key.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        AdminServer(tls).start()
    key.write_text("garbage")
    key.chmod(0o600)
    with pytest.raises(ConfigurationError, match="TLS cannot be used"):
        AdminServer(tls).start()


class Impostor(BaseHTTPRequestHandler):
    """Accepts every proof, like a program that took the server's address before the server started."""

    cost = ScryptCost()
    logins: list[bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/challenge":
            answer: b.Challenge | b.Session = b.Challenge(
                challenge=bytes(32), salt=b"alice".ljust(16, b"."), cost=self.cost, expires_ns=2**62
            )
        else:
            self.logins.append(body)
            answer = b.Session(client="alice", token="ps1.a", expires_ns=2**62, roles=[], server_proof=bytes(32))
        body = msgspec.json.encode(answer)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("penstock-generation", "1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The command prints nothing on the terminal."""


@contextlib.contextmanager
def impostor(cost: ScryptCost | None = None) -> Iterator[tuple[str, list[bytes]]]:
    """The address of a false server, and the logins that it receives."""
    logins: list[bytes] = []
    handler = type("ImpostorWithCost", (Impostor,), {"cost": cost or ScryptCost(), "logins": logins})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"penstock://127.0.0.1:{server.server_address[1]}", logins
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.spec("ADM-1")
def test_a_program_that_poses_as_the_server_on_this_machine_gets_no_session() -> None:
    with impostor() as (url, _):
        careful = Credentials("carol", key=KEYS["carol"], server_key=KEYS["root"].public)
        for who in (credentials("alice"), careful):
            with AdminClient.connect(url, who) as client, pytest.raises(AuthenticationError, match="does not prove"):
                client.subscribe(["md.us.>"])


@pytest.mark.spec("ADM-1")
@pytest.mark.parametrize("cost", [ScryptCost(n=16), ScryptCost(n=8_192), ScryptCost(n=16_384, r=4)])
def test_a_program_that_asks_for_a_cheap_hash_gets_no_proof_to_guess_the_secret_from(cost: ScryptCost) -> None:
    with impostor(cost) as (url, logins), AdminClient.connect(url, credentials("alice")) as client:
        with pytest.raises(AuthenticationError, match=rf"n={cost.n}, r={cost.r}, p=1: .* the minimum is 131072"):
            client.login()
        assert logins == []


@pytest.mark.spec("ADM-1")
def test_a_key_pair_without_the_servers_key_is_warned_of(server: AdminServer, caplog: pytest.LogCaptureFixture) -> None:
    signing = PrivateKey.read(Path(server.config.directory) / "signing.pem").public
    for key in (signing, None):
        with AdminClient.connect(server.url, Credentials("carol", key=KEYS["carol"], server_key=key)) as carol:
            carol.login()
            carol.login()
        assert caplog.messages.count("server_not_authenticated") == (key is None)


@pytest.mark.spec("ADM-1")
def test_a_server_proves_itself_to_a_client_with_a_key_pair(server: AdminServer) -> None:
    signing = PrivateKey.read(Path(server.config.directory) / "signing.pem").public
    with AdminClient.connect(server.url, Credentials("carol", key=KEYS["carol"], server_key=signing)) as carol:
        assert carol.login().client == "carol"
    other = Credentials("carol", key=KEYS["carol"], server_key=KEYS["root"].public)
    with AdminClient.connect(server.url, other) as carol, pytest.raises(AuthenticationError, match="does not prove"):
        carol.login()


class TlsRelay:
    """An attacker between a client and the server, with a certificate that the client also trusts."""

    def __init__(self, certificate: Path, key: Path, target: int, trusted: Path) -> None:
        self._inside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._inside.load_cert_chain(certificate, key)
        self._outside = ssl.create_default_context(cafile=str(trusted))
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            with self._inside.wrap_socket(plain, server_side=True) as client:
                self._pass_on(client)

    def _pass_on(self, client: ssl.SSLSocket) -> None:
        """One request and its answer."""
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(65_536)
        head, _, body = head.partition(b"\r\n\r\n")
        (size,) = re.findall(rb"[Cc]ontent-[Ll]ength: (\d+)", head)
        while len(body) < int(size):
            body += client.recv(65_536)
        method, path, _ = head.split(b" ", 2)
        onward = http.client.HTTPSConnection("localhost", self._target, timeout=30, context=self._outside)
        try:
            onward.request(method.decode(), path.decode(), body, {"Content-Type": "application/json"})
            answer = onward.getresponse()
            content = answer.read()
        finally:
            onward.close()
        lines = [f"HTTP/1.1 {answer.status} -", f"Content-Length: {len(content)}", "Connection: close"]
        lines.append(f"penstock-generation: {answer.getheader('penstock-generation')}")
        client.sendall("\r\n".join([*lines, "", ""]).encode() + content)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.mark.spec("ADM-1")
def test_a_login_cannot_be_passed_on_by_somebody_in_between(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    certificate, key = make_certificate(tmp_path)
    other, other_key = make_certificate(tmp_path / "other", common_name="in between")
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + other.read_bytes())
    trusting = Credentials("alice", secret=SECRETS["alice"], ca_file=both)
    with AdminServer(config(tmp_path, certificate=str(certificate), private_key=str(key))) as server:
        assert AdminClient.connect(f"penstocks://localhost:{server.port}", trusting).login().client == "alice"
        with (
            contextlib.closing(TlsRelay(other, other_key, server.port, both)) as relay,
            AdminClient.connect(f"penstocks://localhost:{relay.port}", trusting) as client,
            pytest.raises(AuthenticationError, match="another certificate"),
        ):
            client.login()
        with (
            contextlib.closing(TlsRelay(certificate, key, server.port, both)) as proxy,
            AdminClient.connect(f"penstocks://localhost:{proxy.port}", trusting) as client,
        ):
            assert client.login().client == "alice", "the relay itself does no harm"
