"""One-time links that log in to a console. A link has its secret in the fragment of the URL, which browsers send to no
server; the page posts the secret once.

    links = LoginLinks(state_directory)
    link = links.issue("http://127.0.0.1:7430", "operations", 600.0)
    links.redeem(secret)       # "operations"; the second time, AuthenticationError

Whoever issues a link and the console that accepts it share a directory that only their user can access. It has one
file per open link: the SHA-256 of the secret is its name, client and expiry are its content. A link is used up by
removing its file, which only one request can do.
"""

import hashlib
import html
import os
import re
import stat
import time
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from penstock.base.clock import NS_PER_SECOND, random_bytes
from penstock.base.decoding import json_decoder
from penstock.base.errors import AuthenticationError, ConfigurationError
from penstock.base.files import make_directory
from penstock.net.place import is_loopback
from penstock.net.secret import read_private, replace_private, write_private
from penstock.node.console_config import ConsoleConfig
from penstock.node.plant import Plant
from penstock.security import Credentials

DIRECTORY = "login-links"
PAGE = "open.html"
"""The page that --open gives to the browser: a secret in arguments of a process would be visible to every user."""

FRAGMENT = "#login="
SECRET_SIZE = 32
LINKS_MAX = 16
"""Maximum number of open links; a further one replaces the oldest."""

FILE_SIZE_MAX = 1_024

_SECRET = re.compile(r"[0-9a-f]{64}", re.ASCII)


class OpenLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a link's file."""

    client: str
    expires_ns: int


class LoginLinks:
    """The open links of the console with this state directory. Times are those of the system clock."""

    def __init__(self, state_directory: Path, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._directory = state_directory / DIRECTORY
        self._now_ns = now_ns

    def issue(self, url: str, client: str, valid_s: float) -> str:
        """Return a link that logs in as this client, once, at the console with this URL."""
        try:
            make_directory(self._directory)
        except OSError as error:
            raise ConfigurationError(f"cannot be created: {error.strerror}", where=str(self._directory)) from None
        self._check_directory()
        self._make_room()
        secret = random_bytes(SECRET_SIZE).hex()
        expires_ns = self._now_ns() + int(valid_s * NS_PER_SECOND)
        write_private(self._path(secret), msgspec.json.encode(OpenLink(client, expires_ns)))
        return f"{url}/{FRAGMENT}{secret}"

    def redeem(self, secret: str) -> str:
        """Use up the link with this secret, and return its client. Raise AuthenticationError if there is none."""
        refusal = AuthenticationError(
            "the login link was used before, or has expired",
            hint="`penstock console --config PLANT.TOML --link` prints a new one",
        )
        if _SECRET.fullmatch(secret) is None or not self._path(secret).exists():
            raise refusal
        self._check_directory()
        path = self._path(secret)
        try:
            link = json_decoder(OpenLink).decode(read_private(path, FILE_SIZE_MAX))
            path.unlink()
            (self._directory / PAGE).unlink(missing_ok=True)
        except (OSError, ConfigurationError, msgspec.MsgspecError):  # another request was faster
            raise refusal from None
        if link.expires_ns <= self._now_ns():
            raise refusal
        return link.client

    def show(self, link: str) -> None:
        """Open the link in this machine's browser, by a page that only this user can read."""
        page = self._directory / PAGE
        target = html.escape(link, quote=True)
        replace_private(page, f'<!doctype html><meta http-equiv="refresh" content="0;url={target}">'.encode())
        webbrowser.open(page.absolute().as_uri())

    def _path(self, secret: str) -> Path:
        return self._directory / hashlib.sha256(secret.encode()).hexdigest()

    def _check_directory(self) -> None:
        status = self._directory.stat()
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise ConfigurationError(
                "other users can access the directory of login links",
                where=str(self._directory),
                hint="remove the directory; it is created again",
            )

    def _make_room(self) -> None:
        """Remove expired links and, if there are too many, the oldest ones."""
        links = sorted(self._links())
        late = [path for expires_ns, path in links if expires_ns <= self._now_ns()]
        rest = [path for expires_ns, path in links if expires_ns > self._now_ns()]
        for path in late + rest[: max(0, len(rest) - LINKS_MAX + 1)]:
            path.unlink(missing_ok=True)

    def _links(self) -> Iterator[tuple[int, Path]]:
        """Expiry and path of each link; a file that is no link has expired."""
        for path in self._directory.iterdir():
            try:
                yield json_decoder(OpenLink).decode(read_private(path, FILE_SIZE_MAX)).expires_ns, path
            except (ConfigurationError, msgspec.MsgspecError):
                yield 0, path


def issue_link(plant: Plant, config: ConsoleConfig, url: str) -> str:
    """Return a link for the console of a plant, which listens at this URL."""
    if not config.login_credentials:
        raise ConfigurationError(
            "has no login_credentials, so login links have no client",
            where=f"{plant.path}: console {config.name}",
            hint="name the credentials file of the client that login links log in",
        )
    client = Credentials.load(plant.path.parent.absolute() / config.login_credentials).client
    if config.hosts and not is_loopback(config.host):
        url = f"https://{config.hosts[0]}"  # the address may be a wildcard
    return _links_of(plant, config).issue(url, client, config.limits.link_s)


def open_console(plant: Plant, config: ConsoleConfig, url: str) -> None:
    """Open the console in this machine's browser, logged in if login links have a client."""
    if config.login_credentials:
        _links_of(plant, config).show(issue_link(plant, config, url))
    else:
        webbrowser.open(url)


def _links_of(plant: Plant, config: ConsoleConfig) -> LoginLinks:
    return LoginLinks(plant.path.parent.absolute() / config.state_directory)
