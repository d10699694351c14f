"""Degradation: whether synchronous messages wait for the standby, or are acknowledged as degraded (REPL-8).

synchronous ──(the link is down or slow for degrade_after_ms)──► degrading ──(it is noted)──► degraded
     ▲                                                                                           │
     └──(the other router has all that was so acknowledged)◄── waiting again ◄──(it keeps up)────┘

With a lease, the voters note the degradation first, so that the standby cannot become active by itself. Then this
router's log notes it: if an operator makes the standby active, this router knows which messages the standby never had.
On the way back, the voters are told when the log has the end of the degradation. An operator can also order
degradation, which then lasts until the order is undone.

The pair is partly degraded while the standby lacks endpoints with synchronous messages (uncopied.py): only these
messages do not wait for it. The voters note that too, except during a planned switch, which may leave messages without
copies behind.
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
    """The degradation state of an active router."""

    def __init__(self, config: PairConfig, log: Log, uncopied: Uncopied) -> None:
        self.mode: Mode = "synchronous"
        self.uncopied = uncopied
        self.is_ordered = False
        """True if an operator has ordered degradation."""
        self._config = config
        self._log = log
        self._behind_ns: int | None = None
        """Time since when the other router may not keep up."""
        self._is_degraded = False
        """The last state sent to the voters."""
        self._is_noted: bool | None = False
        """True, if the voters have noted the degradation; None: they were told to remove the note, and may have done
        so."""
        self._logged_as: int | None = None
        """The log record of the begin of the degradation."""
        self._ended_as: int | None = None
        """The log record of its end, until the voters are told."""
        self._back_at: int | None = None
        """Messages wait for the other router again, which keeps up; when it has this one, the pair is synchronous."""

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
        """The state in readable form."""
        is_partly = self.mode == "synchronous" and self.uncopied.are_there
        return "partly degraded" if is_partly else self.mode

    @property
    def is_waiting(self) -> bool:
        """True if synchronous messages wait for the other router."""
        return self.mode != "degraded" or self._back_at is not None

    def released(self, sending: ReplicationSender | None) -> tuple[int, int]:
        """The message up to which nothing waits for the other router any longer, and the outcome of these messages."""
        if not self.is_waiting:
            return EVERY_ID, OUTCOME_DEGRADED
        return sending.through_id if sending is not None else 0, OUTCOME_SYNC

    def lost(self, now_ns: int) -> None:
        """The link was lost."""
        if self._behind_ns is None:
            self._behind_ns = now_ns

    def noted(self, is_degraded: bool) -> None:
        """The voters know that the other router lacks messages: it cannot become active."""
        self._is_noted = is_degraded
        if is_degraded and not self._is_degraded:  # they knew it before this router did
            self.mode, self._is_degraded = "degrading", True

    def keeps_up(self, sending: ReplicationSender | None) -> bool:
        """True if the other router has everything except messages on their way, and all voters know that it may take
        over."""
        is_synchronous = self.mode == "synchronous" and self._is_noted is False and self._ended_as is None
        return is_synchronous and sending is not None and sending.is_whole and not sending.backlog

    def look(self, sending: ReplicationSender | None, now_ns: int, *, is_switching: bool = False) -> bool | None:
        """Return True if the voters must be told that this router is degraded, False if it no longer is; None:
        neither."""
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
        """Check for the end of the degradation. Messages acknowledged as degraded may still be on their way, and the
        other router cannot take over without them."""
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
        """The time at which the pair degrades."""
        if self.mode != "synchronous" or self._behind_ns is None or self._config.degrade == "never":
            return None
        return self._behind_ns + self._config.degrade_after_ms * NS_PER_MS

    @property
    def _slow_ns(self) -> int:
        """Half of the limit, so that the pair does not degrade again at once."""
        return self._config.degrade_after_ms * NS_PER_MS // 2

    def _is_slow(self, now_ns: int) -> bool:
        return self._behind_ns is not None and now_ns - self._behind_ns >= self._slow_ns
