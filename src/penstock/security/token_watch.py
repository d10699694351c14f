"""A node and the administration server: what tokens are checked with, and what is revoked.

A thread makes the blocking calls. Nothing that is running depends on it: when no server answers, the node goes on
with the keys and revocations it knows.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from penstock.base.errors import ForbiddenError, PenstockError
from penstock.base.log import logger
from penstock.security.brokering import Revoked
from penstock.security.client import AdminClient
from penstock.security.gate import TokenGate, TokenState

RETRY_SECONDS = 0.5
EVENTS_WAIT_SECONDS = 10.0
LEARNED_MAX = 64
UNREACHABLE = "the administration server does not answer"
ROLE_MISSING = "the administration server does not let this node check tokens: its client needs the role filter"
ROLE_HINT = 'give it in the policy: roles = ["filter"]'

log = logger("security.tokens")


class TokenWatch:
    """Keeps a gate up to date from start() to stop(). `on_revoked` is called in its thread, or in that of
    learn(); `on_told` in its thread, with what tokens are checked with, when the server has said something about it."""

    def __init__(
        self,
        client: AdminClient,
        path: Path | None,
        on_revoked: Callable[[Revoked], None],
        on_told: Callable[[TokenState], None] | None = None,
    ) -> None:
        self.gate = TokenGate(path)
        self.is_in_touch = False
        """Whether a server told what was asked for when it was last asked."""

        self.trouble = ""
        """Why not, for people."""

        self._client = client
        self._on_revoked = on_revoked
        self._on_told = on_told
        self._learned: deque[TokenState] = deque(maxlen=LEARNED_MAX)
        self._learning = threading.Lock()
        self._is_stopped = threading.Event()
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-tokens", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Until tokens can be checked, but not for longer than this: whether they can."""
        return self.gate.is_ready or self._has_begun.wait(seconds)

    def stop(self) -> None:
        self._is_stopped.set()
        self._client.close()
        if self._thread.is_alive():
            self._thread.join()

    def learn(self, told: TokenState) -> None:
        """What another node has from its server: it counts while this one's does not answer."""
        with self._learning:
            self._learned.append(told)
        if not self.is_in_touch:
            self._use_learned()

    def _use_learned(self) -> None:
        with self._learning:
            while self._learned:
                told = self._learned.popleft()
                self.gate.learn(told)
                self._has_begun.set()
                for each in told.revoked:
                    self._on_revoked(each)

    def _watch(self) -> None:
        after: int | None = None  # not known: everything is to be asked for
        while not self._is_stopped.is_set():
            try:
                after = self._begin() if after is None else self._follow(after)
                self.is_in_touch = True
                with self._learning:
                    self._learned.clear()  # what the server says is newer
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
        self._use_learned()
        self._is_stopped.wait(RETRY_SECONDS)

    def _begin(self) -> int:
        told = self._client.verification()
        self.gate.renew(told)
        self._has_begun.set()
        for each in told.revoked:
            self._on_revoked(each)
        self._tell()
        return told.events_after

    def _follow(self, after: int) -> int | None:
        answer = self._client.events(after, wait_s=EVENTS_WAIT_SECONDS)
        for event in answer.events:
            self.gate.note(event.body)
            if isinstance(event.body, Revoked):
                self._on_revoked(event.body)
        if answer.events:
            self._tell()
        self.gate.forget_expired(time.time_ns())
        return answer.next_after if answer.is_complete else None

    def _tell(self) -> None:
        if self._on_told is not None and self.gate.state is not None:
            self._on_told(self.gate.state)
