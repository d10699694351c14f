"""A node and the administration server: what tokens are checked with, and what is revoked.

A thread makes the blocking calls. Nothing that is running depends on it: when no server answers, the node goes on
with the keys and revocations it knows.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.base.errors import ForbiddenError, PenstockError
from penstock.base.log import logger
from penstock.security.core.brokering import AuthenticationChanged, Revoked
from penstock.security.live.authentication_state import AuthenticationState
from penstock.security.live.client import AdminClient
from penstock.security.live.gate import STATE_SIZE_MAX, TokenGate, TokenState, is_news, split_soonest
from penstock.security.live.key_lease import EVENTS_WAIT_SECONDS, ReceivingLease

RETRY_SECONDS = 0.5
LEARNED_SIZE_MAX = STATE_SIZE_MAX
"""Of revocations that wait to be used; about."""

REVOKED_SIZE = 100

UNREACHABLE = "the administration server does not answer"
ROLE_MISSING = "the administration server does not let this node check tokens: its client needs the role filter"
ROLE_HINT = 'give it in the policy: roles = ["filter"]'

log = logger("security.tokens")


class Learned:
    """What another node says that tokens are checked with, put together until it is used. However it comes, the latest
    counts, and all that is revoked."""

    def __init__(self) -> None:
        self._latest: TokenState | None = None
        self._revoked: dict[str, Revoked] = {}
        self._size = 0

    def add(self, told: TokenState) -> list[Revoked]:
        """Add a token state. Return the revocations for which there is no room: tokens that expire no later than these
        are refused instead."""
        latest = self._latest or told
        refused_through_ns = max(latest.refused_through_ns, told.refused_through_ns)
        if told.age > latest.age:
            latest = told
        self._latest = msgspec.structs.replace(latest, revoked=[], refused_through_ns=refused_through_ns)
        self._put([each for each in told.revoked if is_news(each, self._revoked)])
        dropped: list[Revoked] = []
        while self._size > LEARNED_SIZE_MAX and self._revoked:
            whole = msgspec.structs.replace(self._latest, revoked=list(self._revoked.values()))
            self._latest, gone = split_soonest(whole, len(whole.revoked) // 2)
            self._revoked, self._size = {}, 0
            self._put(self._latest.revoked)
            dropped += gone
        return dropped

    def _put(self, revoked: list[Revoked]) -> None:
        self._revoked |= {each.subscription_id: each for each in revoked}
        self._size += sum(
            REVOKED_SIZE + len(each.subscription_id) + len(each.client) + len(each.reason) for each in revoked
        )

    def take(self) -> TokenState | None:
        """All of it; it waits no more."""
        latest, revoked = self._latest, list(self._revoked.values())
        self._latest, self._revoked, self._size = None, {}, 0
        return None if latest is None else msgspec.structs.replace(latest, revoked=revoked)


class TokenWatch:
    """Keeps a gate up to date from start() to stop(). `on_revoked` is called in its thread, or in that of
    learn() or use_learned(); `on_told` in its thread, with what tokens are checked with, when the server has said
    something about it. `authentication` is kept up to date as well, and its lease renewed, for a node that checks
    packets."""

    def __init__(
        self,
        client: AdminClient,
        path: Path | None,
        on_revoked: Callable[[Revoked], None],
        on_told: Callable[[TokenState], None] | None = None,
        *,
        authentication: AuthenticationState | None = None,
    ) -> None:
        self.gate = TokenGate(path)
        self.is_in_touch = False
        """Whether a server told what was asked for when it was last asked."""

        self.trouble = ""
        """Why not, for people."""

        self._client = client
        self._on_revoked = on_revoked
        self._on_told = on_told
        self._authentication = authentication
        self._lease: ReceivingLease | None = None if authentication is None else authentication.lease
        self._learned = Learned()
        self._learning = threading.Lock()
        self._is_use_due = False
        self._is_stopped = threading.Event()
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-tokens", daemon=True)

    def start(self) -> None:
        if self._lease is not None:
            self._lease.start()
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Until tokens can be checked, but not for longer than this: whether they can."""
        return self.gate.is_ready or self._has_begun.wait(seconds)

    def stop(self) -> None:
        self._is_stopped.set()
        self._client.close()
        if self._thread.is_alive():
            self._thread.join()
        if self._lease is not None:
            self._lease.stop()

    def learn(self, told: TokenState) -> bool:
        """What another node has from its server: it counts while this one's does not answer. Whether use_learned() is
        to be called, by a thread that may wait for the disk; not if one is about to."""
        with self._learning:
            dropped = self._learned.add(told)
            is_use_due = not self.is_in_touch and not self._is_use_due
            self._is_use_due |= is_use_due
        for each in dropped:
            self._on_revoked(each)
        return is_use_due

    def use_learned(self) -> None:
        with self._learning:
            self._is_use_due = False
            told = self._learned.take()
        if told is None:
            return
        news = self.gate.learn(told, time.time_ns())
        self._has_begun.set()
        for each in news:
            self._on_revoked(each)

    def _watch(self) -> None:
        after: int | None = None  # not known: everything is to be asked for
        while not self._is_stopped.is_set():
            try:
                after = self._begin() if after is None else self._follow(after)
                self.is_in_touch = True
                with self._learning:
                    self._learned.take()  # what the server says is newer
                self.trouble = self.gate.why_not = ""
            except ForbiddenError as error:
                if self.trouble != ROLE_MISSING:  # once: it is asked again and again
                    log.error("verification_refused", error=str(error), hint=ROLE_HINT)
                self._note_trouble(ROLE_MISSING)
            except PenstockError as error:
                log.debug("server_unreachable", code=error.code, error=str(error))
                self._note_trouble(UNREACHABLE)

    def _note_trouble(self, trouble: str) -> None:
        self.trouble = self.gate.why_not = trouble
        self.is_in_touch = False
        self.use_learned()
        self._is_stopped.wait(RETRY_SECONDS)

    def _begin(self) -> int:
        told = self._client.verification()
        self.gate.renew(told)
        self._has_begun.set()
        for each in told.revoked:
            self._on_revoked(each)
        self._tell()
        if self._authentication is not None:
            asked_ns = self._asked_ns()
            answer = self._client.authentication()
            self._authentication.renew(answer.scopes)
            self._authentication.note_answer(asked_ns, answer.key_lease_s)
        return told.events_after

    def _follow(self, after: int) -> int | None:
        asked_ns = self._asked_ns()
        wait_s = EVENTS_WAIT_SECONDS if self._lease is None else self._lease.events_wait_s
        answer = self._client.events(after, wait_s=wait_s)
        for event in answer.events:
            self.gate.note(event.body)
            if isinstance(event.body, Revoked):
                self._on_revoked(event.body)
            elif isinstance(event.body, AuthenticationChanged) and self._authentication is not None:
                self._authentication.note(event.body.authentication)
        if answer.events:
            self._tell()
        self.gate.forget_expired(time.time_ns())
        if not answer.is_complete:
            return None
        if self._authentication is not None:
            self._authentication.note_answer(asked_ns, answer.key_lease_s)
        return answer.next_after

    def _asked_ns(self) -> int:
        return 0 if self._lease is None else self._lease.now_ns()

    def _tell(self) -> None:
        if self._on_told is not None and self.gate.state is not None:
            self._on_told(self.gate.state)
