"""The messages between the two routers of a pair, and the events of a pair's core (protocol/assured.md).

active router                     standby
  │ Standing ◄──────────────────► Standing    name, role and epoch: at the beginning, and after changes
  │ Resync ──────────────────────► │          a complete list follows
  │ Defined …, LIVE frames … ────► │          the endpoints, and the ids of their replicated messages
  │ Listed ──────────────────────► │
  │ ◄───────────────────── Lacking │          endpoints that the standby lacks; also after changes
  │ ◄────────────── MISSING frames │          messages that the standby lacks; it has dropped unlisted ones
  │ RECORDS frames ──────────────► │          the missing messages, then all events
  │ ◄───────────────────── StoredTo│          stored on the standby's disk up to here
  │ Whole ───────────────────────► │          the standby has everything
  │ ◄─────────────────────── Switch│          a request to become active
  │ Yielded ─────────────────────► │          the standby has everything, and this router is no longer active

PeerOpened, PeerClosed, PeerFrame    the link to the other router: frames without their length
SwitchHere                           an operator's order: this router must become active
HandOver                             this router must stop: the other one must become active
Degrade                              synchronous messages do not wait for the other router, or do again
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
    """Configuration of a router in a pair."""

    routers: tuple[Name, Name]
    """The pair; the first router begins if both are new."""

    lease: LeaseConfig | None = None
    """The lease, by which a majority with a witness selects the active router; without it, operators do."""

    degrade: Literal["after", "never"] = "after"
    """Synchronous messages while the standby does not answer: acknowledged as degraded after a while, or waiting."""

    degrade_after_ms: Milliseconds = 1_000
    matching: Literal["secondary", "primary"] = "secondary"
    """The router that matches replicated messages with endpoints (REPL-4): the standby with its own interests, or
    the active one, which sends the endpoints along. The active router also does it if the standby requires it, or
    has found other endpoints."""

    mirror: Literal["all", "endpoints", "none"] = "all"
    """What this router takes over from the other one (REPL-6): the endpoints and token state of the active router,
    only the endpoints, or nothing. The rest must be configured equally at both."""

    transactions: Literal["stream", "at_commit"] = "stream"
    """Time at which a transaction's messages go to the standby: when they are published, or all at the commit."""

    window_bytes: Annotated[int, msgspec.Meta(ge=65_536, le=2**30)] = 8 * MIB
    """Maximum number of bytes sent to the standby and not stored there yet; one frame is allowed in any case."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.routers[0] == self.routers[1]:
            raise ConfigurationError("a pair has two routers", where="pair", hint="the two names must differ")
        if self.lease is not None and self.lease.routers != self.routers:
            raise ConfigurationError("the lease belongs to another pair", where="pair")


class Standing(msgspec.Struct, tag="standing", frozen=True):
    name: Name
    role: Role
    epoch: Epoch
    """The newest epoch in which this router was active, or had everything that the active one had."""

    is_willing: bool = False
    """True if it was active when it stopped, or is the first of a new pair."""

    is_voting: bool = False
    """True if a lease selects the active router; both routers must have the same value."""

    is_matching: bool = False
    """True if it matches messages itself."""

    is_storing: bool = True
    """True if its disk accepts data."""

    is_degraded: bool = False
    """For the active router: True if synchronous messages do not wait for the standby."""


def check_standing(mine: Standing, theirs: Standing, routers: tuple[str, str]) -> None:
    if theirs.name not in routers or theirs.name == mine.name:
        raise RemoteProtocolError(f"{theirs.name} is not the other router")
    if theirs.is_voting != mine.is_voting:
        raise RemoteProtocolError("only one of the two routers has a lease")


def is_to_begin(mine: Standing, theirs: Standing, is_first: bool) -> bool:
    """Of two standby routers, return True if this one becomes active. If neither is willing in the same epoch, one
    has yielded and the other never got the message: both have everything."""
    # it may have lost its disk, and the other one has everything
    if theirs.role == "active" or mine.epoch < theirs.epoch:
        return False
    if mine.is_willing and theirs.is_willing:
        return (mine.epoch, is_first) > (theirs.epoch, not is_first)
    if not theirs.is_willing:
        return mine.is_willing or (is_first and mine.epoch == theirs.epoch > 0)
    return False


class Resync(msgspec.Struct, tag="resync", frozen=True):
    stream: U32
    """Repeated in answers, because answers to an earlier stream may still be on their way."""

    epoch: Epoch
    since_epoch: Epoch
    since_id: U64
    """It became active in `since_epoch`, and had everything of earlier epochs up to this id: later messages of those
    epochs were never sent to it."""


class Defined(msgspec.Struct, tag="defined", frozen=True):
    number: U32
    """The sender's number."""

    definition: Annotated[bytes, msgspec.Meta(max_length=MESSAGE_SIZE_MAX)]
    """As JSON, as in its log."""

    is_deleted: bool = False


class Listed(msgspec.Struct, tag="listed", frozen=True):
    id_highest: U64 = 0
    """Of all messages at that time, with or without copies."""


class Lacking(msgspec.Struct, tag="lacking", frozen=True):
    """Endpoints without copies, where both routers are configured by hand."""

    stream: U32
    numbers: Annotated[list[U32], msgspec.Meta(max_length=LACKING_MAX)]
    """The active router's numbers of all endpoints that are lacking now."""


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
    """By endpoint: messages without copies that are left behind; if there are many endpoints, those with the most
    messages."""


Message: TypeAlias = Standing | Resync | Defined | Listed | Lacking | Whole | StoredTo | Switch | Yielded

PAIR: ControlProtocol[Message] = ControlProtocol("pair", Version(1, 0), Message)


def encode(message: Message) -> bytes:
    """Encode as a frame."""
    return encode_frame(PAIR.encode(message, MESSAGE_SIZE_MAX))


# Events


class PeerOpened(msgspec.Struct, frozen=True):
    """A link to the other router is connected; an earlier one is no longer used."""

    link: int


class PeerClosed(msgspec.Struct, frozen=True):
    link: int


class PeerFrame(msgspec.Struct, frozen=True):
    link: int
    data: bytes


class SwitchHere(msgspec.Struct, frozen=True):
    is_forced: bool = False
    """Also if the other router does not answer, or has messages that this one lacks."""


class HandOver(msgspec.Struct, frozen=True):
    """This router must stop: the other one must become active, as soon as it has everything."""


class Degrade(msgspec.Struct, frozen=True):
    """For the active router, until it is undone or the router becomes the standby."""

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
