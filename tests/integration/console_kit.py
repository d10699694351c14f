"""A console over a real administration server, and simulated browsers."""

import contextlib
import functools
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from client_kit import registered_on
from penstock.admin import AdminConfig, AdminLimits
from penstock.admin.live.driver import AdminServer
from penstock.feed.live.registration import Registration
from penstock.middleware import PublisherConfig
from penstock.middleware.live import MulticastPublisher
from penstock.net.live.loop_thread import LoopThread
from penstock.net.secret import write_private
from penstock.net.udp import free_channel
from penstock.node.console_config import ConsoleConfig
from penstock.node.plant import Plant
from penstock.node.running import RunningPlant
from penstock.security import Credentials
from penstock.security.core.authentication import scope_of
from penstock.security.core.brokering import AdapterHeartbeat, Authentication, AuthenticationChanged, Events
from penstock.security.core.proof import SecretVerifier
from penstock.security.live.client import AdminClient
from penstock.web.live.login_links import LoginLinks
from penstock.web.live.server import ConsoleServer
from waiting import PATIENCE_SECONDS, wait_until

SECRETS = {name: f"the secret of {name}" for name in ("alice", "bob", "boss", "clerk", "feed", "nodes")}
FEED_PUBLISHER = 11
ROLES = {"boss": "administrator", "clerk": "auditor", "feed": "adapter", "nodes": "filter"}
RULES = """
[[rule]]
who = ["alice", "bob", "boss", "nodes"]
receive = ["md.>", "app.>"]

[[rule]]
who = ["alice", "nodes"]
send = ["app.notes.>", "md.>"]

[[rule]]
who = ["feed"]
send = ["md.us.eq.>", "derived.>"]
"""


@functools.cache
def _client_entries() -> str:
    entries = []
    for name, secret in SECRETS.items():
        verifier = SecretVerifier.make(secret.encode(), name.encode().ljust(16, b"."))
        roles = f'roles = ["{ROLES[name]}"]\n' if name in ROLES else ""
        entries.append(f'[clients.{name}]\nsecret = "{verifier.text}"\n{roles}')
    return "".join(entries)


def policy_text(rules: str = RULES) -> str:
    return _client_entries() + rules


PASSED_OVER = ("welcome", "messages", "info", "state", "live", "receipt")
"""Unsolicited messages, which answer no request."""


