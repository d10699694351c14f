"""Logging in to the console, and everything that the login refuses."""

import contextlib
import io
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from integration.console_kit import SECRETS, RunningConsole, Talk, close_code, running_console, write_credentials
from penstock.base.clock import NS_PER_SECOND
from penstock.base.log import configure
from penstock.node.console_config import ConsoleLimits
from waiting import PATIENCE_SECONDS, wait_until

SLOW_S = 1.0
"""Time limit of requests where a test sends incomplete ones; complete requests of a busy machine keep within it."""


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    limits = ConsoleLimits(failures_max=3, address_failures_max=1_000, client_sessions_max=3, sockets_max=2)
    with running_console(tmp_path_factory.mktemp("console"), limits=limits) as made:
        yield made


@pytest.mark.spec("TREE-9")
def test_a_person_logs_in_sees_the_picture_and_logs_out(console: RunningConsole) -> None:
    browser = console.browser()
    assert browser.get("/api/picture").status == 401
    answered = browser.log_in("boss")
    assert answered.status == 200
    assert answered.document["client"] == "boss"
    assert answered.document["is_operator"]
    cookie = answered.headers["set-cookie"]
    assert re.search(r"^penstock_session=[0-9a-f]{64};", cookie)
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()

    picture = browser.get("/api/picture").document
    assert picture["plant"] == "trial"
    assert [(node["node"], node["role"], node["state"]) for node in picture["nodes"]] == [
        ("admin", "administration", "up")
    ]
    assert browser.get("/api/session").document["client"] == "boss"

    watching = browser.socket("/ws/watch")
    kept = browser.cookie
    assert browser.post("/api/logout").status == 204
    assert close_code(watching) == 4401  # the session's WebSocket ends with the session
    browser.cookie = kept
    assert browser.get("/api/session").code == "token"


def test_who_has_no_role_is_no_operator(console: RunningConsole) -> None:
    answered = console.browser("alice").get("/api/session").document
    assert (answered["is_operator"], answered["roles"]) == (False, [])


@pytest.mark.parametrize(
    ("name", "secret"),
    [("alice", "the secret of bob"), ("nobody", "the secret of nobody"), ("alice", "short"), ("a b\n", "x" * 20)],
)
def test_whatever_is_wrong_is_refused_alike(console: RunningConsole, name: str, secret: str) -> None:
    answered = console.browser().log_in(name, secret)
    assert (answered.status, answered.code) == (401, "authentication")
    assert "set-cookie" not in answered.headers


def test_patience_ends(console: RunningConsole) -> None:
    browser = console.browser()
    for _ in range(3):
        assert browser.log_in("bob", "not this one, surely").status == 401
    answered = browser.log_in("bob", "not this one, surely")
    assert (answered.status, answered.code) == (429, "rate-limited")
    assert int(answered.headers["retry-after"]) > 0
    assert browser.log_in("bob").status == 429  # the right one, too: a guess is not to be confirmed
    assert browser.log_in("clerk").status == 200


def test_a_client_has_a_bounded_number_of_sessions(console: RunningConsole) -> None:
    browsers = [console.browser("clerk") for _ in range(4)]
    assert [browser.get("/api/session").status for browser in browsers] == [401, 200, 200, 200]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "request"),
        (b"{", 400, "request"),
        (b"\xff\xfe", 400, "request"),
        (b"[" * 10_000, 400, "request"),
        (b'{"name": "alice"}', 400, "request"),
        (b'{"name": "alice", "secret": "the secret of alice", "more": 1}', 400, "request"),
        (b'{"name": 7, "secret": "the secret of alice"}', 400, "request"),
        (b'{"name": "alice", "secret": "' + b"x" * 20_000 + b'"}', 413, "limit"),
    ],
)
def test_bodies_that_are_none(console: RunningConsole, body: bytes, status: int, code: str) -> None:
    answered = console.browser().post("/api/login", body)
    assert (answered.status, answered.code) == (status, code)


def test_a_form_of_another_site_is_no_login(console: RunningConsole) -> None:
    answered = console.browser().post("/api/login", b"{}", {"Content-Type": "text/plain"})
    assert (answered.status, answered.code) == (415, "request")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "file://"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_other_hosts_and_sites_are_refused(console: RunningConsole, headers: dict[str, str]) -> None:
    browser = console.browser("alice")
    answered = browser.get("/api/picture", headers)
    assert (answered.status, answered.code) == (403, "forbidden")
    if "Host" not in headers:
        browser.origin = headers.pop("Origin", browser.origin)
        with pytest.raises(InvalidStatus) as refused:
            browser.socket("/ws/watch", headers=headers)
        assert refused.value.response.status_code == 403


