"""Whether synchronous messages wait for the other router, or are acknowledged as degraded (REPL-8).

synchronous ──(the link is down or slow for degrade_after_ms)──► degrading ──(the voters have noted it)──► degraded
     ▲                                                                                                        │
     └──────────────────────────────(the other router has everything)◄────────────────────────────────────────┘

Without a lease nothing has to be noted. An operator can order it as well: then it is degraded until the order is taken
back.
"""

from typing import Literal, TypeAlias

from penstock.assured.pairing import PairConfig
from penstock.assured.sending import Sending
from penstock.base.clock import NS_PER_MS

Mode: TypeAlias = Literal["synchronous", "degrading", "degraded"]


class Degrading:
    """Of an active router."""

    def __init__(self, config: PairConfig) -> None:
        self.mode: Mode = "synchronous"
        self.is_ordered = False
        """An operator wants it degraded."""
        self._config = config
        self._behind_ns: int | None = None
        """Since when the other router is not known to keep up."""

    def activate(self, now_ns: int) -> None:
        self.mode, self._behind_ns, self.is_ordered = "synchronous", now_ns, False

    def lost(self, now_ns: int) -> None:
        """The link is gone."""
        if self._behind_ns is None:
            self._behind_ns = now_ns

    def noted(self, is_alone: bool) -> None:
        """The voters know that the other router has not got everything: it cannot become active."""
        if is_alone:
            self.mode = "degraded"

    def look(self, sending: Sending | None, now_ns: int) -> bool | None:
        """Whether the voters have to be told that this router is alone, or no longer; None: neither."""
        if sending is not None and sending.is_whole:
            self._behind_ns = sending.oldest_ns
            keeps_up = not sending.backlog and not self._is_slow(now_ns)
            if self.mode != "synchronous" and keeps_up and not self.is_ordered:
                self.mode = "synchronous"
                return False
        deadline_ns = self.next_deadline_ns()
        is_late = deadline_ns is not None and now_ns >= deadline_ns
        if not is_late and not (self.is_ordered and self.mode == "synchronous"):
            return None
        self.mode = "degraded" if self._config.lease is None else "degrading"
        return True

    def next_deadline_ns(self) -> int | None:
        if self.mode != "synchronous" or self._behind_ns is None or self._config.degrade == "never":
            return None
        return self._behind_ns + self._config.degrade_after_ms * NS_PER_MS

    def _is_slow(self, now_ns: int) -> bool:
        """Half the time is enough to be sure that it does not degrade again at once."""
        limit_ns = self._config.degrade_after_ms * NS_PER_MS // 2
        return self._behind_ns is not None and now_ns - self._behind_ns >= limit_ns
