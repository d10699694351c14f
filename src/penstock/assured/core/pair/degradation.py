"""Whether synchronous messages wait for the other router, or are acknowledged as degraded (REPL-8).

synchronous ──(the link is down or slow for degrade_after_ms)──► degrading ──(it is noted)──► degraded
     ▲                                                                                           │
     └──(the other router has all that was so acknowledged)◄── waiting again ◄──(it keeps up)────┘

Under a lease the voters note it first: then the other router cannot become active by itself. Then the router's own log
does: should an operator make the other one active, this one knows what it is to keep of what that one never had. Back
again, the voters hear of it when the log has it. An operator can order it as well: then it is degraded until the order
is taken back.

Partly degraded it is while the other router lacks endpoints that have synchronous messages (uncopied.py): these alone
do not wait for it. The voters note that, too, but for a planned switch, which may leave behind what has no copies.
"""

from typing import Literal, TypeAlias

from penstock.assured.core.pair.protocol import PairConfig
from penstock.assured.core.pair.replication_sender import ReplicationSender
from penstock.assured.core.pair.uncopied import Uncopied
from penstock.assured.core.router.endpoints import EVERY_ID
from penstock.assured.core.router.log import Log
from penstock.assured.wire._layout import OUTCOME_DEGRADED, OUTCOME_SYNC
from penstock.base.clock import NS_PER_MS

Mode: TypeAlias = Literal["synchronous", "degrading", "degraded"]


class Degradation:
    """Of an active router."""

    def __init__(self, config: PairConfig, log: Log, uncopied: Uncopied) -> None:
        self.mode: Mode = "synchronous"
        self.uncopied = uncopied
        self.is_ordered = False
        """An operator wants it degraded."""
        self._config = config
        self._log = log
        self._behind_ns: int | None = None
        """Since when the other router is not known to keep up."""
        self._is_degraded = False
        """As the voters were told last."""
        self._is_noted: bool | None = False
        """By the voters; None: they were told to strike it off, and may have."""
        self._logged_as: int | None = None
        """The record of the log that says that it is degraded."""
        self._ended_as: int | None = None
        """The one that says that it is not any more, until the voters are told."""
        self._back_at: int | None = None
        """Messages wait for the other router again, which keeps up; when it has this one it is synchronous."""

    def activate(self, now_ns: int) -> None:
        self.mode, self._behind_ns, self.is_ordered = "synchronous", now_ns, False
        self._is_degraded, self._is_noted, self._logged_as, self._ended_as, self._back_at = (
            False,
            False,
            None,
            None,
            None,
        )
        self.uncopied.forget()

    @property
    def state(self) -> str:
        """As people are told."""
        is_partly = self.mode == "synchronous" and self.uncopied.are_there
        return "partly degraded" if is_partly else self.mode

    @property
    def is_waiting(self) -> bool:
        """Whether synchronous messages wait for the other router."""
        return self.mode != "degraded" or self._back_at is not None

    def released(self, sending: ReplicationSender | None) -> tuple[int, int]:
        """Up to which message nothing waits for the other router any longer, and what that is acknowledged as."""
        if not self.is_waiting:
            return EVERY_ID, OUTCOME_DEGRADED
        return sending.through_id if sending is not None else 0, OUTCOME_SYNC

    def lost(self, now_ns: int) -> None:
        """The link is gone."""
        if self._behind_ns is None:
            self._behind_ns = now_ns

    def noted(self, is_degraded: bool) -> None:
        """The voters know that the other router has not got everything: it cannot become active."""
        self._is_noted = is_degraded
        if is_degraded and not self._is_degraded:  # they knew it before, and this router did not
            self.mode, self._is_degraded = "degrading", True

    def keeps_up(self, sending: ReplicationSender | None) -> bool:
        """The other router has everything, but for what is on its way, and everybody knows that it may take over."""
        is_synchronous = self.mode == "synchronous" and self._is_noted is False and self._ended_as is None
        return is_synchronous and sending is not None and sending.is_whole and not sending.backlog

    def look(self, sending: ReplicationSender | None, now_ns: int, *, is_switching: bool = False) -> bool | None:
        """Whether the voters have to be told that this router is degraded, or no longer; None: neither."""
        self.uncopied.look(now_ns, is_whole=sending is not None and sending.is_whole)
        if sending is not None and sending.is_whole:
            self._behind_ns = sending.oldest_ns
            self._look_whether_back(sending, now_ns)
            if self._log.is_degraded and self.mode == "synchronous":
                self._ended_as = self._log.note_degraded(False)
        else:
            self._back_at = None
        if self.mode == "degrading" and (self._is_noted or self._config.lease is None):
            self._go_on()
        late_ns = self._late_ns()
        is_late = late_ns is not None and now_ns >= late_ns
        if is_late or (self.is_ordered and self.mode == "synchronous"):
            self.mode, self._ended_as = "degrading", None
            if self._config.lease is None:
                self._go_on()
        if self._ended_as is not None and self._log.stored_through >= self._ended_as:
            self._ended_as = None
        was_degraded, is_partly = self._is_degraded, self.uncopied.are_there and not is_switching
        self._is_degraded = self.mode != "synchronous" or self._ended_as is not None or is_partly
        if was_degraded and not self._is_degraded:
            self._is_noted = False if self._config.lease is None else None
        self.uncopied.await_copies(is_degraded=self._config.lease is None or self._is_noted is True)
        return self._is_degraded if self._is_degraded != was_degraded else None

    def _look_whether_back(self, sending: ReplicationSender, now_ns: int) -> None:
        """What was acknowledged as degraded may still be on its way: without it the other router cannot take over."""
        if self.mode == "synchronous" or self.is_ordered or self._is_slow(now_ns):
            self._back_at = None
        elif self._back_at is None and not sending.backlog:
            self._back_at = sending.newest_id
        if self._back_at is not None and sending.through_id >= self._back_at:
            self.mode, self._logged_as, self._ended_as = "synchronous", None, self._log.stored_through
            self._back_at = None

    def _go_on(self) -> None:
        if self._logged_as is None:
            self._logged_as = self._log.note_degraded(True)
        elif self._log.stored_through >= self._logged_as:
            self.mode = "degraded"

    def next_deadline_ns(self) -> int | None:
        deadlines = [self._late_ns(), self.uncopied.next_deadline_ns()]
        if self._back_at is not None and self._behind_ns is not None:
            deadlines.append(self._behind_ns + self._slow_ns)
        return min((each for each in deadlines if each is not None), default=None)

    def _late_ns(self) -> int | None:
        """When it is to degrade."""
        if self.mode != "synchronous" or self._behind_ns is None or self._config.degrade == "never":
            return None
        return self._behind_ns + self._config.degrade_after_ms * NS_PER_MS

    @property
    def _slow_ns(self) -> int:
        """Half the time is enough to be sure that it does not degrade again at once."""
        return self._config.degrade_after_ms * NS_PER_MS // 2

    def _is_slow(self, now_ns: int) -> bool:
        return self._behind_ns is not None and now_ns - self._behind_ns >= self._slow_ns
