"""When to ping a peer, and when its silence means that it is gone. It does no I/O."""

from penstock.base.clock import NS_PER_MS
from penstock.net.config import StreamConfig


class Heartbeat:
    """Starts when the handshake is done."""

    def __init__(self, config: StreamConfig, now_ns: int) -> None:
        self._ping_ns = config.ping_ms * NS_PER_MS
        self._silence_ns = config.silence_ms * NS_PER_MS
        self._ping_due_ns = now_ns
        self._silence_due_ns: int | None = now_ns + self._silence_ns
        self._looked_ns = now_ns

    def heard(self, now_ns: int) -> None:
        """The peer sent something, or is listened to again."""
        self._silence_due_ns = now_ns + self._silence_ns
        self._looked_ns = max(self._looked_ns, now_ns)

    def pause(self) -> None:
        """Nothing is read: silence means nothing until heard() is called."""
        self._silence_due_ns = None

    def is_silent(self, now_ns: int) -> bool:
        """Time during which this process was suspended does not count as silence of the peer, because data from the
        peer may still wait to be read. This runs at every deadline, so more than a ping interval between two calls
        means a suspension."""
        stood_still_ns = now_ns - self._looked_ns - self._ping_ns
        self._looked_ns = now_ns
        if stood_still_ns > 0 and self._silence_due_ns is not None:
            self._silence_due_ns += stood_still_ns
        return self._silence_due_ns is not None and now_ns >= self._silence_due_ns

    def take_ping(self, now_ns: int) -> bool:
        """Whether a ping is due; then it is taken for sent."""
        if now_ns < self._ping_due_ns:
            return False
        self._ping_due_ns = now_ns + self._ping_ns
        return True

    def next_deadline_ns(self) -> int:
        return self._ping_due_ns if self._silence_due_ns is None else min(self._ping_due_ns, self._silence_due_ns)
