"""TokenWatch: keeps a node's token keys and revocations current.

A thread makes the blocking calls to the administration server. While no server answers, the node continues with the
keys and revocations it has.
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
"""Approximate limit in bytes of revocations that wait to be applied."""

REVOKED_SIZE = 100

UNREACHABLE = "the administration server does not answer"
ROLE_MISSING = "the administration server refuses this node's request to check tokens: its client needs the role filter"
ROLE_HINT = 'give it in the policy: roles = ["filter"]'

log = logger("security.tokens")


class Learned:
    """Token states from other nodes, merged until they are applied. The latest state counts, with all revocations of
    every state."""

    def __init__(self) -> None:
        self._latest: TokenState | None = None
        self._revoked: dict[str, Revoked] = {}
        self._size = 0

    def add(self, told: TokenState) -> list[Revoked]:
        """Add a token state. Return the revocations that exceed the limit: tokens that expire no later than these
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
        """Remove and return the merged state."""
        latest, revoked = self._latest, list(self._revoked.values())
        self._latest, self._revoked, self._size = None, {}, 0
        return None if latest is None else msgspec.structs.replace(latest, revoked=revoked)


class TokenWatch:
    """Keeps a gate current from start() to stop(). `on_revoked` is called in the watch's thread, or in the thread of
    learn() or use_learned(); `on_told` is called in the watch's thread with each new token state. For a node that
    checks packets, `authentication` is kept current too, and its lease renewed."""

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
        """True if a server answered the last request."""

        self.trouble = ""
        """The reason why no server answers, in readable form."""

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
        """Wait until tokens can be checked, at most `seconds`. Return True if they can."""
        return self.gate.is_ready or self._has_begun.wait(seconds)

    def stop(self) -> None:
        self._is_stopped.set()
        self._client.close()
        if self._thread.is_alive():
            self._thread.join()
        if self._lease is not None:
            self._lease.stop()

    def learn(self, told: TokenState) -> bool:
        """Merge the token state of another node, which applies while this node's server does not answer. Return True
        if the caller should have a thread that may wait for the disk call use_learned()."""
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
        after: int | None = None  # the position is unknown: request the whole state
        while not self._is_stopped.is_set():
            try:
                after = self._begin() if after is None else self._follow(after)
                self.is_in_touch = True
                with self._learning:
                    self._learned.take()  # the server's answer is newer
                self.trouble = self.gate.why_not = ""
            except ForbiddenError as error:
                if self.trouble != ROLE_MISSING:  # log it once, because the request is repeated
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
