"""One-time login links: one file for each open link, used once, and nothing in it that logs in."""

import os
import threading
from pathlib import Path

import pytest

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import AuthenticationError, ConfigurationError
from penstock.web.live import login_links
from penstock.web.live.login_links import DIRECTORY, LINKS_MAX, PAGE, LoginLinks

URL = "http://127.0.0.1:7430"


class Watch:
    now_ns = 1_794_779_400 * NS_PER_SECOND

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def links(tmp_path: Path, watch: Watch) -> LoginLinks:
    return LoginLinks(tmp_path / "console", watch)


def secret_of(link: str) -> str:
    assert link.startswith(f"{URL}/#login=")
    return link.partition("=")[2]


def test_a_link_logs_in_once(links: LoginLinks) -> None:
    secret = secret_of(links.issue(URL, "operations", 600))
    assert len(secret) == 64
    assert links.redeem(secret) == "operations"
    with pytest.raises(AuthenticationError, match="used before"):
        links.redeem(secret)


def test_a_link_expires(links: LoginLinks, watch: Watch) -> None:
    first, second = (secret_of(links.issue(URL, "operations", 600)) for _ in range(2))
    watch.now_ns += 599 * NS_PER_SECOND
    assert links.redeem(first) == "operations"
    watch.now_ns += NS_PER_SECOND
    with pytest.raises(AuthenticationError, match="expired"):
        links.redeem(second)


@pytest.mark.parametrize(
    "secret", ["", "0" * 64, "../../policy.toml", "\0", "é" * 64, "\ud800", "0" * 63, "A" * 64, "0" * 10_000]
)
def test_other_secrets_are_refused(links: LoginLinks, secret: str) -> None:
    links.issue(URL, "operations", 600)
    with pytest.raises(AuthenticationError):
        links.redeem(secret)


def test_the_name_of_a_file_does_not_log_in(links: LoginLinks, tmp_path: Path) -> None:
    secret = secret_of(links.issue(URL, "operations", 600))
    (path,) = (tmp_path / "console" / DIRECTORY).iterdir()
    assert secret not in path.name + path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with pytest.raises(AuthenticationError):
        links.redeem(path.name)


def test_open_links_are_bounded_and_files_that_are_none_are_removed(links: LoginLinks, tmp_path: Path) -> None:
    first = secret_of(links.issue(URL, "operations", 600))
    (tmp_path / "console" / DIRECTORY / "something").write_text("else")
    for number in range(LINKS_MAX):
        last = secret_of(links.issue(URL, "operations", 601 + number))
    assert len(list((tmp_path / "console" / DIRECTORY).iterdir())) == LINKS_MAX
    with pytest.raises(AuthenticationError):
        links.redeem(first)
    assert links.redeem(last) == "operations"


def test_a_directory_that_others_can_use_is_refused(links: LoginLinks, tmp_path: Path) -> None:
    secret = secret_of(links.issue(URL, "operations", 600))
    os.chmod(tmp_path / "console" / DIRECTORY, 0o770)
    for use in (lambda: links.redeem(secret), lambda: links.issue(URL, "operations", 600)):
        with pytest.raises(ConfigurationError, match="other users"):
            use()


def test_of_many_requests_at_once_one_logs_in(links: LoginLinks) -> None:
    secret = secret_of(links.issue(URL, "operations", 600))
    clients: list[str] = []
    start = threading.Barrier(8)

    def redeem() -> None:
        start.wait()
        try:
            clients.append(links.redeem(secret))
        except AuthenticationError:
            clients.append("")

    threads = [threading.Thread(target=redeem) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(clients) == [""] * 7 + ["operations"]


def test_a_browser_gets_the_link_in_a_private_page(
    links: LoginLinks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(login_links.webbrowser, "open", opened.append)
    link = links.issue(URL, "operations", 600)
    links.show(link)
    page = tmp_path / "console" / DIRECTORY / PAGE
    assert opened == [page.as_uri()]
    assert f"url={link}" in page.read_text()
    assert page.stat().st_mode & 0o777 == 0o600
    links.redeem(secret_of(link))
    assert not page.exists()
