"""What the two routers of a pair say to each other, and the grammar of a pair's core (protocol/assured.md).

active router                     the other one, which stands by
  │ Standing ◄──────────────────► Standing    who I am, in which epoch: at the beginning, and whenever it changes
  │ Resync ──────────────────────► │          what follows is all that I have
  │ Defined …, LIVE frames … ────► │          the endpoints, and the ids of their messages that are replicated
  │ Listed ──────────────────────► │
  │ ◄───────────────────── Lacking │          the endpoints that I have not got; also later, when that changes
  │ ◄────────────── MISSING frames │          those that I have not got; what is not listed I have dropped
  │ RECORDS frames ──────────────► │          these first, then whatever happens
  │ ◄───────────────────── StoredTo│          it is on my disk, up to there
  │ Whole ───────────────────────► │          you have all there is
  │ ◄─────────────────────── Switch│          let me be the active one
  │ Yielded ─────────────────────► │          you have all there is, and I am active no more

PeerOpened, PeerClosed, PeerFrame    the link to the other router: frames without their length
SwitchHere                           an operator's order: this router is to be the active one
HandOver                             this router is to stop: the other is to be the active one
Degrade                              another: synchronous messages do not wait for the other router, or do again
    ->  PeerSend, PeerEnd            frames with their length
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

from penstock.assured.config import Milliseconds, Role
from penstock.assured.core.lease.protocol import Epoch, Heard, Kept, LeaseConfig, LeaseInstruction, Reached
from penstock.assured.core.router.events import Event, Instruction
from penstock.base.config import Config
from penstock.base.errors import ConfigurationError, RemoteProtocolError
from penstock.net.core.control import U32, U64, ControlProtocol, Name, Version
from penstock.net.core.framing import encode_frame

MESSAGE_SIZE_MAX = 1024 * 1024
MIB = 1024 * 1024
LACKING_MAX = 131_072
LEFT_MAX = 256


class PairConfig(Config, frozen=True):
    """Of a router that has another beside it."""

    routers: tuple[Name, Name]
    """The pair; the first of them begins, when both are new."""

    lease: LeaseConfig | None = None
    """Who is active is decided by a majority with a witness; without it, by operators."""

    degrade: Literal["after", "never"] = "after"
    """What becomes of synchronous traffic when the other router does not answer: it is acknowledged as degraded after a
    while, or it waits."""

    degrade_after_ms: Milliseconds = 1_000
    matching: Literal["secondary", "primary"] = "secondary"
    """Who finds out which endpoints want a message that is replicated (REPL-4): the router that stands by, by its own
    interests, or the active one, which sends the endpoints along. It is the active one also if the other router wants
    it so, or has found others than the active one."""

    mirror: Literal["all", "endpoints", "none"] = "all"
    """What this router takes over from the other one (REPL-6): endpoints as the active one has them, and what clients'
    tokens are checked with; the rest, or all of it, is configured by hand at both."""

    transactions: Literal["stream", "at_commit"] = "stream"
    """When what a transaction publishes goes to the other router: as it comes, or as one operation at its commit."""

    window_bytes: Annotated[int, msgspec.Meta(ge=65_536, le=2**30)] = 8 * MIB
    """Sent to the other router and not stored there yet; one frame in any case."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.routers[0] == self.routers[1]:
            raise ConfigurationError("a pair has two routers", where="pair", hint="each has a name of its own")
        if self.lease is not None and self.lease.routers != self.routers:
            raise ConfigurationError("the lease is another pair's", where="pair")


class Standing(msgspec.Struct, tag="standing", frozen=True):
    name: Name
    role: Role
    epoch: Epoch
    """The newest in which this router was active, or had all that the active one had."""

    is_willing: bool = False
    """Whether it was the active one when it stopped, or is the first of a new pair."""

    is_voting: bool = False
    """Whether a lease decides who is active: both are of one mind about that, or are no pair."""

    is_matching: bool = False
    """Whether it finds out by itself which endpoints want a message."""

    is_storing: bool = True
    """Whether its disk takes what comes."""

    is_degraded: bool = False
    """Of the active one: whether synchronous messages do not wait for the other."""


