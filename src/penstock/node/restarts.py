"""Restart policy for nodes that died. It does no I/O.

A node that dies is started again after a pause. The pause grows with every death that follows the last one within
STEADY_SECONDS of being ready, so that a node that dies again and again does not use up the machine; the first pause is
short, so that a single crash costs little. A node with FAILING_DEATHS such deaths is `failing` until it has been ready
for STEADY_SECONDS. Deaths that an operator ordered do not count.
"""

RESTART_SECONDS = (0.05, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0)
"""Pauses before the first, second, ... restart of a node that does not stay up; the last one repeats."""

STEADY_SECONDS = 60.0
"""A node that was ready for this long counts as steady: its next death counts as the first."""

FAILING_DEATHS = 5
"""Number of deaths without a steady period in between after which a node is `failing`."""


class Restarts:
    """The starts and deaths of one node; times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.deaths = 0
        """Number of deaths since the node was last steady."""
        self.pause_s = 0.0
        """The pause after the last death."""
        self.was_ready = False
        """True if the node was ready at least once. A node that was never ready is not restarted, because its
        configuration is wrong."""
        self._ready_at: float | None = None

    @property
    def is_failing(self) -> bool:
        return self.deaths >= FAILING_DEATHS

    def describe(self) -> str:
        return (
            f"died {self.deaths} times without being ready for {STEADY_SECONDS:g} s, restarted after {self.pause_s:g} s"
        )

    def started(self) -> None:
        self._ready_at = None

    def ready(self, now: float) -> None:
        self.was_ready = True
        self._ready_at = now

    def became_steady(self, now: float) -> bool:
        """Forget the deaths of a node that has been ready for long enough; True if it was failing until now."""
        if self._ready_at is None or now - self._ready_at < STEADY_SECONDS:
            return False
        was_failing = self.is_failing
        self.deaths = 0
        return was_failing

    def died(self, now: float, *, is_ordered: bool = False) -> float | None:
        """Note a death. Return the time of the next start; None for a node that was never ready."""
        self.became_steady(now)
        self._ready_at = None
        self.deaths += not is_ordered
        if not self.was_ready:
            return None
        self.pause_s = RESTART_SECONDS[0 if is_ordered else min(self.deaths, len(RESTART_SECONDS)) - 1]
        return now + self.pause_s
