"""What a router of a pair has been so far, as its log has it: whether it may take over, what would be left behind."""

from penstock.assured.config import Role
from penstock.assured.core.lease import protocol as lease_protocol
from penstock.assured.core.lease.keeper import LeaseKeeper
from penstock.assured.core.pair.protocol import Standing
from penstock.assured.core.router.log import Log, Since


class ReplicaHistory:
    def __init__(self, log: Log, *, is_first: bool) -> None:
        self.epoch = 0
        """The newest in which this router was active, or had everything."""
        self.is_willing = False
        """Whether it is to go on by itself as the active one, where there is no lease."""
        self._log = log
        self._is_first = is_first
        self._whole_through = 0
        """While it stood by: it had everything up to this message."""
        self._listed = (0, 0)
        """The epoch and the newest message of what it compared last with the active router."""

    def start(self, id_highest: int) -> None:
        """The log has been read."""
        self.epoch = self._log.epoch
        self.is_willing = self._is_first if self.epoch == 0 else self._log.role == "active"
        if not self._was_active():
            self._whole_through = id_highest

    def _was_active(self) -> bool:
        """In its newest epoch; in one of the other router's it had everything."""
        return self.epoch == 0 or lease_protocol.is_first_router(self.epoch) == self._is_first

    def standing(self, name: str, is_active: bool, *states: bool) -> Standing:
        """`states` are those that Standing has last: it votes, matches, stores, is degraded."""
        role: Role = "active" if is_active else "standby"
        return Standing(name, role, self.epoch, self.is_willing, *states)

    def is_fit(self, keeper: LeaseKeeper) -> bool:
        """A router that was never active and never had everything is not to begin, but for the first of a new pair.
        Also if it was granted epochs, and ended before its log knew; one whose disk was lost does not know of any."""
        is_used = self.epoch > 0 or (self._is_first and keeper.has_only_own_epochs)
        return is_used and not self._log.is_partial

    def activate(self, epoch: int) -> None:
        if not self._was_active():
            self._log.begin_active(Since(epoch, self._whole_through), is_degraded=False)
        else:  # what it had of the other router is what it had before
            self._log.begin_active(Since(epoch, self._log.since.id), is_degraded=self._log.is_degraded)
        self.epoch, self.is_willing = epoch, True

    def received(self, epoch: int, id_highest: int) -> None:
        """Messages up to this one, from the active router of an epoch. What was missing comes before all that is newer
        than what was listed; and what came is acknowledged as synchronous, also before that router says `whole`."""
        if self._log.is_partial and (self._listed[0] != epoch or id_highest <= self._listed[1]):
            return
        if self._log.is_partial and self.epoch != epoch:
            self._have_all(epoch, id_highest)
        elif self.epoch == epoch:
            self._whole_through = max(self._whole_through, id_highest)

    def compared(self, epoch: int, id_highest: int) -> None:
        """Nothing is missing, if it had everything before: what the active router of an epoch has up to this message is
        here, or has no copies. The log knows it before the answer goes: that one counts on it."""
        self._listed = epoch, id_highest
        if not self._log.is_partial and (self.epoch != epoch or id_highest > self._whole_through):
            self._have_all(epoch, id_highest)

    def _have_all(self, epoch: int, id_highest: int) -> None:
        self.epoch, self.is_willing = epoch, False
        self._whole_through = self._log.know_of(id_highest)
        self._log.append_epoch("standby", epoch)

    def catch_up(self) -> None:
        """Until it is whole again it has neither what it had nor what the active router has: transactions may be torn.
        So it is not to take over, and its log knows that first."""
        self._log.become_partial()

    def become_whole(self, epoch: int, id_highest: int) -> None:
        """From now on this router could take over; its log is to know that."""
        self.epoch, self.is_willing = epoch, False
        self._whole_through = self._log.know_of(id_highest)
        self._log.become_whole()
