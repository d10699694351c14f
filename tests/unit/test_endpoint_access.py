"""Access to the status page of a node."""

import asyncio
import contextlib
import http.client
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from certificates import make_certificate
from penstock.admin.config import AdminConfig
from penstock.base.errors import ConfigurationError
from penstock.base.metrics import Metrics
from penstock.base.status_page import CONNECTIONS_MAX, Health, StatusPage
from penstock.net.page_access import PageAccessConfig, PageTokenConfig, page_access, page_token
from penstock.net.secret import write_private
from penstock.node.console_config import ConsoleConfig
from penstock.top.core.places import Place, place_given
from penstock.top.live.fetching import fetch

TOKEN = "a-token-of-the-operator"
ELSEWHERE = ["0.0.0.0", "::", "192.0.2.1", "example.com", ""]


def access_files(directory: Path) -> PageAccessConfig:
    certificate, key = make_certificate(directory, "127.0.0.1")
    write_private(directory / "page.token", f"{TOKEN}\n".encode())
    return PageAccessConfig(
        certificate=str(certificate), private_key=str(key), token_file=str(directory / "page.token")
    )


@contextmanager
def protected_page(directory: Path) -> Iterator[tuple[StatusPage, int, PageAccessConfig]]:
    """A page on all interfaces; the tests reach it by the loopback interface."""
    files = access_files(directory)
    access = page_access(files, "0.0.0.0")
    with StatusPage(Metrics(), lambda: Health(True), host="0.0.0.0", access=access) as endpoint:
        assert endpoint.url.startswith("https://0.0.0.0:")
        yield endpoint, int(endpoint.url.rpartition(":")[2]), files


def asked(port: int, files: PageAccessConfig, *headers: tuple[str, str]) -> tuple[int, bytes, str | None]:
    tls = ssl.create_default_context(cafile=files.certificate)
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=tls, timeout=10)
    try:
        connection.putrequest("GET", "/metrics")
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("WWW-Authenticate")
    finally:
        connection.close()


@pytest.mark.parametrize("host", ELSEWHERE)
def test_a_page_beyond_this_machine_without_tls_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match="neither TLS nor a token"):
        StatusPage(Metrics(), lambda: Health(True), host=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_a_page_on_this_machine_is_served(host: str) -> None:
    assert page_access(PageAccessConfig(), host) is None
    StatusPage(Metrics(), lambda: Health(True), host=host).stop()


@pytest.mark.parametrize("host", [*ELSEWHERE, "127.0.0.1"])
@pytest.mark.parametrize("missing", ["certificate", "private_key", "token_file"])
def test_a_page_with_an_incomplete_configuration_is_refused(tmp_path: Path, host: str, missing: str) -> None:
    given = {key: "x" for key in ("certificate", "private_key", "token_file") if key != missing}
    with pytest.raises(ConfigurationError, match=rf"not configured: metrics_access\.{missing} \(") as caught:
        page_access(PageAccessConfig(**given), host)
    assert caught.value.where == "metrics_host"


def test_all_missing_keys_are_named() -> None:
    names = r"metrics_access\.certificate, metrics_access\.private_key, metrics_access\.token_file"
    with pytest.raises(ConfigurationError, match=names):
        page_access(PageAccessConfig(), "0.0.0.0")


def admin_config(**values: Any) -> AdminConfig:
    return AdminConfig(directory="state", policy="policy.toml", **values)


@pytest.mark.parametrize("configure", [admin_config, ConsoleConfig])
@pytest.mark.parametrize("host", ELSEWHERE)
def test_a_server_beyond_this_machine_needs_a_token_besides_tls(configure: Callable[..., Any], host: str) -> None:
    tls = {"certificate": "x.pem", "private_key": "x.key"}
    said = r"needs TLS and a token; not configured: metrics_access\.token_file \("
    with pytest.raises(ConfigurationError, match=said) as caught:
        configure(host=host, **tls)
    assert caught.value.where.endswith("host")
    assert configure(host=host, **tls, metrics_access=PageTokenConfig(token_file="x")).host == host


@pytest.mark.parametrize("configure", [admin_config, ConsoleConfig])
def test_a_server_on_this_machine_can_have_a_token_or_tls_too(configure: Callable[..., Any]) -> None:
    assert page_token(configure().metrics_access) is None
    assert page_token(configure(certificate="x.pem", private_key="x.key").metrics_access) is None
    with pytest.raises(ConfigurationError, match="not configured: certificate, private_key"):
        configure(metrics_access=PageTokenConfig(token_file="x"))


def test_the_token_file_of_an_administration_server_is_relative_to_its_document(tmp_path: Path) -> None:
    tls = {"certificate": "x.pem", "private_key": "x.key"}
    config = admin_config(**tls, metrics_access=PageTokenConfig(token_file="page.token")).beside(tmp_path)
    assert config.metrics_access.token_file == str(tmp_path / "page.token")
    assert admin_config().beside(tmp_path).metrics_access.token_file == ""


def test_a_token_is_not_shown(tmp_path: Path) -> None:
    access = page_access(access_files(tmp_path), "0.0.0.0")
    assert access is not None
    assert TOKEN not in repr(access)


@pytest.mark.parametrize(
    ("token", "mode", "said"),
    [
        (b"a-token-of-the-operator", 0o640, "other users can access this file"),
        (b"short", 0o600, "the token has 5 bytes"),
        (b"x" * 2_000, 0o600, "the token has 1026 bytes"),
        (b"two words are no token", 0o600, "characters"),
        (b"header\r\nInjected: yes-indeed", 0o600, "characters"),
    ],
)
def test_a_token_file_must_belong_to_its_owner_and_contain_a_token(
    tmp_path: Path, token: bytes, mode: int, said: str
) -> None:
    files = access_files(tmp_path)
    path = Path(files.token_file)
    path.write_bytes(token)
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=said) as caught:
        page_access(files, "0.0.0.0")
    assert token.decode() not in str(caught.value)


