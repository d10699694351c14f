"""The adapter and the administration server: registration, heartbeats, and what the server has to say meanwhile.

Two threads make the blocking calls. Nothing that is running depends on them: when no server answers, the adapter goes
on with the token keys, revocations and stream keys it knows, and registers again when one does. The keys that tokens
are checked with are kept in a file, so that this is true after a restart as well.
"""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from penstock.base.errors import ConfigurationError, NotFoundError, PenstockError, TokenError
from penstock.base.log import logger
from penstock.security import PublicKey, Token, TokenVerifier
from penstock.security.brokering import (
    AdapterHeartbeat,
    AdapterRegistration,
    EventBody,
    GenerationChanged,
    Registered,
    Revoked,
)
from penstock.security.client import AdminClient

RETRY_SECONDS = 0.5
EVENTS_WAIT_SECONDS = 10.0

log = logger("feed.registration")


class TokenGate:
    """Checks tokens by what the administration server last told, also when it does not answer any more."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._verifier: TokenVerifier | None = None
        if path is not None and path.exists():
            try:
                keys = [PublicKey.parse(line) for line in path.read_text().split()]
            except (OSError, UnicodeDecodeError, PenstockError) as error:
                raise ConfigurationError(f"holds no token keys: {error}", where=str(path)) from None
            self._verifier = TokenVerifier(keys)

    def verify(self, text: str, now_ns: int) -> Token:
        if self._verifier is None:
            raise TokenError("the adapter has not heard of the administration server yet", hint="try again soon")
        return self._verifier.verify(text, now_ns)

    def renew(self, registered: Registered) -> None:
        verifier = TokenVerifier([PublicKey.parse(text) for text in registered.token_keys])
        verifier.note_generation(registered.generation, registered.generation_since_ns)
        for each in registered.revoked:
            verifier.revoke(each.subscription_id, each.reason, each.until_ns)
        self._verifier = verifier
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text("\n".join(registered.token_keys) + "\n")

    def note(self, event: EventBody) -> None:
        if self._verifier is None:
            return
        if isinstance(event, Revoked):
            self._verifier.revoke(event.subscription_id, event.reason, event.until_ns)
        elif isinstance(event, GenerationChanged):
            self._verifier.note_generation(event.generation, event.since_ns)


class Registration:
    """Keeps the adapter registered. `on_registered` and `on_events` are called in its threads."""

    def __init__(
        self,
        client: AdminClient,
        describe: Callable[[], AdapterRegistration],
        heartbeat: Callable[[], AdapterHeartbeat],
        on_registered: Callable[[Registered], None],
        on_events: Callable[[Iterable[EventBody]], None],
    ) -> None:
        self._client = client
        self._describe = describe
        self._heartbeat = heartbeat
        self._on_registered = on_registered
        self._on_events = on_events
        self._is_stopped = threading.Event()
        self._wants_beat = threading.Event()
        self._lock = threading.Lock()
        self._registered: Registered | None = None
        self._threads = [
            threading.Thread(target=run, name="penstock-registration", daemon=True)
            for run in (self._beat, self._listen)
        ]

    @property
    def is_registered(self) -> bool:
        return self._registered is not None

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_stopped.set()
        self._wants_beat.set()
        self._client.close()
        for thread in self._threads:
            thread.join()

    def tell_soon(self) -> None:
        """Something in the heartbeat has changed: say it now."""
        self._wants_beat.set()

    def _beat(self) -> None:
        while not self._is_stopped.is_set():
            wait_seconds = RETRY_SECONDS
            try:
                registered = self._register()
                wait_seconds = registered.heartbeat_s
                self._client.heartbeat(self._heartbeat())
            except NotFoundError:
                self._forget()  # the server does not know us any more
            except PenstockError as error:
                log.warning("server_unreachable", code=error.code, error=str(error))
                wait_seconds = RETRY_SECONDS
            self._wants_beat.wait(wait_seconds)
            self._wants_beat.clear()

    def _register(self) -> Registered:
        with self._lock:
            if self._registered is None:
                registered = self._client.register(self._describe())
                self._on_registered(registered)
                self._registered = registered
                log.info("registered", generation=registered.generation, subscriptions=len(registered.subscriptions))
            return self._registered

    def _forget(self) -> None:
        with self._lock:
            self._registered = None

    def _listen(self) -> None:
        current: Registered | None = None
        after = 0
        while not self._is_stopped.is_set():
            registered = self._registered
            if registered is None:
                self._is_stopped.wait(RETRY_SECONDS / 10)
                continue
            if registered is not current:
                current, after = registered, registered.events_after
            try:
                answer = self._client.events(after, wait_s=EVENTS_WAIT_SECONDS)
            except PenstockError as error:
                log.debug("no_events", code=error.code, error=str(error))
                self._is_stopped.wait(RETRY_SECONDS)
                continue
            if not answer.is_complete:
                self._forget()  # something was missed: the whole state comes with a registration
                self._wants_beat.set()
            self._on_events([event.body for event in answer.events])
            after = answer.next_after
