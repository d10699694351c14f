"""A node's authentication keys, stored for times when the administration server is unavailable."""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from penstock.base.decoding import DECODE_ERRORS, json_decoder
from penstock.base.errors import ConfigurationError, PenstockError
from penstock.base.files import make_directory
from penstock.base.log import logger
from penstock.net.secret import read_private, replace_private
from penstock.security.authentication import is_older, scope_of
from penstock.security.brokering import Authentication
from penstock.wire.authentication import AuthenticationScope

STATE_SIZE_MAX = 16 * 1024 * 1024

log = logger("security.authentication")


class AuthenticationState:
    """The scopes that a node holds; with a `path` they are kept in a private file, so that a node that starts again
    while no server answers goes on with them. A file that cannot be used is logged, and the node starts without keys.
    Values that are older than the held ones are ignored. `on_change` is called with all scopes, in the thread that told
    and in the order of the changes; it must not call back. If it raises, the scopes before stay in use."""

    def __init__(self, path: Path | None, on_change: Callable[[list[AuthenticationScope]], None]) -> None:
        self._path = path
        self._on_change = on_change
        self._lock = threading.Lock()
        self._scopes: dict[str, Authentication] = {}
        if path is not None and path.exists():
            data = read_private(path, STATE_SIZE_MAX)
            try:
                told = json_decoder(list[Authentication]).decode(data)
                on_change(_scopes_of(told))
                self._scopes = {each.scope: each for each in told}
            except (*DECODE_ERRORS, PenstockError) as error:
                log.error(
                    "authentication_unusable",
                    path=str(path),
                    error=str(error),
                    hint="the node gets new keys from the administration server and replaces the file",
                )

    @property
    def scopes(self) -> list[AuthenticationScope]:
        with self._lock:
            return _scopes_of(self._scopes.values())

    def renew(self, told: Iterable[Authentication]) -> None:
        """Replace all scopes. A missing scope is removed, unless it is newer than these values."""
        given = {each.scope: each for each in told}
        newest = max(given.values(), key=lambda each: each.number, default=None)
        with self._lock:
            kept = {name: held for name, held in self._scopes.items() if _is_kept(held, given.get(name, newest))}
            self._replace({**given, **kept})

    def note(self, told: Authentication) -> None:
        """Update one scope."""
        with self._lock:
            if not is_older(told, self._scopes.get(told.scope)):
                self._replace({**self._scopes, told.scope: told})

    def repeat(self) -> None:
        """Call `on_change` with the current scopes, for a user that was not there at the last change."""
        with self._lock:
            self._on_change(_scopes_of(self._scopes.values()))

    def _replace(self, scopes: dict[str, Authentication]) -> None:
        if scopes == self._scopes:
            return
        self._on_change(_scopes_of(scopes.values()))
        self._scopes = scopes
        self._keep()

    def _keep(self) -> None:
        """A failed write is logged and otherwise ignored."""
        if self._path is None:
            return
        try:
            make_directory(self._path.parent)
            replace_private(self._path, msgspec.json.encode(list(self._scopes.values())))
        except (OSError, ConfigurationError) as error:
            log.error("authentication_not_kept", path=str(self._path), error=str(error))


def _scopes_of(told: Iterable[Authentication]) -> list[AuthenticationScope]:
    """The scopes, each publisher in one of them: the server changes scopes one after another, so a publisher that moves
    may be in two of them for a moment. The value with the higher number counts."""
    values = sorted(told, key=lambda each: each.number)
    scope_by_publisher = {vouched.publisher_id: each.scope for each in values for vouched in each.publishers}
    return [
        scope_of(
            msgspec.structs.replace(
                each, publishers=[one for one in each.publishers if scope_by_publisher[one.publisher_id] == each.scope]
            )
        )
        for each in values
    ]


def _is_kept(held: Authentication, told: Authentication | None) -> bool:
    return told is not None and is_older(told, held)
