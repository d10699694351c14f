"""A node's authentication keys, stored for times when the administration server is unavailable."""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.decoding import DECODE_ERRORS, json_decoder
from penstock.base.errors import ConfigurationError, PenstockError
from penstock.base.files import make_directory
from penstock.base.log import logger
from penstock.journal.live.files import boot_id
from penstock.net.secret import read_private, replace_private
from penstock.security.core.authentication import is_older, is_publisher_scope, scope_of
from penstock.security.core.brokering import Authentication
from penstock.security.live.key_lease import ReceivingLease
from penstock.wire.authentication import AuthenticationScope

STATE_SIZE_MAX = 16 * 1024 * 1024
STORED_PART = 0.1
"""Share of the lease after which a renewal is written to the file. A restart may shorten the lease by this share."""
UNKNOWN_BOOT = bytes(16)
"""The boot id if the system does not provide one."""

log = logger("security.authentication")


class _Stored(msgspec.Struct, frozen=True):
    """The file. The lease is measured with the boot-time clock, which cannot be set back, but is not comparable
    across reboots."""

    scopes: list[Authentication]
    boot_id: bytes = b""
    heard_ns: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Time of the last request that a server answered; 0 for a node whose keys have no lease."""
    lease_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 0.0


class AuthenticationState:
    """The scopes of a node. With a `path`, they are stored in a private file, so that a restarted node has keys
    while no server answers. The `lease` continues too, unless the machine was rebooted; after a reboot, the lease
    begins with the first answer of a server. An unusable file is logged, and the node starts without keys. Older
    values than the current ones are ignored. `on_change` is called with all scopes, in the thread of the change and
    in the order of the changes; it must not call back. If it raises, the previous scopes stay in use."""

    def __init__(
        self,
        path: Path | None,
        on_change: Callable[[list[AuthenticationScope]], None],
        lease: ReceivingLease | None = None,
    ) -> None:
        self.lease = lease
        self._path = path
        self._heard_ns = self._stored_ns = 0
        self._lease_s = 0.0
        self._on_change = on_change
        self._lock = threading.Lock()
        self._scopes: dict[str, Authentication] = {}
        if path is not None and path.exists():
            data = read_private(path, STATE_SIZE_MAX)
            try:
                stored = _decode(data)
                on_change(_scopes_of(stored.scopes))
                self._scopes = {each.scope: each for each in stored.scopes}
                self._resume(stored)
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
        """Replace one scope with a newer value."""
        with self._lock:
            if not is_older(told, self._scopes.get(told.scope)):
                scopes = {**self._scopes, told.scope: told}
                if not told.keys and is_publisher_scope(told.scope):
                    del scopes[told.scope]  # the stream ended, and its name does not return
                self._replace(scopes)

    def note_answer(self, asked_ns: int, lease_s: float) -> None:
        """Renew the lease: the current values come from a server that answered a request sent at `asked_ns`."""
        if self.lease is None:
            return
        self.lease.renew(asked_ns, lease_s)
        with self._lock:
            self._heard_ns, self._lease_s = max(self._heard_ns, asked_ns), lease_s
            if self._heard_ns - self._stored_ns >= STORED_PART * lease_s * NS_PER_SECOND:
                self._keep()

    def _resume(self, stored: _Stored) -> None:
        """Continue the lease of the node's previous run."""
        if self.lease is None or stored.boot_id != boot_id() or stored.boot_id == UNKNOWN_BOOT:
            return
        if 0 < stored.heard_ns <= self.lease.now_ns():
            self._heard_ns, self._lease_s = stored.heard_ns, stored.lease_s
            self.lease.renew(stored.heard_ns, stored.lease_s)

    def repeat(self) -> None:
        """Call `on_change` with the current scopes, for a user that was added after the last change."""
        with self._lock:
            self._on_change(_scopes_of(self._scopes.values()))

    def _replace(self, scopes: dict[str, Authentication]) -> None:
        if scopes == self._scopes:
            return
        self._on_change(_scopes_of(scopes.values()))
        self._scopes = scopes
        self._keep()

    def _keep(self) -> None:
        """Write the scopes to the file. A failed write is logged and otherwise ignored."""
        if self._path is None:
            return
        try:
            make_directory(self._path.parent)
            stored = _Stored(list(self._scopes.values()), boot_id(), self._heard_ns, self._lease_s)
            replace_private(self._path, msgspec.json.encode(stored))
            self._stored_ns = self._heard_ns
        except (OSError, ConfigurationError) as error:
            log.error("authentication_not_kept", path=str(self._path), error=str(error))


def _decode(data: bytes) -> _Stored:
    if data.startswith(b"["):  # written by an earlier version, without a lease
        return _Stored(json_decoder(list[Authentication]).decode(data))
    return json_decoder(_Stored).decode(data)


def _scopes_of(told: Iterable[Authentication]) -> list[AuthenticationScope]:
    """Return the scopes with each publisher in only one of them: the server changes scopes one after another, so a
    publisher that moves may be in two of them for a moment. The value with the higher number counts."""
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