def check_standing(mine: Standing, theirs: Standing, routers: tuple[str, str]) -> None:
    if theirs.name not in routers or theirs.name == mine.name:
        raise RemoteProtocolError(f"{theirs.name} is not the other router")
    if theirs.is_voting != mine.is_voting:
        raise RemoteProtocolError("only one of the two routers has a lease")


def is_to_begin(mine: Standing, theirs: Standing, is_first: bool) -> bool:
    """Of two routers that stand by, whether this one becomes active. If neither is willing in one epoch, one has
    yielded and the other never heard it: both have everything."""
    if theirs.role == "active" or mine.epoch < theirs.epoch:  # it may have lost its disk, and the other has it all
        return False
    if mine.is_willing and theirs.is_willing:
        return (mine.epoch, is_first) > (theirs.epoch, not is_first)
    if not theirs.is_willing:
        return mine.is_willing or (is_first and mine.epoch == theirs.epoch > 0)
    return False


class Resync(msgspec.Struct, tag="resync", frozen=True):
    stream: U32
    """What is answered names it: answers to an earlier one may still be on their way."""

    epoch: Epoch
    since_epoch: Epoch
    since_id: U64
    """It became active in `since_epoch`, and of the epochs before had everything up to this id: later messages of those
    epochs were never sent to it."""


class Defined(msgspec.Struct, tag="defined", frozen=True):
    number: U32
    """That the sender has for it."""

    definition: Annotated[bytes, msgspec.Meta(max_length=MESSAGE_SIZE_MAX)]
    """In JSON, as in its log."""

    is_deleted: bool = False


class Listed(msgspec.Struct, tag="listed", frozen=True):
    id_highest: U64 = 0
    """Of all messages that there were by then, whether they have copies or not."""


class Lacking(msgspec.Struct, tag="lacking", frozen=True):
    """Where endpoints are defined by hand at both: of these there are no copies."""

    stream: U32
    numbers: Annotated[list[U32], msgspec.Meta(max_length=LACKING_MAX)]
    """That the active router has for them; all that are lacking now."""


class Whole(msgspec.Struct, tag="whole", frozen=True):
    epoch: Epoch


class StoredTo(msgspec.Struct, tag="stored_to", frozen=True):
    stream: U32
    position: U64


class Switch(msgspec.Struct, tag="switch", frozen=True):
    pass


class Yielded(msgspec.Struct, tag="yielded", frozen=True):
    epoch: Epoch
    left: Annotated[dict[Name, U64], msgspec.Meta(max_length=LEFT_MAX)] = {}
    """By endpoint: messages that have no copies, and stay behind; of so many endpoints, those with the most."""


Message: TypeAlias = Standing | Resync | Defined | Listed | Lacking | Whole | StoredTo | Switch | Yielded

PAIR: ControlProtocol[Message] = ControlProtocol("pair", Version(1, 0), Message)


def encode(message: Message) -> bytes:
    """As a frame."""
    return encode_frame(PAIR.encode(message, MESSAGE_SIZE_MAX))


# Events


class PeerOpened(msgspec.Struct, frozen=True):
    """A link to the other router is there; one that was there before is not used any more."""

    link: int


class PeerClosed(msgspec.Struct, frozen=True):
    link: int


class PeerFrame(msgspec.Struct, frozen=True):
    link: int
    data: bytes


class SwitchHere(msgspec.Struct, frozen=True):
    is_forced: bool = False
    """Also if the other router does not answer, or has what this one has not."""


class HandOver(msgspec.Struct, frozen=True):
    """This router is to stop: the other one is to be active, as soon as it has everything."""


class Degrade(msgspec.Struct, frozen=True):
    """Of the active router, until it is told otherwise or stands by."""

    is_ordered: bool


# Instructions


class PeerSend(msgspec.Struct, frozen=True):
    link: int
    data: bytes


class PeerEnd(msgspec.Struct, frozen=True):
    link: int
    why: str


PeerEvent: TypeAlias = PeerOpened | PeerClosed | PeerFrame | SwitchHere | HandOver | Degrade
PeerInstruction: TypeAlias = PeerSend | PeerEnd
PairEvent: TypeAlias = Event | PeerEvent | Heard | Kept | Reached
PairInstruction: TypeAlias = Instruction | PeerInstruction | LeaseInstruction
