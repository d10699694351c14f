"""The lease that limits how long an adapter may seal with its stream key.

To revoke a client that holds a stream key, the administration server gives the adapters a new key. An adapter that
cannot reach the server does not learn of the new key, so the right to seal is a lease: the server renews the lease with
every heartbeat, and an adapter whose lease has ended sends nothing on its sealed groups until a server answers.
"""

from penstock.base.clock import NS_PER_SECOND, BootClock
from penstock.base.log import logger

log = logger("feed.sealing")


class SealingLease:
    """Renewed in one thread, read in others."""

    def __init__(self, clock: BootClock | None = None) -> None:
        self._clock = clock or BootClock()
        self._until_ns = 0
        self._lease_s = 0.0
        self._told = ""

    def now_ns(self) -> int:
        """The start time of a renewal; read it before sending the request."""
        return self._clock.now_ns()

    def renew(self, asked_ns: int, lease_s: float) -> None:
        """Renew the lease: an answer to a request sent at `asked_ns` allows sealing until `lease_s` after that time."""
        self._lease_s = lease_s
        self._until_ns = max(self._until_ns, asked_ns + int(lease_s * NS_PER_SECOND))

    @property
    def is_valid(self) -> bool:
        return self._clock.now_ns() < self._until_ns

    @property
    def left_s(self) -> float:
        """0: the lease has ended, or never began."""
        return max(0.0, (self._until_ns - self._clock.now_ns()) / NS_PER_SECOND)

    @property
    def trouble(self) -> str:
        """A readable warning that the lease is about to end or has ended; empty otherwise."""
        left_s = self.left_s
        if not self._until_ns:
            return "sealing has not begun: no administration server has answered"
        if not left_s:
            return f"sealing has ended: no administration server has answered for {self._lease_s:g} s"
        if left_s < self._lease_s / 2:
            return f"sealing ends in {left_s:.0f} s unless an administration server answers"
        return ""

    def tell(self, adapter: str) -> None:
        """Log each state change once; call it periodically."""
        state = "ended" if not self.left_s else "ends_soon" if self.trouble else ""
        if state == self._told or (not self._told and not self._until_ns):
            return
        self._told = state
        if not state:
            log.info("sealing_lease_renewed", adapter=adapter, seconds=round(self.left_s))
        else:
            say = log.error if state == "ended" else log.warning
            say(f"sealing_lease_{state}", adapter=adapter, seconds_left=round(self.left_s), lease_s=self._lease_s)
