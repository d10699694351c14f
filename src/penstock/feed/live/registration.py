"""The adapter's registration at the administration server: registration, heartbeats, and events.

Two threads make the blocking calls. While no server answers, the adapter continues with the token keys and revocations
it has, seals with its stream key and answers repair requests until its leases end (security/live/key_lease.py), and
registers again when a server answers, or when another server has taken over. The token state is stored
(security/live/gate.py), also across restarts.
"""

import threading
from collections.abc import Callable

from penstock.base.errors import NotFoundError, PenstockError
from penstock.base.log import logger
from penstock.security.core.brokering import AdapterHeartbeat, AdapterRegistration, Events, HeartbeatAnswer, Registered
from penstock.security.live.client import AdminClient
from penstock.security.live.key_lease import EVENTS_WAIT_SECONDS

RETRY_SECONDS = 0.5

log = logger("feed.registration")


class Registration:
    """Keeps the adapter registered. `on_registered`, `on_heartbeat` and `on_events` are called in its threads, with
    the time of `now_ns` before the request was sent. Requests for events wait for `events_wait_s` at most."""

    def __init__(
        self,
        client: AdminClient,
        describe: Callable[[], AdapterRegistration],
        heartbeat: Callable[[], AdapterHeartbeat],
        on_registered: Callable[[Registered, int], None],
        on_heartbeat: Callable[[HeartbeatAnswer, int], None],
        on_events: Callable[[Events, int], None],
        *,
        now_ns: Callable[[], int],
        events_wait_s: Callable[[], float] = lambda: EVENTS_WAIT_SECONDS,
    ) -> None:
        self._client = client
        self._describe = describe
        self._heartbeat = heartbeat
        self._on_registered = on_registered
        self._on_heartbeat = on_heartbeat
        self._now_ns = now_ns
        self._events_wait_s = events_wait_s
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
            if thread.is_alive():
                thread.join()

    def heartbeat_soon(self) -> None:
        """Send a heartbeat now, because its content has changed."""
        self._wants_beat.set()

    def register_again(self) -> None:
        """State from the server is missing: request all of it again."""
        self._forget()
        self._wants_beat.set()

    def _beat(self) -> None:
        while not self._is_stopped.is_set():
            wait_seconds = RETRY_SECONDS
            try:
                registered = self._register()
                wait_seconds = registered.heartbeat_s
                asked_ns = self._now_ns()
                answer = self._client.heartbeat(self._heartbeat())
                if answer.generation != registered.generation:
                    log.warning("another_server", generation=answer.generation)
                    self._forget()  # its state may differ from that of the previous server
                    wait_seconds = RETRY_SECONDS
                else:
                    self._on_heartbeat(answer, asked_ns)
            except NotFoundError:
                self._forget()  # the server has no registration of this adapter any more
            except PenstockError as error:
                log.warning("server_unreachable", code=error.code, error=str(error))
                wait_seconds = RETRY_SECONDS
            self._wants_beat.wait(wait_seconds)
            self._wants_beat.clear()

    def _register(self) -> Registered:
        with self._lock:
            if self._registered is None:
                asked_ns = self._now_ns()
                registered = self._client.register(self._describe())
                self._on_registered(registered, asked_ns)
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
                asked_ns = self._now_ns()
                answer = self._client.events(after, wait_s=self._events_wait_s())
            except PenstockError as error:
                log.debug("no_events", code=error.code, error=str(error))
                self._is_stopped.wait(RETRY_SECONDS)
                continue
            if not answer.is_complete:
                self.register_again()  # events were missed
            self._on_events(answer, asked_ns)
            after = answer.next_after