class Answered(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a refusal."""
        return str(self.document["code"])


class Browser:
    """Keeps one cookie, as a browser does."""

    def __init__(self, port: int, stack: contextlib.ExitStack | None = None) -> None:
        self.port = port
        self.stack = stack or contextlib.ExitStack()
        self.cookie = ""
        self.origin: str | None = f"http://127.0.0.1:{port}"

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answered:
        sent = {**({"Origin": self.origin} if self.origin else {}), **({"Cookie": self.cookie} if self.cookie else {})}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        try:
            connection.request(method, path, body, {**sent, **(headers or {})})
            response = connection.getresponse()
            answered = Answered(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()
        if "set-cookie" in answered.headers:
            self.cookie = answered.headers["set-cookie"].partition(";")[0]
        return answered

    def post(self, path: str, document: Any = None, headers: Mapping[str, str] | None = None) -> Answered:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.ask("POST", path, body, {"Content-Type": "application/json", **(headers or {})})

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answered:
        return self.ask("GET", path, headers=headers)

    def log_in(self, name: str, secret: str | None = None) -> Answered:
        return self.post("/api/login", {"name": name, "secret": SECRETS[name] if secret is None else secret})

    def socket(
        self,
        path: str,
        subprotocol: str | None = None,
        headers: Mapping[str, str] | None = None,
        receives: int | None = None,
    ) -> ClientConnection:
        """Open until the console under test is ended, or close(); `receives` is the size of its receive buffer."""
        plain = socket.socket()
        if receives is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        plain.connect(("127.0.0.1", self.port))
        sent = {"Cookie": self.cookie} if self.cookie else {}
        opened = connect(
            f"ws://127.0.0.1:{self.port}{path}",
            origin=self.origin,  # type: ignore[arg-type]
            subprotocols=[Subprotocol(subprotocol)] if subprotocol else None,
            additional_headers={**sent, **(headers or {})},
            open_timeout=PATIENCE_SECONDS,
            close_timeout=0.5,  # a client with unread messages does not see the answer to its close frame
            proxy=None,
            sock=plain,
        )
        return self.stack.enter_context(opened)


class Talk:
    """A WebSocket on which JSON documents come and go."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def say(self, document: Any) -> None:
        self.socket.send(document if isinstance(document, str | bytes) else json.dumps(document))

    def hear(self) -> Any:
        return json.loads(self.socket.recv(PATIENCE_SECONDS))

    def ask(self, document: Any) -> Any:
        """Send a request and return the answer; messages and unsolicited messages before the answer are skipped."""
        self.say(document)
        while (heard := self.hear())["kind"] in PASSED_OVER:
            continue
        return heard

    def hear_kind(self, kind: str) -> Any:
        """The next of this kind; others are passed over."""
        while (document := self.hear())["kind"] != kind:
            continue
        return document


def close_code(socket: ClientConnection) -> int | None:
    """The close code of a WebSocket that the console ends; messages before it are skipped."""
    try:
        while True:
            socket.recv(PATIENCE_SECONDS)
    except ConnectionClosed as error:
        return error.rcvd.code if error.rcvd is not None else None


class RunningConsole:
    """A console; `stream()` opens the connection that the gateway's tests use."""

    def __init__(self, directory: Path, admin: AdminServer, console: ConsoleServer, thread: LoopThread) -> None:
        self.directory = directory
        self.admin = admin
        self.console = console
        self.thread = thread
        self.stack = contextlib.ExitStack()

    def browser(self, name: str | None = None) -> Browser:
        """A client, logged in if a name is given."""
        browser = Browser(self.console.port, self.stack)
        if name is not None:
            assert browser.log_in(name).status == 200
        return browser

    def login_link(self, client: str = "alice", valid_s: float = 600.0) -> str:
        """A one-time link; `login_credentials` of the console has to be those of the client."""
        links = LoginLinks(Path(self.console.config.state_directory))
        return links.issue(f"http://127.0.0.1:{self.console.port}", client, valid_s)

    def stream(self, name: str = "alice", subprotocol: str = "penstock.json.1") -> Talk:
        """The WebSocket of a logged-in user, after its welcome message."""
        talk = Talk(self.browser(name).socket("/ws/stream", subprotocol))
        assert talk.hear()["kind"] == "welcome"
        return talk


def write_credentials(directory: Path, name: str) -> Path:
    """Write the credentials file of a client."""
    path = directory / f"{name}.toml"
    write_private(path, f'client = "{name}"\nsecret = "{SECRETS[name]}"\n'.encode())
    return path


@contextlib.contextmanager
def administration(directory: Path, **limits: Any) -> Iterator[AdminServer]:
    policy = directory / "policy.toml"
    policy.write_text(policy_text())
    config = AdminConfig(
        directory=str(directory / "admin"),
        policy=str(policy),
        port=0,
        limits=AdminLimits(
            key_grace_s=0.0, failures_max=1_000, address_failures_max=1_000, adapter_lost_s=3_600.0, **limits
        ),
    )
    with AdminServer(config) as server:
        yield server


@contextlib.contextmanager
def running_console(directory: Path, more: str = "", **settings: Any) -> Iterator[RunningConsole]:
    """`more` is added to the plant's document, `settings` to the console's configuration."""
    with administration(directory) as admin:
        document = directory / "plant.toml"
        document.write_text(
            f'name = "trial"\n[[administration]]\nname = "admin"\npolicy = "policy.toml"\nport = {admin.port}\n{more}'
        )
        plant = Plant.load(document)
        chosen = {"port": 0, "interval_ms": 100, "state_directory": str(directory / "console"), **settings}
        config: ConsoleConfig = msgspec.structs.replace(plant.console(), **chosen)
        thread = LoopThread("console")
        try:
            console = thread.start(_started(plant, config)).result(PATIENCE_SECONDS)
            made = RunningConsole(directory, admin, console, thread)
            try:
                with made.stack:
                    yield made
            finally:
                thread.start(console.node.close()).result(PATIENCE_SECONDS)
        finally:
            thread.close()


async def _started(plant: Plant, config: ConsoleConfig) -> ConsoleServer:
    console = ConsoleServer(plant, config)
    await console.node.start()
    return console


@contextlib.contextmanager
def supervising(running: RunningPlant) -> Iterator[None]:
    """A thread that does the supervisor's work."""
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.is_set():
            running.poll(0.02)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextlib.contextmanager
def feeding(console: RunningConsole) -> Iterator[MulticastPublisher]:
    """A registered feed whose messages a test publishes. Like an adapter, the feed follows its keys: a revocation
    replaces them, and receivers refuse packets under the old key."""
    channel = free_channel()
    registered = registered_on(channel, FEED_PUBLISHER)
    config = PublisherConfig(linger_ms=1)
    publisher = MulticastPublisher(channel, publisher_id=FEED_PUBLISHER, epoch=1, config=config, keys=())

    def use(told: Authentication | None) -> None:
        assert told is not None
        scope = scope_of(told)
        publisher.authenticate(scope.keys, scope.active_key_id)

    def take(answer: Events, _: int) -> None:
        for event in (each.body for each in answer.events):
            if isinstance(event, AuthenticationChanged) and event.authentication.scope == registered.feed:
                use(event.authentication)

    registration = Registration(
        AdminClient.connect(console.admin.url, Credentials("feed", secret=SECRETS["feed"].encode())),
        lambda: registered,
        lambda: AdapterHeartbeat(feed=registered.feed, adapter=registered.adapter, term=registered.term, key_ids=[]),
        lambda answer, _: use(answer.authentication),
        lambda *_: None,
        take,
        now_ns=time.monotonic_ns,
    )
    with publisher:
        registration.start()
        try:
            wait_until(lambda: registration.is_registered, "the registration of the feed")
            yield publisher
        finally:
            registration.stop()
