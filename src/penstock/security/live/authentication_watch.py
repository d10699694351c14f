"""Authentication keys for a program that receives packets but is not a node: fetched, then updated by events."""

import threading
from collections.abc import Callable

from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.security.core.brokering import AuthenticationChanged
from penstock.security.live.authentication_state import AuthenticationState
from penstock.security.live.client import AdminClient
from penstock.security.live.key_lease import ReceivingLease
from penstock.wire import AuthenticationScope

RETRY_SECONDS = 0.5

log = logger("security.authentication")


class AuthenticationWatch:
    """Works from its creation to close(). The first keys are fetched at once, and errors are raised. While no server
    answers later, the last keys stay in use until the lease ends. `on_change` is called with all scopes, first in
    the caller's thread."""

    def __init__(
        self, client: AdminClient, on_change: Callable[[list[AuthenticationScope]], None], lease: ReceivingLease
    ) -> None:
        self._client = client
        self._lease = lease
        self._state = AuthenticationState(None, on_change, lease)
        self._is_stopped = threading.Event()
        after = self._begin()
        lease.start()
        self._thread = threading.Thread(target=self._watch, args=(after,), name="penstock-authentication", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_stopped.set()
        self._client.close()
        self._thread.join()
        self._lease.stop()

    def __enter__(self) -> "AuthenticationWatch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> int:
        asked_ns = self._lease.now_ns()
        answer = self._client.authentication()
        self._state.renew(answer.scopes)
        self._state.note_answer(asked_ns, answer.key_lease_s)
        return answer.events_after

    def _watch(self, after: int | None) -> None:
        while not self._is_stopped.is_set():
            try:
                after = self._begin() if after is None else self._follow(after)
            except PenstockError as error:
                log.debug("server_unreachable", code=error.code, error=str(error))
                self._is_stopped.wait(RETRY_SECONDS)

    def _follow(self, after: int) -> int | None:
        asked_ns = self._lease.now_ns()
        answer = self._client.events(after, wait_s=self._lease.events_wait_s)
        for event in answer.events:
            if isinstance(event.body, AuthenticationChanged):
                self._state.note(event.body.authentication)
        if not answer.is_complete:
            return None
        self._state.note_answer(asked_ns, answer.key_lease_s)
        return answer.next_after
