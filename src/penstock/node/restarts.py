"""Restart policy for nodes that died. It does no I/O."""

RESTART_SECONDS = (0.05, 0.5, 1.0, 2.0, 5.0)
"""Pauses before the first, second, ... restart of a node that does not stay up."""

STEADY_SECONDS = 5.0
"""A node that was ready for this long counts as stable: its next death counts as the first."""


class Restarts:
    """The starts and deaths of one node; times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.failures = 0
        self.was_ready = False
        """True if the node was ready at least once. A node that was never ready is not restarted, because its
        configuration is wrong."""
        self._ready_at: float | None = None

    def started(self) -> None:
        self._ready_at = None

    def ready(self, now: float) -> None:
        self.was_ready = True
        self._ready_at = now

    def died(self, now: float) -> float | None:
        """When to start it again; None for a node that was never ready."""
        is_steady = self._ready_at is not None and now - self._ready_at >= STEADY_SECONDS
        self.failures = 1 if is_steady else self.failures + 1
        if not self.was_ready:
            return None
        return now + RESTART_SECONDS[min(self.failures, len(RESTART_SECONDS)) - 1]
