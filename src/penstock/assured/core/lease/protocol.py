"""The messages between the three voters of a pair, and the events of their cores (protocol/lease.md).

candidate or holder            voter (either router, or the witness)
  │ LeaseTerms ◄────────► LeaseTerms│    the configuration, which must be equal
  │ Ask ────────────────────────► │    request or renew the lease of this epoch
  │ ◄───────────────────── Granted│    granted for one lease from now on
  │ ◄─────────────────────── Denied│    denied, with the reason
  │ Released ───────────────────► │    the lease is given up

Heard, Kept, Tick                        events of every voter
Tell, Keep                               its instructions; Kept is the answer to Keep
Reached, Fit, Able, Serving, NoteDegraded, Release, Force  further events of the voter of a router
LeaseAcquired, LeaseLost, DegradedNoted  its further instructions

Clocks are not compared. A voter keeps its promise for `lease_ms` after giving it, by its own clock; the holder acts for
a shorter time after its request, by its own clock: shorter by the maximum drift between two clocks in that time.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.base.config import Config
from penstock.base.core import Tick
from penstock.base.errors import ConfigurationError
from penstock.net.core.control import U32, ControlProtocol, Name, Version

VOTERS = 3
EPOCH_MAX = 2**24 - 1
"""The epoch is the upper part of every message id."""

EPOCHS_OF_NEW_PAIR = 2
"""Highest epoch for a router that knows no epoch; a router that knows one requests a higher one."""

Epoch = Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)]
Holder = Annotated[str, msgspec.Meta(max_length=64)]
Reason: TypeAlias = Literal["epoch", "held", "alone", "first", "busy"]


def next_epoch(known: int, is_first: bool) -> int:
    """The first router of a pair has odd epochs, the other one even ones. An epoch therefore identifies its router,
    and message ids are unique, even if both routers are active for a while because an operator forced one of them."""
    return known + 1 + ((known + 1) % 2 != is_first)


def is_first_router(epoch: int) -> bool:
    """True if the epoch belongs to the first router of a pair."""
    return epoch % 2 == 1


class LeaseConfig(Config, frozen=True):
    """Automatic switching (REPL-14): the voters, and the duration of a promise."""

    routers: tuple[Name, Name]
    """The pair; the first router begins if there was no holder yet."""

    witness: Name
    lease_ms: Annotated[int, msgspec.Meta(ge=50, le=600_000)] = 3_000
    """Approximate time after which a silent router is replaced."""

    drift_ppm: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 10_000
    """Maximum deviation of a clock from true time, in millionths; the holder stops earlier by this margin."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({*self.routers, self.witness}) != VOTERS:
            raise ConfigurationError(
                "a lease needs three voters", where="lease", hint="two routers and a witness, each with its own name"
            )

    @property
    def voters(self) -> tuple[str, str, str]:
        return (*self.routers, self.witness)

    @property
    def terms(self) -> "LeaseTerms":
        return LeaseTerms(self.routers, self.witness, self.lease_ms, self.drift_ppm)

    @property
    def promise_ns(self) -> int:
        """Time that a voter is bound by its grant, by its own clock."""
        return self.lease_ms * NS_PER_MS

    @property
    def holding_ns(self) -> int:
        """Time that a holder acts after its request, by its own clock: it ends before the promise, on any two
        clocks."""
        return self.promise_ns * (1_000_000 - self.drift_ppm) // (1_000_000 + self.drift_ppm)


class Memory(msgspec.Struct, frozen=True):
    """The permanent state of a voter, which is on the disk before the voter acts on it."""

    epoch: Epoch = 0
    """The newest granted epoch."""

    holder: Holder = ""
    degraded: Holder = msgspec.field(default="", name="alone")
    """The router that has acknowledged messages which the other one lacks: the other one must not become active."""

    note: U32 = 0
    """Number of changes of this note by the holder in this epoch; older requests that arrive late are ignored."""


# Messages


