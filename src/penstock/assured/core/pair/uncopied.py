"""Synchronous messages that only the active router has, because the standby lacks their endpoint (REPL-8).

If endpoints are configured by hand, the standby may lack some. Their messages are acknowledged as degraded, or were
synchronous before the endpoint was deleted there; the standby must not take over by itself while there are any.
"""

from penstock.assured.core.pair._sending import has_uncopied
from penstock.assured.core.pair.protocol import PairConfig
from penstock.assured.core.router._tables import Tables
from penstock.base.clock import NS_PER_MS


class Uncopied:
    def __init__(self, config: PairConfig, tables: Tables) -> None:
        self.are_there = False
        self._config = config
        self._tables = tables
        self._replication = tables.replication
        self._look_ns = 0
        """Time of the next check; voters are not asked for each message separately."""

    def forget(self) -> None:
        self._replication.take_absent_met()
        self.are_there = False

    def look(self, now_ns: int, *, is_whole: bool) -> None:
        """`is_whole`: the other router has reported what it lacks, and has everything else."""
        pause_ns = self._config.degrade_after_ms * NS_PER_MS
        if self._replication.take_absent_met():
            self.are_there, self._look_ns = True, now_ns + pause_ns
        elif self.are_there and is_whole and now_ns >= self._look_ns:
            self.are_there, self._look_ns = has_uncopied(self._tables), now_ns + pause_ns

    def next_deadline_ns(self) -> int | None:
        return self._look_ns if self.are_there else None

    def await_copies(self, *, is_degraded: bool) -> None:
        """Such messages are acknowledged only when all voters know that this router is degraded."""
        self._replication.await_absent(self._config.degrade == "never" or not is_degraded)
