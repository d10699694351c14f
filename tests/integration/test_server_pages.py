"""Rights to read the pages of an administration server and of a console, which have their own TLS."""

import asyncio
import http.client
import json
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

import admin_kit
from certificates import make_certificate
from integration.console_kit import SECRETS, running_console
from penstock.admin.live.driver import AdminServer
from penstock.base.errors import ConfigurationError
from penstock.net.page_access import PageTokenConfig
from penstock.net.secret import write_private
from penstock.node.plant import Plant
from penstock.security import Credentials
from penstock.security.live.client import AdminClient
from penstock.top.core.places import places_of_plant
from penstock.top.live.fetching import fetch
from waiting import PATIENCE_SECONDS

TOKEN = "a-token-of-the-operator"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}

pytestmark = pytest.mark.spec("OPS-2")


class Served(NamedTuple):
    """A server on all interfaces; the tests reach it by the loopback interface."""

    host: str
    port: int
    certificate: Path

    def ask(self, path: str, headers: dict[str, str], method: str = "GET", body: str = "") -> tuple[int, Any, bytes]:
        context = ssl.create_default_context(cafile=self.certificate)
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=PATIENCE_SECONDS)
        try:
            connection.request(method, path, body, {"Host": f"{self.host}:{self.port}", **headers})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()


def settings_in(directory: Path, host: str, token_file: Path | None) -> dict[str, Any]:
    certificate, key = make_certificate(directory, "127.0.0.1")
    access = PageTokenConfig(token_file=str(token_file)) if token_file else PageTokenConfig()
    return {"host": host, "certificate": str(certificate), "private_key": str(key), "metrics_access": access}


def token_in(directory: Path) -> Path:
    path = directory / "page.token"
    write_private(path, f"{TOKEN}\n".encode())
    return path


@contextmanager
def administration(directory: Path, host: str, token_file: Path | None) -> Iterator[Served]:
    settings = settings_in(directory, host, token_file)
    with AdminServer(admin_kit.config(directory, **settings)) as server:
        yield Served(host, server.port, Path(settings["certificate"]))


@contextmanager
def console(directory: Path, host: str, token_file: Path | None) -> Iterator[Served]:
    settings = settings_in(directory, host, token_file)
    with running_console(directory, **settings) as running:
        yield Served(host, running.console.port, Path(settings["certificate"]))


Serve: TypeAlias = Callable[[Path, str, Path | None], AbstractContextManager[Served]]
SERVERS = [
    pytest.param(administration, ("/health", "/metrics"), id="administration"),
    pytest.param(console, ("/health", "/status", "/metrics"), id="console"),
]


@pytest.mark.parametrize(("serve", "pages"), SERVERS)
def test_only_requests_with_the_token_get_a_page(tmp_path: Path, serve: Serve, pages: tuple[str, ...]) -> None:
    with serve(tmp_path, "0.0.0.0", token_in(tmp_path)) as served:
        wrong = ["", TOKEN, "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \xe9"]
        refused = [{}, *({"Authorization": value} for value in wrong)]
        for path in pages:
            for headers in refused:
                for method in ("GET", "HEAD"):
                    status, told, body = served.ask(path, headers, method)
                    assert (status, told["WWW-Authenticate"]) == (401, "Bearer"), (path, headers)
                    assert method == "HEAD" or json.loads(body)["what"] == "this page needs its bearer token"
            status, told, body = served.ask(path, AUTHORIZED)
            assert (status, told["WWW-Authenticate"]) == (200, None), path
            assert TOKEN.encode() not in body
        count = 2 * len(pages) * len(refused)
        metrics = served.ask("/metrics", AUTHORIZED)[2].decode()
        counted = re.findall(
            r'^penstock_requests_refused_total\{.*cause="authentication".*\} (.*)$', metrics, re.MULTILINE
        )
        assert [float(each) for each in counted] == [count]


