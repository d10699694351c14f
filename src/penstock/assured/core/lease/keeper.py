"""A router's side of the lease: it votes, and it requests the lease when no other router holds it (REPL-14).

waiting ──(fit, bound to nobody)──► asking ──(majority)──► holding ──(majority gone, or released)──► waiting

Safety rules:

- A router asks the other voters first, and gives itself its own vote only when one of them has agreed: a failed claim
  leaves nothing behind at its own voter and disturbs no holder. When a voter is bound to the other router, this router
  gives way: its own vote is free for the holder, which needs one of the two other votes.
- When a voter becomes reachable, the router asks at once, because the earlier question was dropped. A holder that
  restarts gets the lease back without waiting for the next round, because the voters are bound to it.
- Each time a router becomes the holder, it uses a new epoch, even if it was the last holder.
- It acts as the holder until `holding_ns` after the time of its request, counted by rounds that a majority has granted.
"""

import msgspec

from penstock.assured.core.lease.protocol import (
    EPOCH_MAX,
    EPOCHS_OF_NEW_PAIR,
    Able,
    Ask,
    DegradedNoted,
    Denied,
    Fit,
    Force,
    Granted,
    Heard,
    Kept,
    LeaseAcquired,
    LeaseConfig,
    LeaseEvent,
    LeaseInstruction,
    LeaseLost,
    Memory,
    Message,
    NoteDegraded,
    Reached,
    Release,
    Released,
    Serving,
    Tell,
    VoterEvent,
    is_first_router,
    next_epoch,
)
from penstock.assured.core.lease.voter import LeaseVoter
from penstock.assured.core.router.events import DiskFailed, DiskRecovered, DiskTroubled
from penstock.base.clock import Randomness
from penstock.base.core import Tick, refuse
from penstock.base.errors import ConfigurationError

ROUNDS_KEPT = 8
"""Answers to older rounds are useless: their grants have expired."""

RENEWALS = 3
"""Renewals per lease."""

SOON = 32
"""If a voter is still bound to another router, it is asked again after this part of a lease, then after twice that,
and so on: after the loss of a holder, voters become free within moments of each other."""


class _Claim(msgspec.Struct):
    """An epoch that this router requests or holds."""

    epoch: int
    is_forced: bool
    rounds: dict[int, int] = msgspec.field(default_factory=dict)
    """Time of each request."""

    granted_ns: dict[str, int] = msgspec.field(default_factory=dict)
    """By voter: time of the request for its newest grant."""

    noted: dict[str, tuple[int, bool]] = msgspec.field(default_factory=dict)
    """By voter: the newest note on its disk, and True if the note says that this router is degraded."""

    is_held: bool = False


def lease_event(event: object, is_active: bool) -> LeaseEvent:
    """Translate an event of a router into one for the keeper, which handles it first. A full disk does not end an
    active router: it delivers its messages, and there may be room soon."""
    match event:
        case DiskFailed():
            return Able(False)
        case DiskTroubled() if not is_active:
            return Able(False)
        case DiskRecovered():
            return Able(True)
        case _:
            return Serving(is_active)


