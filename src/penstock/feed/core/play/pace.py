"""The times of a player's messages: by the day's own clock, faster, at an even rate, or as fast as possible."""

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.feed.core.play.script import Script

BATCH_MAX = 4_096
"""Maximum number of messages taken at once."""

WAIT_MAX_NS = 50 * NS_PER_MS


class Pace:
    """Takes due messages from the script. A late player catches up; no message is dropped."""

    def __init__(self, script: Script, *, speed: float, rate: float, now_ns: int) -> None:
        self._script = script
        self._speed = speed
        self._rate = rate
        self._start_ns = now_ns
        self._begin_ns = script.next_time_ns() or 0
        self._taken = 0
        self.is_over = False

    def due(self, now_ns: int) -> bytes:
        """Return the messages that are due, with their sizes before them."""
        if self._rate:
            count = int((now_ns - self._start_ns) * self._rate / NS_PER_SECOND) + 1 - self._taken
            blocks = self._script.take(min(count, BATCH_MAX)) if count > 0 else b""
            self._taken += min(count, BATCH_MAX) if blocks else 0
        elif self._speed:
            blocks = self._script.take_until(self._day_ns(now_ns), BATCH_MAX)
        else:
            blocks = self._script.take(BATCH_MAX)
        self.is_over = not blocks and self._script.next_time_ns() is None
        return blocks

    def wait_ns(self, now_ns: int) -> int:
        """Time until the next message may be due."""
        if self._rate:
            due_ns = self._start_ns + int(self._taken * NS_PER_SECOND / self._rate)
        elif self._speed:
            ahead_ns = (self._script.next_time_ns() or 0) - self._begin_ns
            due_ns = self._start_ns + int(ahead_ns / self._speed)
        else:
            due_ns = now_ns
        return min(max(due_ns - now_ns, 0), WAIT_MAX_NS)

    def _day_ns(self, now_ns: int) -> int:
        return self._begin_ns + int((now_ns - self._start_ns) * self._speed)
