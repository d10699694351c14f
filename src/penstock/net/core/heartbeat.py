"""Heartbeat timers: when to ping a peer, and when its silence means that it is dead. No I/O."""

from typing import Self

from penstock.base.clock import NS_PER_MS
from penstock.net.config import StreamConfig


class Heartbeat:
    """Starts with a ping when the handshake is complete."""

    def __init__(self, now_ns: int, *, ping_ns: int, silence_ns: int, forgives_suspension: bool = True) -> None:
        """`forgives_suspension`: time in which this process was suspended does not count as silence of the peer,
        because data of the peer may still be unread. A client with other servers to try should not forgive it."""
        self._ping_ns = ping_ns
        self._silence_ns = silence_ns
        self._forgives_suspension = forgives_suspension
        self._ping_due_ns = now_ns
        self._silence_due_ns: int | None = now_ns + silence_ns
        self._looked_ns = now_ns

    @classmethod
    def of(cls, config: StreamConfig, now_ns: int) -> Self:
        return cls(now_ns, ping_ns=config.ping_ms * NS_PER_MS, silence_ns=config.silence_ms * NS_PER_MS)

    def heard(self, now_ns: int) -> None:
        """The peer sent something, or reading was resumed."""
        self._silence_due_ns = now_ns + self._silence_ns
        self._looked_ns = max(self._looked_ns, now_ns)

    def pause(self) -> None:
        """Reading was paused: silence does not count until heard() is called."""
        self._silence_due_ns = None

    def postpone_ping(self, now_ns: int) -> None:
        """The peer has just answered a request: the next ping is due after a full interval."""
        self._ping_due_ns = now_ns + self._ping_ns

    def is_silent(self, now_ns: int) -> bool:
        """True if the peer has been silent for too long. Called at every deadline, so a gap of more than a ping
        interval between two calls means a suspension."""
        stood_still_ns = now_ns - self._looked_ns - self._ping_ns
        self._looked_ns = now_ns
        if self._forgives_suspension and stood_still_ns > 0 and self._silence_due_ns is not None:
            self._silence_due_ns += stood_still_ns
        return self._silence_due_ns is not None and now_ns >= self._silence_due_ns

    def take_ping(self, now_ns: int) -> bool:
        """Return True if a ping is due, and count it as sent."""
        if now_ns < self._ping_due_ns:
            return False
        self.postpone_ping(now_ns)
        return True

    def next_deadline_ns(self) -> int:
        return self._ping_due_ns if self._silence_due_ns is None else min(self._ping_due_ns, self._silence_due_ns)