class LeaseKeeper:
    """This router may act until `until_ns`; callers check `holds(now_ns)` before acting, however late they are."""

    def __init__(
        self, config: LeaseConfig, name: str, memory: Memory, randomness: Randomness, now_ns: int, epoch: int = 0
    ) -> None:
        """`epoch` is the newest in the router's own log."""
        if name not in config.routers:
            raise ConfigurationError(
                f"{name} is not a router of this pair", where="lease", hint=" and ".join(config.routers)
            )
        self.until_ns = 0
        self._config = config
        self._name = name
        self._is_first = name == config.routers[0]
        self._others = tuple(voter for voter in config.voters if voter != name)
        self._randomness = randomness
        self._voter = LeaseVoter(config, memory, now_ns)
        self._epoch_seen = max(epoch, memory.epoch)
        self._claim: _Claim | None = None
        self._is_fit = False
        self.is_able = True
        """True if the disk accepts data."""
        self._idle_ns: int | None = None
        """Time since when it holds the lease without being active."""
        self._forced_until_ns = 0
        self._is_degraded = memory.degraded == name
        self._note = 0
        self._is_said = False
        self._round = 0
        self._next_ns = now_ns
        self._soon_ns = config.promise_ns // SOON

    def holds(self, now_ns: int) -> bool:
        return self._claim is not None and self._claim.is_held and now_ns < self.until_ns

    @property
    def epoch(self) -> int:
        """The newest epoch that this router knows."""
        return self._epoch_seen

    @property
    def has_only_own_epochs(self) -> bool:
        """True if there was no holder yet, or if this router itself requested the newest epoch."""
        is_own = self._voter.memory.holder == self._name and is_first_router(self._epoch_seen) == self._is_first
        return self._epoch_seen == 0 or is_own

    def handle(self, event: LeaseEvent, now_ns: int) -> list[LeaseInstruction]:
        told = self._expire(now_ns)
        match event:
            case Heard(sender, message):
                told += self._heard(sender, message, now_ns)
            case Kept():
                told += self._vote(event, now_ns)
            case Reached():
                self._next_ns = min(self._next_ns, now_ns)
            case Fit(is_fit):
                self._is_fit = is_fit
                if not is_fit and not self._forced_until_ns and not self.holds(now_ns):
                    self._claim = None  # a vote that is about to be granted must not go to this router
            case Able(is_able):
                self.is_able = is_able
                if not is_able and not self._is_degraded:
                    told += self._release(now_ns)
            case Serving(is_serving):
                told += self._served(is_serving, now_ns)
            case NoteDegraded(is_degraded):
                if self.holds(now_ns) and is_degraded != self._is_degraded:
                    self._wish(is_degraded)
                    self._next_ns = now_ns
            case Release():
                told += self._release(now_ns)
            case Force():
                self._force(now_ns)
            case Tick():
                pass
            case _:
                refuse(self, event)
        if now_ns >= self._next_ns and self._is_wanted(now_ns):
            told += self._ask(now_ns)
        return told

    def next_deadline_ns(self) -> int | None:
        if self._claim is not None and self._claim.is_held:
            deadline_ns = min(self.until_ns, self._next_ns)
            return deadline_ns if self._idle_ns is None else min(deadline_ns, self._idle_ns + self._config.promise_ns)
        if not self.is_able or (not self._forced_until_ns and not self._is_candidate()):
            return None
        return max(self._next_ns, self._voter.bound_until_ns(self._name))

    # Requesting

    def _is_wanted(self, now_ns: int) -> bool:
        if self._claim is not None and self._claim.is_held:
            return True
        if self._forced_until_ns and now_ns >= self._forced_until_ns:
            self._forced_until_ns, self._claim = 0, None
        is_wanted = self._is_candidate() or self._forced_until_ns > 0
        return is_wanted and self.is_able and now_ns >= self._voter.bound_until_ns(self._name)

    def _is_candidate(self) -> bool:
        return self._is_fit and not self._voter.is_barred(self._name)

    def _ask(self, now_ns: int) -> list[LeaseInstruction]:
        claim = self._claim
        if claim is None or (not claim.is_held and claim.epoch != self._next_epoch()):
            claim = self._claim = _Claim(self._next_epoch(), self._forced_until_ns > 0)
            self._note, self._is_said = 0, False
        self._round += 1
        claim.rounds[self._round] = now_ns
        claim.rounds.pop(self._round - ROUNDS_KEPT, None)
        pause_ns = self._config.promise_ns // RENEWALS
        ask = self._question(claim, self._round)
        told: list[LeaseInstruction] = [Tell(voter, ask) for voter in self._others]
        if claim.is_held:
            self._next_ns = now_ns + pause_ns
            told += self._vote(Heard(self._name, ask), now_ns)
        else:
            self._next_ns = now_ns + pause_ns + self._randomness.below(pause_ns)
            self._voter.reserve(self._name, self._next_ns)
        return told

    def _ask_soon(self, now_ns: int) -> None:
        """A voter is still bound to another router, although this router's own is not."""
        if self._claim is None or self._claim.is_held:
            return
        self._next_ns = min(self._next_ns, now_ns + self._soon_ns + self._randomness.below(self._soon_ns))
        self._soon_ns *= 2

    def _give_way(self, now_ns: int) -> None:
        """A voter is bound to the other router, which holds or will soon get the lease. This router votes for it, so
        that the lease does not depend on the third voter alone."""
        if self._claim is None or not (self._claim.is_held or self._claim.granted_ns):
            self._voter.free(now_ns)

    def _next_epoch(self) -> int:
        """Return the next epoch. The first epoch of each router is reserved for routers that know no epoch, so that
        voters recognise the claim of a new pair."""
        known = max(self._epoch_seen, EPOCHS_OF_NEW_PAIR) if self._epoch_seen else 0
        return min(next_epoch(known, self._is_first), EPOCH_MAX)

    def _question(self, claim: _Claim, number: int) -> Ask:
        return Ask(claim.epoch, number, self._note, self._is_degraded, claim.is_forced)

    def _wish(self, is_degraded: bool) -> None:
        self._is_degraded, self._is_said = is_degraded, False
        self._note += 1

    def _force(self, now_ns: int) -> None:
        self._forced_until_ns = now_ns + 2 * self._config.promise_ns
        self._next_ns = min(self._next_ns, now_ns)
        if self._claim is not None and not self._claim.is_held:
            self._claim.is_forced = True

    # Messages of voters

    def _heard(self, sender: str, message: Message, now_ns: int) -> list[LeaseInstruction]:
        if sender not in self._others:
            return []
        match message:
            case Granted():
                return self._granted(sender, message, now_ns)
            case Denied(epoch, number, reason):
                self._epoch_seen = max(self._epoch_seen, epoch)
                if reason == "held" and number == self._round:
                    self._give_way(now_ns)
                    self._ask_soon(now_ns)
                return []
            case _:
                told = self._vote(Heard(sender, message), now_ns)
                if self._voter.bound_to(now_ns) == sender:
                    self._soon_ns = self._config.promise_ns // SOON
                elif isinstance(message, Released) and not self.holds(now_ns):  # there is no holder: the lease is free
                    self._next_ns = min(self._next_ns, now_ns)
                return told

    def _vote(self, event: VoterEvent, now_ns: int) -> list[LeaseInstruction]:
        """Pass an event to this router's own voter: answers to others are sent, answers to itself are handled here."""
        told: list[LeaseInstruction] = []
        for instruction in self._voter.handle(event, now_ns):
            match instruction:
                case Tell(to, Granted() as granted) if to == self._name:
                    told += self._granted(self._name, granted, now_ns)
                case Tell(to) if to == self._name:
                    pass  # this round has one vote less
                case _:
                    told.append(instruction)
        claim = self._claim
        if claim is None or not claim.is_held:
            self._epoch_seen = max(self._epoch_seen, self._voter.memory.epoch)
            self._is_degraded &= self._voter.memory.holder in ("", self._name)
        return told

    def _granted(self, voter: str, granted: Granted, now_ns: int) -> list[LeaseInstruction]:
        claim = self._claim
        if claim is None or granted.epoch != claim.epoch or granted.round not in claim.rounds:
            return []
        asked_ns = claim.rounds[granted.round]
        claim.granted_ns[voter] = max(claim.granted_ns.get(voter, asked_ns), asked_ns)
        claim.noted[voter] = (granted.note, granted.is_degraded)
        if granted.is_degraded and not claim.is_held and not self._is_degraded:
            self._wish(True)
        if self._name in claim.granted_ns:
            return self._extend(claim, now_ns)
        return self._vote(Heard(self._name, self._question(claim, granted.round)), now_ns)

    def _extend(self, claim: _Claim, now_ns: int) -> list[LeaseInstruction]:
        """Extend the lease. This router's own voter is always in the majority, so its disk knows every epoch that it
        held."""
        others_ns = [claim.granted_ns[voter] for voter in self._others if voter in claim.granted_ns]
        if not others_ns:
            return []
        until_ns = min(claim.granted_ns[self._name], max(others_ns)) + self._config.holding_ns
        if now_ns >= until_ns:
            return []
        told: list[LeaseInstruction] = []
        self.until_ns = until_ns
        if not claim.is_held:
            claim.is_held, self._epoch_seen, self._next_ns = True, claim.epoch, now_ns
            self._forced_until_ns = 0
            if claim.is_forced:
                self._wish(self._is_degraded)  # removes a note about the other router
            told.append(LeaseAcquired(claim.epoch))
        if not self._is_said and self._is_noted(claim):
            self._is_said = True
            told.append(DegradedNoted(claim.epoch, self._is_degraded))
        return told

    def _is_noted(self, claim: _Claim) -> bool:
        """True if the note is effective. The other router needs its own vote and one of two: it gets none if this
        router and one other voter have noted the degradation, and could get one as soon as this router and one other
        have removed the note."""
        agreed = [voter for voter, noted in claim.noted.items() if noted == (self._note, self._is_degraded)]
        return self._name in agreed and len(agreed) > 1

    # Ending the lease

    def _expire(self, now_ns: int) -> list[LeaseInstruction]:
        claim = self._claim
        if claim is None or not claim.is_held or now_ns < self.until_ns:
            return []
        self._claim = None
        self._next_ns = now_ns + self._randomness.below(self._config.promise_ns // RENEWALS)
        return [LeaseLost(claim.epoch)]

    def _served(self, is_serving: bool, now_ns: int) -> list[LeaseInstruction]:
        if is_serving or not self.holds(now_ns):
            self._idle_ns = None
        elif self._idle_ns is None:
            self._idle_ns = now_ns
        elif now_ns - self._idle_ns >= self._config.promise_ns:
            return self._release(now_ns)
        return []

    def _release(self, now_ns: int) -> list[LeaseInstruction]:
        """Give up the lease and request it again only after two leases, so that the other router can get it."""
        self._next_ns = now_ns + 2 * self._config.promise_ns
        claim, self._claim = self._claim, None
        if claim is None or not claim.is_held:
            return []
        released = Released(claim.epoch)
        told: list[LeaseInstruction] = [Tell(voter, released) for voter in self._others]
        self._voter.handle(Heard(self._name, released), now_ns)
        return [LeaseLost(claim.epoch), *told]
