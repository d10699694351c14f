"""A new session on the lines of a source stream, until it is confirmed or dismissed.

A single datagram of another session may be stray, so it decides nothing. Datagrams of the candidate are buffered; when
nothing else arrives for a time, the source has changed its session. When the current session continues, the buffered
datagrams are dropped.
"""

from collections import deque
from typing import TypeAlias

from penstock.base.counters import Cause, Counters
from penstock.feed.formats.datagram import Segment

DATAGRAMS_MAX = 4_096
"""Maximum number of buffered datagrams, the newest ones; missing messages are requested afterwards."""

CandidateDatagram: TypeAlias = tuple[int, Segment, bytes, int]
"""A datagram of another session: its line, its content, its bytes, its receive time."""


class SessionCandidate:
    """The datagrams of the other session, if there is one."""

    def __init__(self, wait_ns: int, counters: Counters) -> None:
        self._wait_ns = wait_ns
        self._counters = counters
        self._since_ns = 0
        self._buffered: deque[CandidateDatagram] = deque(maxlen=DATAGRAMS_MAX)

    def __bool__(self) -> bool:
        return bool(self._buffered)

    def add(self, datagram: CandidateDatagram, now_ns: int) -> bool:
        """Buffer a datagram. Return True if the source has changed to its session."""
        buffered = self._buffered
        if buffered and buffered[0][1].session != datagram[1].session:
            self.dismiss()
        if not buffered:
            self._since_ns = now_ns
        buffered.append(datagram)
        return len(buffered) > 1 and now_ns - self._since_ns >= self._wait_ns

    def confirm(self) -> list[CandidateDatagram]:
        """Return the buffered datagrams, which belong to the current session from now on."""
        datagrams = list(self._buffered)
        self._buffered.clear()
        return datagrams

    def dismiss(self) -> None:
        """Drop the buffered datagrams: the current session continues."""
        if self._buffered:
            self._counters.add("packets_dropped", len(self._buffered), cause=Cause.STALE_EPOCH)
            self._buffered.clear()
