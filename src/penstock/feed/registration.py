"""The adapter and the administration server: registration, heartbeats, and what the server has to say meanwhile.

Two threads make the blocking calls. Nothing that is running depends on them: when no server answers, the adapter goes
on with the token keys, revocations and stream keys it knows, and registers again when one does, or when another server
has taken over. What tokens are checked with is kept in a file, so that this is true after a restart as well.
"""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from penstock.base.errors import ConfigurationError, NotFoundError, PenstockError, TokenError
from penstock.base.log import logger
from penstock.net.secret import read_private, replace_private
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
STATE_SIZE_MAX = 64 * 1024 * 1024

log = logger("feed.registration")


class TokenState(msgspec.Struct, frozen=True):
    """What tokens are checked with, as it is kept on the disk (JSON)."""

    token_keys: list[str]
    generation: int
    generation_since_ns: int
    revoked: list[Revoked]


class TokenGate:
    """Checks tokens by what the administration server last told, also when it does not answer any more, and after a
    restart: keys, generation and revocations are one file, replaced as a whole."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._state: TokenState | None = None
        self._verifier: TokenVerifier | None = None
        if path is not None and path.exists():
            data = read_private(path, STATE_SIZE_MAX)
            try:
                self._use(msgspec.json.decode(data, type=TokenState))
            except (msgspec.MsgspecError, UnicodeDecodeError, PenstockError) as error:
                raise ConfigurationError(f"is no state of tokens: {error}", where=str(path)) from None

    def verify(self, text: str, now_ns: int) -> Token:
        if self._verifier is None:
            raise TokenError("the adapter has not heard of the administration server yet", hint="try again soon")
        return self._verifier.verify(text, now_ns)

    def renew(self, registered: Registered) -> None:
        """All anew; but a server that was replaced, and does not know it, does not take the generation back."""
        generation, since_ns = registered.generation, registered.generation_since_ns
        with self._lock:
            before = self._state
            if before is not None and before.token_keys == registered.token_keys and before.generation > generation:
                generation, since_ns = before.generation, before.generation_since_ns
            self._keep(TokenState(registered.token_keys, generation, since_ns, registered.revoked))

    def note(self, event: EventBody) -> None:
        with self._lock:
            state = self._state
            if state is None:
                return
            if isinstance(event, Revoked):
                others = [each for each in state.revoked if each.subscription_id != event.subscription_id]
                self._keep(msgspec.structs.replace(state, revoked=[*others, event]))
            elif isinstance(event, GenerationChanged) and event.generation > state.generation:
                self._keep(
                    msgspec.structs.replace(state, generation=event.generation, generation_since_ns=event.since_ns)
                )

    def forget_expired(self, now_ns: int) -> None:
        """Revocations of tokens that are refused by their age need not be known any more."""
        with self._lock:
            if self._verifier is None or self._state is None:
                return
            self._verifier.forget_expired(now_ns)
            if self._verifier.revoked_count < len(self._state.revoked):
                revoked = sorted(self._state.revoked, key=lambda each: each.until_ns)
                gone = len(revoked) - self._verifier.revoked_count
                self._keep(msgspec.structs.replace(self._state, revoked=revoked[gone:]))

    def _use(self, state: TokenState) -> None:
        verifier = TokenVerifier([PublicKey.parse(text) for text in state.token_keys])
        verifier.note_generation(state.generation, state.generation_since_ns)
        for each in state.revoked:
            verifier.revoke(each.subscription_id, each.reason, each.until_ns)
        self._state, self._verifier = state, verifier

    def _keep(self, state: TokenState) -> None:
        """In use at once; a disk that does not take it is told of, and stops nothing."""
        self._use(state)
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_private(self._path, msgspec.json.encode(state))
        except (OSError, ConfigurationError) as error:
            log.error("token_state_not_kept", path=str(self._path), error=str(error))


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
                answer = self._client.heartbeat(self._heartbeat())
                if answer.generation != registered.generation:
                    log.warning("another_server", generation=answer.generation)
                    self._forget()  # what it knows may differ from what the one before told
                    wait_seconds = RETRY_SECONDS
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
