"""What packets are authenticated with: keys as the administration server issues them, kept for when it is away.

    tag key    HKDF-SHA256(key, info = "penstock tag 1"), 16 bytes: the key of SipHash (penstock.wire.authentication)

A scope is a feed, or PUBLISHERS for the publishers that clients have besides. Its keys go to its publishers, to filter
modules and to receivers that may have its multicast. All of them have the same keys: who may receive a scope could also
forge its packets.
"""

import threading
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.base.decoding import DECODE_ERRORS, json_decoder
from penstock.base.errors import ConfigurationError, PenstockError
from penstock.base.log import logger
from penstock.net.secret import read_private, replace_private
from penstock.security.brokering import Authentication
from penstock.security.sealing import StreamKey
from penstock.wire.authentication import KEY_SIZE, AuthenticationKey, AuthenticationScope, VouchedPublisher

PUBLISHERS = "@publishers"
"""The scope of publishers that belong to no feed; no feed has such a name."""

STATE_SIZE_MAX = 16 * 1024 * 1024

log = logger("security.authentication")


@lru_cache(maxsize=4_096)
def tag_key(key: StreamKey) -> AuthenticationKey:
    """The key that trailers are made with."""
    derived = HKDF(SHA256(), KEY_SIZE, salt=None, info=b"penstock tag 1").derive(key.key)
    return AuthenticationKey(key.key_id, derived)


def scope_of(told: Authentication) -> AuthenticationScope:
    """What the server told, for penstock.wire.Authenticator."""
    publishers = {each.publisher_id: each for each in told.publishers}
    return AuthenticationScope(
        told.scope,
        tuple(tag_key(key) for key in {each.key_id: each for each in told.keys}.values()),
        told.active_key_id,
        tuple(VouchedPublisher(each.publisher_id, each.epoch_first, each.epoch_last) for each in publishers.values()),
    )


class AuthenticationState:
    """The scopes that a node holds; with a `path` they are kept in a private file, so that a node that starts again
    while no server answers goes on with them. `on_change` is called with all scopes, in the thread that told."""

    def __init__(self, path: Path | None, on_change: Callable[[list[AuthenticationScope]], None]) -> None:
        self._path = path
        self._on_change = on_change
        self._lock = threading.Lock()
        self._scopes: dict[str, Authentication] = {}
        if path is not None and path.exists():
            try:
                told = json_decoder(list[Authentication]).decode(read_private(path, STATE_SIZE_MAX))
                self._scopes = {each.scope: each for each in told}
                on_change([scope_of(each) for each in told])
            except (*DECODE_ERRORS, PenstockError) as error:
                raise ConfigurationError(f"is no state of authentication: {error}", where=str(path)) from None

    @property
    def scopes(self) -> list[AuthenticationScope]:
        with self._lock:
            return [scope_of(each) for each in self._scopes.values()]

    def renew(self, told: Iterable[Authentication]) -> None:
        """All scopes anew."""
        self._replace({each.scope: each for each in told})

    def note(self, told: Authentication) -> None:
        """One scope as it is now."""
        with self._lock:
            scopes = {**self._scopes, told.scope: told}
        self._replace(scopes)

    def _replace(self, scopes: dict[str, Authentication]) -> None:
        with self._lock:
            if scopes == self._scopes:
                return
            self._scopes = scopes
            self._keep()
        self._on_change(self.scopes)

    def _keep(self) -> None:
        """A disk that does not take it is told of, and stops nothing."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_private(self._path, msgspec.json.encode(list(self._scopes.values())))
        except (OSError, ConfigurationError) as error:
            log.error("authentication_not_kept", path=str(self._path), error=str(error))
