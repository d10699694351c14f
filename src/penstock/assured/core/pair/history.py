"""The history of a router of a pair, from its log: whether it may take over, and which messages would be left
behind."""

from penstock.assured.config import Role
from penstock.assured.core.lease import protocol as lease_protocol
from penstock.assured.core.lease.keeper import LeaseKeeper
from penstock.assured.core.pair.protocol import Standing
from penstock.assured.core.router.log import Log, Since


class ReplicaHistory:
    def __init__(self, log: Log, *, is_first: bool) -> None:
        self.epoch = 0
        """The newest epoch in which this router was active, or had everything."""
        self.is_willing = False
        """Without a lease: True if this router should become active by itself."""
        self._log = log
        self._is_first = is_first
        self._whole_through = 0
        """As a standby: it had everything up to this message."""
        self._listed = (0, 0)
        """Epoch and newest message of the last comparison with the active router."""

    def start(self, id_highest: int) -> None:
        """The log has been read."""
        self.epoch = self._log.epoch
        self.is_willing = self._is_first if self.epoch == 0 else self._log.role == "active"
        if not self._was_active():
            self._whole_through = id_highest

    def _was_active(self) -> bool:
        """True if this router was active in its newest epoch; in an epoch of the other router it had everything."""
        return self.epoch == 0 or lease_protocol.is_first_router(self.epoch) == self._is_first

    def standing(self, name: str, is_active: bool, *states: bool) -> Standing:
        """`states` are the last fields of Standing: voting, matching, storing, degraded."""
        role: Role = "active" if is_active else "standby"
        return Standing(name, role, self.epoch, self.is_willing, *states)

    def is_fit(self, keeper: LeaseKeeper) -> bool:
        """A router that was never active and never had everything must not begin, except the first of a new pair.
        The same holds if it was granted epochs and ended before its log knew; a router that lost its disk knows of
        none."""
        is_used = self.epoch > 0 or (self._is_first and keeper.has_only_own_epochs)
        return is_used and not self._log.is_partial

    def activate(self, epoch: int) -> None:
        if not self._was_active():
            self._log.begin_active(Since(epoch, self._whole_through), is_degraded=False)
        else:  # otherwise it has what it had of the other router before
            self._log.begin_active(Since(epoch, self._log.since.id), is_degraded=self._log.is_degraded)
        self.epoch, self.is_willing = epoch, True

    def received(self, epoch: int, id_highest: int) -> None:
        """Messages up to this one arrived from the active router of an epoch. Missing messages arrive before any
        that are newer than the list. Received messages are acknowledged as synchronous, even before that router
        reports `whole`."""
        if self._log.is_partial and (self._listed[0] != epoch or id_highest <= self._listed[1]):
            return
        if self._log.is_partial and self.epoch != epoch:
            self._have_all(epoch, id_highest)
        elif self.epoch == epoch:
            self._whole_through = max(self._whole_through, id_highest)

    def compared(self, epoch: int, id_highest: int) -> None:
        """Nothing is missing, if this router had everything before: it has all messages of the active router up to
        this one, except those without copies. The log records that before the answer is sent, because the active
        router relies on it."""
        self._listed = epoch, id_highest
        if not self._log.is_partial and (self.epoch != epoch or id_highest > self._whole_through):
            self._have_all(epoch, id_highest)

    def _have_all(self, epoch: int, id_highest: int) -> None:
        self.epoch, self.is_willing = epoch, False
        self._whole_through = self._log.know_of(id_highest)
        self._log.append_epoch("standby", epoch)

    def catch_up(self) -> None:
        """While catching up, this router has neither its old state nor the active router's: transactions may be
        torn. It must not take over, and its log records that first."""
        self._log.become_partial()

    def become_whole(self, epoch: int, id_highest: int) -> None:
        """From now on this router can take over; its log records that."""
        self.epoch, self.is_willing = epoch, False
        self._whole_through = self._log.know_of(id_highest)
        self._log.become_whole()
