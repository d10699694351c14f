"""What the three voters of a pair of routers say to each other, and the grammar of their cores (protocol/lease.md).

candidate or holder            voter (either router, or the witness)
  │ LeaseTerms ◄────────► LeaseTerms│    what we were told, first of all
  │ Ask ────────────────────────► │    give me the lease of this epoch, or let me keep it
  │ ◄───────────────────── Granted│    it is yours for one lease from now on
  │ ◄─────────────────────── Denied│    it is not, and why
  │ Released ───────────────────► │    I hold it no more

Heard, Kept, Tick                        events of every voter
Tell, Keep                               its instructions; Kept is the answer to Keep
Reached, Fit, Able, Serving, NoteDegraded, Release, Force  further events of the voter of a router
LeaseAcquired, LeaseLost, DegradedNoted  its further instructions

Nobody compares clocks. A voter keeps its promise for `lease_ms` after it gave it, by its own clock; the holder acts for
a little less than that after it asked, by its own: less by as much as two clocks can differ in that time.
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
"""The epoch is the upper part of every message's id."""

EPOCHS_OF_NEW_PAIR = 2
"""Up to here a router asks that has heard of no epoch; one that has asks for a higher one."""

Epoch = Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)]
Holder = Annotated[str, msgspec.Meta(max_length=64)]
Reason: TypeAlias = Literal["epoch", "held", "alone", "first", "busy"]


def next_epoch(known: int, is_first: bool) -> int:
    """The first router of a pair has odd epochs, the other one even ones: so an epoch says whose it is, and no two
    messages ever have one id, also if both routers are active for a while because an operator forced one of them."""
    return known + 1 + ((known + 1) % 2 != is_first)


def is_first_router(epoch: int) -> bool:
    """Whether an epoch is the first router's of a pair."""
    return epoch % 2 == 1


class LeaseConfig(Config, frozen=True):
    """Automatic switching (REPL-14): who votes, and for how long a promise holds."""

    routers: tuple[Name, Name]
    """The pair; the first of them begins, when nobody has ever held the lease."""

    witness: Name
    lease_ms: Annotated[int, msgspec.Meta(ge=50, le=600_000)] = 3_000
    """A router that nobody hears of is replaced after about so long."""

    drift_ppm: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 10_000
    """How much faster or slower than true time a clock may run, in millionths; the holder gives up so much earlier."""

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
        """How long a voter is bound by what it granted, by its own clock."""
        return self.lease_ms * NS_PER_MS

    @property
    def holding_ns(self) -> int:
        """How long a holder acts after it asked, by its own clock: over before the promise is, on any two clocks."""
        return self.promise_ns * (1_000_000 - self.drift_ppm) // (1_000_000 + self.drift_ppm)


class Memory(msgspec.Struct, frozen=True):
    """What a voter never forgets: it is on the disk before the voter acts on it."""

    epoch: Epoch = 0
    """The newest that was granted."""

    holder: Holder = ""
    degraded: Holder = msgspec.field(default="", name="alone")
    """The router that has acknowledged messages which the other does not have: the other is not to become active."""

    note: U32 = 0
    """How often the holder has changed its mind about that under this epoch: an older wish that comes late is void."""


# Messages


class Ask(msgspec.Struct, tag="ask", frozen=True):
    epoch: Epoch
    round: U32
    """Counts what a candidate asks; the answer names it, and the candidate knows when it asked."""

    note: U32 = 0
    is_degraded: bool = msgspec.field(default=False, name="is_alone")
    """Noted with the promise (REPL-8): no automatic switch while the holder is degraded."""

    is_forced: bool = False
    """By an operator's order, also if the other router is degraded: what only that one has is given up."""


class Granted(msgspec.Struct, tag="granted", frozen=True):
    epoch: Epoch
    round: U32
    note: U32
    is_degraded: bool = msgspec.field(name="is_alone")
    """What the voter has on its disk."""


class Denied(msgspec.Struct, tag="denied", frozen=True):
    epoch: Epoch
    """The newest that the voter has granted."""

    round: U32
    reason: Reason


class Released(msgspec.Struct, tag="released", frozen=True):
    epoch: Epoch


class LeaseTerms(msgspec.Struct, tag="terms", frozen=True):
    """The first word of both sides on a connection: voters that were told different things do not vote together. A
    promise of three seconds is worth nothing to somebody who counts on five."""

    routers: tuple[Holder, Holder]
    witness: Holder
    lease_ms: U32
    drift_ppm: U32


Message: TypeAlias = Ask | Granted | Denied | Released
"""What voters are told; the terms are for those who carry it."""

LEASE: ControlProtocol[Message | LeaseTerms] = ControlProtocol("lease", Version(1, 0), Message | LeaseTerms)

# Events


class Heard(msgspec.Struct, frozen=True):
    sender: str
    message: Message


class Kept(msgspec.Struct, frozen=True):
    """What was to be kept is on the disk."""


class Reached(msgspec.Struct, frozen=True):
    """A connection to a voter that this router asks was established: a question that was dropped before can be asked
    now."""

    voter: str


class Fit(msgspec.Struct, frozen=True):
    """Whether this router could be active at all: it has a whole copy, or is the first of a new pair."""

    is_fit: bool


class Able(msgspec.Struct, frozen=True):
    """Whether this router's disk takes anything. One whose disk does not asks for nothing, and gives the lease up; but
    not if it is degraded: the other could not take it."""

    is_able: bool


class Serving(msgspec.Struct, frozen=True):
    """Whether this router is active. A holder that is not for a whole lease gives it up: its disk may not take the
    epoch, and the other router may be luckier."""

    is_serving: bool


class NoteDegraded(msgspec.Struct, frozen=True):
    """The holder wants to acknowledge what the other router does not have, or does so no more. Of no effect without the
    lease: LeaseAcquired is followed by DegradedNoted, which says what is noted."""

    is_degraded: bool


class Release(msgspec.Struct, frozen=True):
    """The holder gives the lease up, for the other router."""


class Force(msgspec.Struct, frozen=True):
    """An operator wants this router active, whatever only the other one has. Good for two leases: an order that could
    not be carried out is not to surprise anybody later."""


# Instructions


class Tell(msgspec.Struct, frozen=True):
    to: str
    message: Message


class Keep(msgspec.Struct, frozen=True):
    """Make this durable in place of what was kept before. If the disk fails, try again: without it there is no vote."""

    memory: Memory


class LeaseAcquired(msgspec.Struct, frozen=True):
    """This router holds the lease from now on, under an epoch that nobody had before."""

    epoch: int


class LeaseLost(msgspec.Struct, frozen=True):
    """It holds it no more: it acknowledges and delivers nothing."""

    epoch: int


class DegradedNoted(msgspec.Struct, frozen=True):
    """Enough voters know it that the other router cannot become active; or all that answer have struck it off."""

    epoch: int
    is_degraded: bool


VoterEvent: TypeAlias = Heard | Kept | Tick
VoterInstruction: TypeAlias = Tell | Keep
LeaseEvent: TypeAlias = VoterEvent | Reached | Fit | Able | Serving | NoteDegraded | Release | Force
LeaseInstruction: TypeAlias = VoterInstruction | LeaseAcquired | LeaseLost | DegradedNoted
