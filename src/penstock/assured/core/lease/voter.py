"""A voter for the lease: a complete witness, and a part of each router (REPL-14)."""

import msgspec

from penstock.assured.core.lease.protocol import (
    EPOCHS_OF_NEW_PAIR,
    Ask,
    Denied,
    Granted,
    Heard,
    Keep,
    Kept,
    LeaseConfig,
    Memory,
    Message,
    Reason,
    Released,
    Tell,
    VoterEvent,
    VoterInstruction,
)
from penstock.base.core import Tick, refuse


class _Waiting(msgspec.Struct, frozen=True):
    """The router that gets the promise when it is on the disk."""

    candidate: str
    ask: Ask


class LeaseVoter:
    """Gives its vote to one router at a time, for one lease.

    The last grant is on its disk, but not its duration. After a restart the voter is therefore bound to the last
    holder for a whole lease, as if it had just granted it; it may renew that holder's lease at once.
    """

    def __init__(self, config: LeaseConfig, memory: Memory, now_ns: int) -> None:
        self.memory = memory
        self._config = config
        self._bound_to = memory.holder
        self._bound_until_ns = now_ns + config.promise_ns
        self._waiting: _Waiting | None = None
        self._is_reserved = False

    def handle(self, event: VoterEvent, now_ns: int) -> list[VoterInstruction]:
        match event:
            case Heard(sender, message):
                return self._heard(sender, message, now_ns)
            case Kept():
                return self._kept(now_ns)
            case Tick():
                return []
            case _:
                refuse(self, event)

    def next_deadline_ns(self) -> int | None:
        return None

    def bound_until_ns(self, candidate: str) -> int:
        """The time until which it is bound to another router than `candidate`; in the past if it is not."""
        return 0 if self._bound_to == candidate else self._bound_until_ns

    def bound_to(self, now_ns: int) -> str:
        """The router that has its vote now; empty: none."""
        return self._bound_to if now_ns < self._bound_until_ns else ""

    def is_barred(self, candidate: str) -> bool:
        """True if another router is degraded, which bars this candidate."""
        return self.memory.degraded not in ("", candidate)

    def reserve(self, candidate: str, until_ns: int) -> None:
        """Vote for no other router while this candidate asks the others: a reservation, not a promise that survives
        a restart."""
        self._bound_to, self._bound_until_ns = candidate, until_ns
        self._is_reserved = True

    def free(self, now_ns: int) -> None:
        """The candidate's claim has failed: a reservation ends, a promise does not."""
        if self._is_reserved:
            self._bound_until_ns = min(self._bound_until_ns, now_ns)

    def _heard(self, sender: str, message: Message, now_ns: int) -> list[VoterInstruction]:
        if sender not in self._config.routers:
            return []
        match message:
            case Ask():
                return self._asked(sender, message, now_ns)
            case Released(epoch):
                if (epoch, sender) == (self.memory.epoch, self.memory.holder) and self._bound_to == sender:
                    self._bound_until_ns = now_ns
        return []

    def _asked(self, candidate: str, ask: Ask, now_ns: int) -> list[VoterInstruction]:
        if (reason := self._objection(candidate, ask, now_ns)) is not None:
            return [Tell(candidate, Denied(self.memory.epoch, ask.round, reason))]
        self._bind(candidate, now_ns)
        memory = self._after(candidate, ask)
        if memory == self.memory:
            return [self._grant(candidate, ask)]
        self._waiting = _Waiting(candidate, ask)
        return [Keep(memory)]

    def _objection(self, candidate: str, ask: Ask, now_ns: int) -> Reason | None:
        memory = self.memory
        if self._waiting is not None:
            return "busy"
        if (ask.epoch, candidate) == (memory.epoch, memory.holder):
            return None
        if ask.epoch <= memory.epoch:
            return "epoch"
        if now_ns < self.bound_until_ns(candidate):
            return "held"
        if ask.is_forced:
            return None
        if self.is_barred(candidate):
            return "alone"
        is_new_pair = ask.epoch <= EPOCHS_OF_NEW_PAIR
        return "first" if is_new_pair and candidate != self._config.routers[0] else None

    def _after(self, candidate: str, ask: Ask) -> Memory:
        """Return the memory after a grant. A claim removes no note, because it may fail. A holder removes its note
        explicitly."""
        memory = self.memory
        is_new = ask.epoch != memory.epoch
        if is_new and not ask.note and not ask.is_degraded:
            return Memory(ask.epoch, candidate, memory.degraded)
        if is_new or ask.note > memory.note:
            return Memory(ask.epoch, candidate, candidate if ask.is_degraded else "", ask.note)
        return memory

    def _kept(self, now_ns: int) -> list[VoterInstruction]:
        waiting = self._waiting
        if waiting is None:
            return []
        self.memory = self._after(waiting.candidate, waiting.ask)
        self._waiting = None
        self._bind(waiting.candidate, now_ns)
        return [self._grant(waiting.candidate, waiting.ask)]

    def _bind(self, candidate: str, now_ns: int) -> None:
        self._bound_to, self._bound_until_ns = candidate, now_ns + self._config.promise_ns
        self._is_reserved = False

    def _grant(self, candidate: str, ask: Ask) -> Tell:
        return Tell(candidate, Granted(ask.epoch, ask.round, self.memory.note, self.memory.degraded == candidate))