@pytest.mark.parametrize(("serve", "pages"), SERVERS)
def test_on_this_machine_a_server_with_tls_needs_no_token(tmp_path: Path, serve: Serve, pages: tuple[str, ...]) -> None:
    with serve(tmp_path, "127.0.0.1", None) as served:
        assert [served.ask(path, {})[0] for path in pages] == [200] * len(pages)


@pytest.mark.parametrize(("serve", "pages"), SERVERS)
def test_on_this_machine_a_token_is_checked_if_there_is_one(
    tmp_path: Path, serve: Serve, pages: tuple[str, ...]
) -> None:
    with serve(tmp_path, "127.0.0.1", token_in(tmp_path)) as served:
        assert [served.ask(path, {})[0] for path in pages] == [401] * len(pages)
        assert [served.ask(path, AUTHORIZED)[0] for path in pages] == [200] * len(pages)


@pytest.mark.parametrize(("serve", "pages"), SERVERS)
def test_a_server_with_a_bad_token_file_does_not_start(tmp_path: Path, serve: Serve, pages: tuple[str, ...]) -> None:
    path = token_in(tmp_path)
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="other users can access this file"), serve(tmp_path, "0.0.0.0", path):
        pass
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ConfigurationError, match="the token has 5 bytes"), serve(tmp_path, "0.0.0.0", path):
        pass


def test_the_token_of_the_pages_and_that_of_a_session_are_not_exchangeable(tmp_path: Path) -> None:
    with administration(tmp_path, "0.0.0.0", token_in(tmp_path)) as served:
        assert served.ask("/openapi.json", {})[0] == 200
        assert served.ask("/v1/status", AUTHORIZED)[0] == 401
        trusting = Credentials("root", key=admin_kit.KEYS["root"], ca_file=served.certificate)
        with AdminClient.connect(f"penstocks://127.0.0.1:{served.port}", trusting) as client:
            session = {"Authorization": f"Bearer {client.login().token}"}
        assert served.ask("/v1/status", session)[0] == 200
        assert served.ask("/metrics", session)[0] == 401


def test_people_log_in_to_a_console_without_the_token_of_its_pages(tmp_path: Path) -> None:
    with console(tmp_path, "0.0.0.0", token_in(tmp_path)) as served:
        body = json.dumps({"name": "alice", "secret": SECRETS["alice"]})
        status, told, _ = served.ask("/api/login", {"Content-Type": "application/json"}, "POST", body)
        assert status == 200
        cookie = {"Cookie": told["Set-Cookie"].partition(";")[0]}
        assert served.ask("/api/session", cookie)[0] == 200
        assert served.ask("/api/session", AUTHORIZED)[0] == 401
        assert served.ask("/metrics", cookie)[0] == 401


@pytest.mark.parametrize(
    ("serve", "table"),
    [
        pytest.param(administration, '[[administration]]\npolicy = "policy.toml"\n', id="administration"),
        pytest.param(console, "[[console]]\n", id="console"),
    ],
)
def test_top_reads_the_pages_with_the_token_that_the_document_names(tmp_path: Path, serve: Serve, table: str) -> None:
    with serve(tmp_path, "0.0.0.0", token_in(tmp_path)) as served:
        document = tmp_path / "watched.toml"
        document.write_text(
            f'name = "trial"\n{table}host = "0.0.0.0"\nport = {served.port}\n'
            'certificate = "certificate.pem"\nprivate_key = "key.pem"\nmetrics_access = { token_file = "page.token" }\n'
        )
        (place,) = places_of_plant(Plant.load(document))
        reading = asyncio.run(fetch(place, PATIENCE_SECONDS))
        assert reading.outcome == "answered", reading.why
        (tmp_path / "page.token").write_text("a-token-of-somebody-else")
        reading = asyncio.run(fetch(place, PATIENCE_SECONDS))
        assert (reading.outcome, "the token is wrong" in reading.why) == ("garbled", True)
