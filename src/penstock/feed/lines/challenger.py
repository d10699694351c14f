"""Another session on the lines of a source stream: nonsense of anybody, or what the source sends now?

A single datagram decides nothing. What comes of the other session waits; when only that comes for a time, it is the
source's now. When the session there was goes on, what waited is dropped.
"""

from collections import deque
from typing import TypeAlias

from penstock.base.counters import Cause, Counters
from penstock.feed.formats.datagram import Segment

DATAGRAMS_MAX = 4_096
"""The newest so many wait; what is missing afterwards is asked for."""

Challenge: TypeAlias = tuple[int, Segment, bytes, int]
"""A datagram of another session: its line, what it says, its bytes, when it was received."""


class Challenger:
    """The other session of which datagrams wait, if any."""

    def __init__(self, wait_ns: int, counters: Counters) -> None:
        self._wait_ns = wait_ns
        self._counters = counters
        self._since_ns = 0
        self._waiting: deque[Challenge] = deque(maxlen=DATAGRAMS_MAX)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self, challenge: Challenge, now_ns: int) -> bool:
        """Whether by now the source has changed over to this session."""
        waiting = self._waiting
        if waiting and waiting[0][1].session != challenge[1].session:
            self.drop()
        if not waiting:
            self._since_ns = now_ns
        waiting.append(challenge)
        return len(waiting) > 1 and now_ns - self._since_ns >= self._wait_ns

    def take_over(self) -> list[Challenge]:
        """All that has waited."""
        came = list(self._waiting)
        self._waiting.clear()
        return came

    def drop(self) -> None:
        """It was nonsense."""
        if self._waiting:
            self._counters.add("packets_dropped", len(self._waiting), cause=Cause.STALE_EPOCH)
            self._waiting.clear()
