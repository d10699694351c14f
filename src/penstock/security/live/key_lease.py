"""Leases that limit how long a node uses keys while no administration server answers.

To revoke a client that holds a key, the administration server replaces the key. A node that cannot reach the server
does not learn of the new key, so the use of a key is a lease: the server renews it with its answers, and a node whose
lease has ended stops until a server answers. An adapter stops sealing with its stream key. A receiver stops accepting
packets under its authentication keys, and a publisher stops answering repair requests under them.
"""

import threading

from penstock.base.clock import NS_PER_SECOND, BootClock
from penstock.base.log import logger
from penstock.wire import LeaseFlag

EVENTS_WAIT_SECONDS = 10.0
RENEWALS_PER_LEASE = 4
CHECK_SECONDS = 0.5

log = logger("security.lease")


class KeyLease:
    """A lease that one thread renews and others read. `use` names the leased activity in log events and messages."""

    def __init__(self, use: str, clock: BootClock | None = None) -> None:
        self._use = use
        self._clock = clock or BootClock()
        self._until_ns = 0
        self._lease_s = 0.0
        self._told = ""

    def now_ns(self) -> int:
        """The start time of a renewal; read it before sending the request."""
        return self._clock.now_ns()

    def renew(self, asked_ns: int, lease_s: float) -> None:
        """Renew the lease: an answer to a request sent at `asked_ns` allows the use until `lease_s` after that time."""
        self._lease_s = lease_s
        self._until_ns = max(self._until_ns, asked_ns + int(lease_s * NS_PER_SECOND))

    @property
    def is_valid(self) -> bool:
        return self._clock.now_ns() < self._until_ns

    @property
    def left_s(self) -> float:
        """Remaining seconds; 0 if the lease has ended or never began."""
        return max(0.0, (self._until_ns - self._clock.now_ns()) / NS_PER_SECOND)

    @property
    def trouble(self) -> str:
        """A readable warning that the lease is about to end or has ended; empty otherwise."""
        left_s = self.left_s
        if not self._until_ns:
            return f"{self._use} has not begun: no administration server has answered"
        if not left_s:
            return f"{self._use} has ended: no administration server has answered for {self._lease_s:g} s"
        if left_s < self._lease_s / 2:
            return f"{self._use} ends in {left_s:.0f} s unless an administration server answers"
        return ""

    def tell(self, **who: str) -> None:
        """Log each state change once; call it periodically."""
        state = "ended" if not self.left_s else "ends_soon" if self.trouble else ""
        if state == self._told or (not self._told and not self._until_ns):
            return
        self._told = state
        if not state:
            log.info(f"{self._use}_lease_renewed", **who, seconds=round(self.left_s))
        else:
            say = log.error if state == "ended" else log.warning
            say(f"{self._use}_lease_{state}", **who, seconds_left=round(self.left_s), lease_s=self._lease_s)


class ReceivingLease(KeyLease):
    """The lease of authentication keys for receiving: a receiver's packets, an adapter's repair requests. From start()
    to stop(), a thread sets `flag`, which the authenticators of the node share, and logs changes. Without the thread,
    call check() periodically."""

    def __init__(self, clock: BootClock | None = None, *, use: str = "receiving", **who: str) -> None:
        super().__init__(use, clock)
        self.flag = LeaseFlag()
        self._who = who
        self._lock = threading.Lock()
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="penstock-key-lease", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._is_stopped.set()
        if self._thread is not None:
            self._thread.join()

    def begin(self, asked_ns: int, lease_s: float) -> None:
        """Start the lease if it has not begun. Used for answers with only some of the keys: once the lease has
        begun, only an answer with all later events renews it."""
        if not self._until_ns:
            self.renew(asked_ns, lease_s)

    def renew(self, asked_ns: int, lease_s: float) -> None:
        super().renew(asked_ns, lease_s)
        self.check()

    def check(self) -> None:
        with self._lock:
            self.flag.has_ended = not self.is_valid
            self.tell(**self._who)

    @property
    def events_wait_s(self) -> float:
        """How long a request for events may wait, so that the lease is renewed in time."""
        return min(EVENTS_WAIT_SECONDS, self._lease_s / RENEWALS_PER_LEASE or EVENTS_WAIT_SECONDS)

    def _watch(self) -> None:
        while not self._is_stopped.wait(CHECK_SECONDS):
            self.check()