def test_programs_without_an_origin_are_let_in(console: RunningConsole) -> None:
    browser = console.browser()
    browser.origin = None
    assert browser.log_in("alice").status == 200


def test_every_answer_says_what_a_page_may_do(console: RunningConsole) -> None:
    for path in ("/", "/api/session", "/nowhere", "/assets/nothing.js", "/health"):
        headers = console.browser().get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "cache-control" in headers
        assert "server" not in headers


@pytest.mark.parametrize(
    "path", ["/assets/../app.py", "/assets/%2e%2e/app.py", "/assets/..%2fapp.py", "/assets//etc/passwd"]
)
def test_nothing_but_assets_is_served(console: RunningConsole, path: str) -> None:
    assert console.browser().get(path).status in (404, 400)


def test_paths_and_methods_that_are_not_there(console: RunningConsole) -> None:
    assert console.browser().get("/api/nothing").code == "not-found"
    assert console.browser().get("/api/login").status == 405


def test_a_socket_without_a_session_is_closed_with_its_own_code(console: RunningConsole) -> None:
    assert close_code(console.browser().socket("/ws/watch")) == 4401
    stranger = console.browser()
    stranger.cookie = "penstock_session=" + "0" * 64
    assert close_code(stranger.socket("/ws/watch")) == 4401


def test_who_watches_says_nothing_and_does_not_open_too_many(console: RunningConsole) -> None:
    browser = console.browser("alice")
    sockets = [browser.socket("/ws/watch") for _ in range(3)]
    assert close_code(sockets[2]) == 4429
    sockets[0].send("hello")
    assert close_code(sockets[0]) == 4400
    sockets[1].send(b"x" * 70_000)
    assert close_code(sockets[1]) == 1009


def test_secrets_and_keys_are_never_logged(console: RunningConsole, lines: io.StringIO) -> None:
    configure(level="DEBUG", stream=lines)
    browser = console.browser()
    browser.log_in("boss", "a secret that is wrong")
    browser.log_in("boss")
    browser.post("/api/logout")
    written = lines.getvalue()
    assert "login_failed" in written
    assert "logged_in" in written
    for hidden in (SECRETS["boss"], "a secret that is wrong", browser.cookie.partition("=")[2] or "no cookie"):
        assert hidden not in written


def test_the_history_is_for_sessions_and_its_range_is_bounded(console: RunningConsole) -> None:
    assert console.browser().get("/api/history?node=admin").status == 401
    browser = console.browser("alice")
    assert browser.get("/api/picture").status == 200  # which waits for the first poll
    found = browser.get("/api/history?node=admin&seconds=60").document
    assert len(found["time_ms"]) == len(found["lost"]) > 0
    assert browser.get("/api/history?node=nobody").code == "not-found"
    for seconds in ("0", "-1", "1e9", "86401", "9" * 30, "x"):
        assert browser.get(f"/api/history?node=admin&seconds={seconds}").code == "request"


# One-time links


def test_a_link_logs_in_once_and_its_secret_is_never_logged(tmp_path: Path, lines: io.StringIO) -> None:
    configure(level="DEBUG", stream=lines)
    credentials = str(write_credentials(tmp_path, "alice"))
    with running_console(tmp_path, login_credentials=credentials) as console:
        secret = console.login_link().partition("=")[2]
        browser = console.browser()
        answered = browser.post("/api/login-link", {"secret": secret})
        assert (answered.status, answered.document["client"]) == (200, "alice")
        assert "httponly" in answered.headers["set-cookie"].lower()
        assert browser.get("/api/session").document["client"] == "alice"
        again = console.browser().post("/api/login-link", {"secret": secret})
        assert (again.status, again.code) == (401, "authentication")
        assert "--link" in again.document["hint"]
    written = lines.getvalue()
    assert "logged_in" in written
    assert secret not in written
    assert SECRETS["alice"] not in written


def test_links_of_other_clients_and_late_links_are_refused(tmp_path: Path) -> None:
    credentials = str(write_credentials(tmp_path, "alice"))
    with running_console(tmp_path, login_credentials=credentials) as console:
        for link in (console.login_link("boss"), console.login_link("alice", 0.0)):
            answered = console.browser().post("/api/login-link", {"secret": link.partition("=")[2]})
            assert (answered.status, answered.code) == (401, "authentication")