class Ask(msgspec.Struct, tag="ask", frozen=True):
    epoch: Epoch
    round: U32
    """Number of the request; the answer repeats it, so that the candidate knows the time of its request."""

    note: U32 = 0
    is_degraded: bool = msgspec.field(default=False, name="is_alone")
    """Recorded with the promise (REPL-8): no automatic switch while the holder is degraded."""

    is_forced: bool = False
    """Ordered by an operator: also if the other router is degraded, whose exclusive messages are given up."""


class Granted(msgspec.Struct, tag="granted", frozen=True):
    epoch: Epoch
    round: U32
    note: U32
    is_degraded: bool = msgspec.field(name="is_alone")
    """The state on the voter's disk."""


class Denied(msgspec.Struct, tag="denied", frozen=True):
    epoch: Epoch
    """The newest epoch that the voter has granted."""

    round: U32
    reason: Reason


class Released(msgspec.Struct, tag="released", frozen=True):
    epoch: Epoch


class LeaseTerms(msgspec.Struct, tag="terms", frozen=True):
    """The first message of both sides on a connection: voters with different configurations do not vote together,
    because a promise of three seconds is useless for a holder that counts on five."""

    routers: tuple[Holder, Holder]
    witness: Holder
    lease_ms: U32
    drift_ppm: U32


Message: TypeAlias = Ask | Granted | Denied | Released
"""Messages to voters; LeaseTerms are handled by the driver."""

LEASE: ControlProtocol[Message | LeaseTerms] = ControlProtocol("lease", Version(1, 0), Message | LeaseTerms)

# Events


class Heard(msgspec.Struct, frozen=True):
    sender: str
    message: Message


class Kept(msgspec.Struct, frozen=True):
    """The state of Keep is on the disk."""


class Reached(msgspec.Struct, frozen=True):
    """A voter has become reachable: questions that were dropped before can be repeated."""

    voter: str


class Fit(msgspec.Struct, frozen=True):
    """True if this router may become active: it has a complete copy, or is the first of a new pair."""

    is_fit: bool


class Able(msgspec.Struct, frozen=True):
    """True if this router's disk accepts data. Otherwise the router requests nothing and gives the lease up; but not
    if it is degraded, because the other router could not take over."""

    is_able: bool


class Serving(msgspec.Struct, frozen=True):
    """True if this router is active. A holder that is not active for a whole lease gives it up: its disk may refuse
    the epoch, and the other router may be able to act."""

    is_serving: bool


class NoteDegraded(msgspec.Struct, frozen=True):
    """The holder wants to acknowledge messages that the other router lacks, or has stopped doing so. No effect
    without the lease: LeaseAcquired is followed by DegradedNoted with the noted state."""

    is_degraded: bool


class Release(msgspec.Struct, frozen=True):
    """The holder gives the lease up in favour of the other router."""


class Force(msgspec.Struct, frozen=True):
    """An operator orders this router to become active, regardless of messages that only the other one has. Valid for
    two leases: an order that could not be carried out must not take effect later."""


# Instructions


class Tell(msgspec.Struct, frozen=True):
    to: str
    message: Message


class Keep(msgspec.Struct, frozen=True):
    """Write this to the disk in place of the previous state. If the disk fails, try again: without it the voter
    cannot vote."""

    memory: Memory


class LeaseAcquired(msgspec.Struct, frozen=True):
    """This router holds the lease from now on, under a new epoch."""

    epoch: int


class LeaseLost(msgspec.Struct, frozen=True):
    """This router no longer holds the lease: it acknowledges and delivers nothing."""

    epoch: int


class DegradedNoted(msgspec.Struct, frozen=True):
    """Enough voters know that the other router must not become active; or all answering voters have removed the
    note."""

    epoch: int
    is_degraded: bool


VoterEvent: TypeAlias = Heard | Kept | Tick
VoterInstruction: TypeAlias = Tell | Keep
LeaseEvent: TypeAlias = VoterEvent | Reached | Fit | Able | Serving | NoteDegraded | Release | Force
LeaseInstruction: TypeAlias = VoterInstruction | LeaseAcquired | LeaseLost | DegradedNoted
