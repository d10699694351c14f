"""Access to a node's pages from other machines: TLS and a bearer token, from configured files."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError
from penstock.base.metrics import Metrics
from penstock.base.status_page import BearerToken, Health, PageAccess, StatusPage
from penstock.net.config import TlsConfig
from penstock.net.place import is_loopback
from penstock.net.secret import SECRET_SIZE_MIN, read_private
from penstock.net.tls import server_context

TOKEN_SIZE_MAX = 1_024

_TOKEN = re.compile(rb"[A-Za-z0-9\-._~+/]+=*")


class PageAccessConfig(Config, frozen=True):
    """Required if `metrics_host` is not a loopback address. Give all three keys, or none."""

    certificate: str = ""
    private_key: str = ""
    """PEM files for TLS."""

    token_file: str = ""
    """The bearer token that every request needs; a file that only its owner can read."""


class PageTokenConfig(Config, frozen=True):
    """Required for the pages of a server with its own TLS that listens beyond the loopback address."""

    token_file: str = ""
    """The bearer token that every request for a page needs; a file that only its owner can read."""


class PageConfig(Protocol):
    """The part of a node's configuration that describes its page."""

    @property
    def metrics_host(self) -> str: ...

    @property
    def metrics_port(self) -> int: ...

    @property
    def metrics_access(self) -> PageAccessConfig: ...


def page_of(
    config: PageConfig, metrics: Metrics, health: Callable[[], Health], status: Callable[[], object]
) -> StatusPage:
    """Create the page of a node from its configuration, not started yet."""
    host = config.metrics_host
    access = page_access(config.metrics_access, host)
    return StatusPage(metrics, health, host=host, port=config.metrics_port, status=status, access=access)


def page_access(config: PageAccessConfig, host: str) -> PageAccess | None:
    """TLS and the token of a page at `host`; None for a page on this machine without either."""
    keys = {
        "metrics_access.certificate": config.certificate,
        "metrics_access.private_key": config.private_key,
        "metrics_access.token_file": config.token_file,
    }
    if not any(keys.values()) and is_loopback(host):
        return None
    _check_complete(keys, host, where="metrics_host")
    context = server_context(TlsConfig(certificate=config.certificate, private_key=config.private_key, ca_file=""))
    assert context is not None
    return PageAccess(context, BearerToken(read_token(Path(config.token_file))))


def check_page_token(config: PageTokenConfig, host: str, *, certificate: str, private_key: str, where: str) -> None:
    """Raise if the pages of a server at `host`, with these TLS files, need TLS or a token that is missing."""
    if config.token_file or not is_loopback(host):
        keys = {
            "certificate": certificate,
            "private_key": private_key,
            "metrics_access.token_file": config.token_file,
        }
        _check_complete(keys, host, where)


def page_token(config: PageTokenConfig) -> BearerToken | None:
    """The token of the pages of a server with its own TLS; None for pages without a token."""
    return BearerToken(read_token(Path(config.token_file))) if config.token_file else None


def _check_complete(keys: Mapping[str, str], host: str, where: str) -> None:
    missing = [key for key, value in keys.items() if not value]
    if missing:
        raise ConfigurationError(
            f"a page at {host!r} needs TLS and a token; not configured: {', '.join(missing)}",
            where=where,
            hint="configure these keys, or serve the page at 127.0.0.1",
        )


def read_token(path: Path) -> bytes:
    """Read a bearer token from a file that only its owner can read, without surrounding white space."""
    token = read_private(path, TOKEN_SIZE_MAX + 2).strip()
    if not SECRET_SIZE_MIN <= len(token) <= TOKEN_SIZE_MAX:
        raise ConfigurationError(
            f"the token has {len(token)} bytes",
            where=str(path),
            hint=f"{SECRET_SIZE_MIN} to {TOKEN_SIZE_MAX} are accepted; `openssl rand -hex 32` makes a good one",
        )
    if _TOKEN.fullmatch(token) is None:
        raise ConfigurationError(
            "the token has characters that an HTTP header cannot carry",
            where=str(path),
            hint="use letters, digits and -._~+/ only; `openssl rand -hex 32` makes a good one",
        )
    return token