def test_a_console_without_a_client_for_links_accepts_none(console: RunningConsole) -> None:
    secret = console.login_link().partition("=")[2]
    assert console.browser().post("/api/login-link", {"secret": secret}).status == 401


@pytest.mark.parametrize(
    "body", [{}, {"secret": 7}, {"secret": ""}, {"secret": "x" * 257}, {"secret": "x", "name": "boss"}]
)
def test_requests_of_links_that_are_none(console: RunningConsole, body: dict[str, object]) -> None:
    assert console.browser().post("/api/login-link", body).status == 400


def test_guessing_secrets_of_links_ends_soon(tmp_path: Path) -> None:
    credentials = str(write_credentials(tmp_path, "alice"))
    with running_console(tmp_path, login_credentials=credentials, limits=ConsoleLimits(failures_max=3)) as console:
        browser = console.browser()
        assert [browser.post("/api/login-link", {"secret": "0" * 64}).status for _ in range(4)] == [401] * 3 + [429]
        assert browser.log_in("alice").status == 200


def test_a_session_that_is_not_used_ends(tmp_path: Path) -> None:
    with running_console(tmp_path, limits=ConsoleLimits(idle_s=2.0)) as console:
        browser = console.browser("alice")
        socket = browser.socket("/ws/watch")
        service = console.console._service
        assert service is not None
        ((_, session),) = service.sessions.all()
        unused_ns = session.used_ns + 2 * NS_PER_SECOND
        wait_until(lambda: session.used_ns > unused_ns, "the WebSocket to use the session")
        socket.close()
        wait_until(lambda: session.is_over, "the end of the session")
        assert browser.get("/api/session").status == 401


def test_a_session_ends_in_any_case(tmp_path: Path) -> None:
    with running_console(tmp_path, limits=ConsoleLimits(session_s=0.5)) as console:
        browser = console.browser("alice")
        assert close_code(browser.socket("/ws/watch")) == 4401
        assert browser.get("/api/session").status == 401


def test_the_console_ends_in_order(tmp_path: Path) -> None:
    with running_console(tmp_path) as console:
        socket = console.browser("alice").socket("/ws/watch")
        socket.recv(PATIENCE_SECONDS)
        ending = console.thread.start(console.console.node.close())
        assert close_code(socket) == 1001
        ending.result(PATIENCE_SECONDS)


# Connections that never become requests


def wait_cut_off(connection: socket.socket) -> None:
    connection.settimeout(PATIENCE_SECONDS)
    with contextlib.suppress(ConnectionResetError):
        assert connection.recv(1) == b""


@pytest.mark.parametrize("beginning", [b"", b"GET / HTT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_who_sends_no_whole_request_is_not_waited_for(tmp_path: Path, beginning: bytes) -> None:
    with running_console(tmp_path, limits=ConsoleLimits(body_s=SLOW_S)) as console:
        with socket.create_connection(("127.0.0.1", console.console.port)) as silent:
            silent.sendall(beginning)
            wait_cut_off(silent)
        watching = Talk(console.browser("boss").socket("/ws/watch"))
        numbers = [watching.hear_kind("picture")["number"] for _ in range(6)]  # a picture each 100 ms
        assert numbers == sorted(set(numbers)), "a WebSocket is a whole request"
        metrics = console.browser().get("/metrics").body.decode()
        assert re.search(r'connections_refused_total{[^}]*cause="silent"[^}]*} 1', metrics)


def test_a_second_request_that_is_never_whole_is_not_waited_for_either(tmp_path: Path) -> None:
    with running_console(tmp_path, limits=ConsoleLimits(body_s=SLOW_S)) as console:
        host = f"127.0.0.1:{console.console.port}"
        with socket.create_connection(("127.0.0.1", console.console.port), PATIENCE_SECONDS) as connection:
            connection.sendall(f"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert connection.recv(16).startswith(b"HTTP/1.1 200")
            connection.sendall(b"GET /health HTT")
            while connection.recv(65_536):
                continue


def test_there_is_a_bound_on_connections_without_requests(tmp_path: Path) -> None:
    with running_console(tmp_path, limits=ConsoleLimits(connections_max=4)) as console, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", console.console.port)
        silent = [stack.enter_context(socket.create_connection(address)) for _ in range(9)]
        wait_cut_off(silent[-1])