def test_only_requests_with_the_token_are_answered(tmp_path: Path) -> None:
    with protected_page(tmp_path) as (_, port, files):
        wrong = [f"{TOKEN}x", TOKEN[:-1], "", "é"]
        for value in ["", TOKEN, "Bearer", f"Basic {TOKEN}", *(f"Bearer {each}" for each in wrong)]:
            status, body, challenge = asked(port, files, ("Authorization", value))
            assert (status, challenge) == (401, "Bearer"), value
            assert b"penstock_" not in body
        assert asked(port, files)[0] == 401
        status, body, challenge = asked(port, files, ("Authorization", f"Bearer {TOKEN}"))
        assert (status, challenge) == (200, None)
        assert b"penstock_requests_refused_total{" in body
        assert b'cause="authentication"' in body
        assert TOKEN.encode() not in body


def test_a_page_with_a_token_is_not_served_without_tls(tmp_path: Path) -> None:
    with protected_page(tmp_path) as (_, port, files):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(f"GET /metrics HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
            said = b""
            with contextlib.suppress(ConnectionResetError):
                while chunk := connection.recv(4_096):
                    said += chunk
        assert b"HTTP" not in said
        assert asked(port, files, ("Authorization", f"Bearer {TOKEN}"))[0] == 200


def test_silent_clients_delay_no_other_client_and_are_bounded(tmp_path: Path) -> None:
    with protected_page(tmp_path) as (_, port, files):
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            assert asked(port, files, ("Authorization", f"Bearer {TOKEN}"))[0] == 200
        silent = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(CONNECTIONS_MAX)]
        further = socket.create_connection(("127.0.0.1", port), timeout=10)
        assert further.recv(1) == b"", "a client beyond the limit is closed at once"
        for each in [*silent, further]:
            each.close()


def test_top_reads_a_page_with_its_certificate_and_token(tmp_path: Path) -> None:
    with protected_page(tmp_path) as (_, port, files):
        given = {"ca_file": files.certificate, "token_file": files.token_file}
        reading = asyncio.run(fetch(place_given(f"https://127.0.0.1:{port}", **given)))
        assert reading.outcome == "answered", reading.why
        pinned = Place("x", "127.0.0.1", port, certificate=files.certificate, token_file=files.token_file)
        assert asyncio.run(fetch(pinned)).outcome == "answered"
        write_private(tmp_path / "other.token", b"a-token-of-somebody-else")
        given["token_file"] = str(tmp_path / "other.token")
        other = place_given(f"https://127.0.0.1:{port}", **given)
        reading = asyncio.run(fetch(other))
        assert (reading.outcome, "the token is wrong" in reading.why) == ("garbled", True)
        stranger, _ = make_certificate(tmp_path / "stranger", common_name="stranger")
        mistaken = place_given(f"https://127.0.0.1:{port}", ca_file=str(stranger), token_file=files.token_file)
        reading = asyncio.run(fetch(mistaken))
        assert (reading.outcome, "TLS" in reading.why) == ("unreachable", True)
        Path(files.token_file).chmod(0o644)
        reading = asyncio.run(fetch(pinned))
        assert (reading.outcome, "other users can access this file" in reading.why) == ("unreachable", True)


def test_an_address_with_tls_needs_both_files() -> None:
    with pytest.raises(ConfigurationError, match="needs TLS and a token"):
        place_given("https://127.0.0.1:9400", ca_file="ca.pem")
    assert place_given("127.0.0.1:9400", ca_file="ca.pem", token_file="x").token_file == ""
