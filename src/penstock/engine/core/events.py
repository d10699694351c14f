"""The grammar of the distribution engine: what its core is told (events) and what it answers (instructions).

A **consumer** is who is attached, a small number of the driver's choice; a **subscription** is a number of the
consumer's choice. An **item** is a topic with a message model; the engine has its current record.

    Attach, Detach                    a consumer comes with its sinks, and goes
    Subscribe, Modify, Unsubscribe    what it wants
    RegionOpened                      where its adaptive records of a model go
    Overrun                           one of its rings was overrun
    Updates                           messages: the items' new records
    Session                           a session of a source stream began or ended: stale records are withdrawn
    Image, RecordWithdrawn, Removed, UpstreamLive, Reconcile, SessionTold, Lost    what a node above says
    LearnModel, ChangeClasses, Signals    what updates are, and how they are classed
    Tick
        ->  Ready                     sessions that have something to send
            OpenRegion                a consumer needs a region, or a larger one
            RegionTooLarge            and there may be none so large
            Wanted, Unwanted          what has to be asked of the node above, or no longer

Attach, Subscribe, Modify, RegionOpened and Overrun are refused with an error (LimitError, TopicError,
LocalProtocolError); then nothing has changed.
"""

from collections.abc import Sequence, Set
from typing import TypeAlias

import msgspec

from penstock.base.core import Tick
from penstock.engine.control import ClassName, ClassWish, RingName
from penstock.engine.core.classes import ClassMap
from penstock.engine.core.kernel._region_sink import RegionSink
from penstock.engine.core.kernel._sinks import SessionBuffer
from penstock.engine.core.signals import Readings
from penstock.middleware.core.events import SessionEvent
from penstock.model import MessageModel
from penstock.shm import RingWriter
from penstock.wire import MessageBatch, PacketMessage

# Events


class Sinks(msgspec.Struct, frozen=True):
    """Where a consumer's events go: into a ring, or into the buffer of its session. One with a ring of `notices` takes
    records of the adaptive class in regions. They stay the driver's, to be closed after Detach."""

    ring: RingWriter | None = None
    buffer: SessionBuffer | None = None
    notices: RingWriter | None = None


class Attach(msgspec.Struct, frozen=True):
    """A consumer comes. It wants nothing yet."""

    consumer: int
    name: str
    sinks: Sinks
    destination: str = ""
    """Where it is, for the operator and for rules."""

    classes: frozenset[ClassName] | None = None
    """Those that it takes; None: all that the node serves."""

    overrides: ClassMap | None = None
    """Rules of its own, which come before the node's."""


class Detach(msgspec.Struct, frozen=True):
    """A consumer is gone; one that is not there is no error."""

    consumer: int


class Subscribe(msgspec.Struct, frozen=True):
    """The current image of the topics, then every update after it. `number` is not in use by the consumer."""

    consumer: int
    number: int
    topics: Sequence[str]
    cls: ClassWish = "auto"
    per_second: float = 0.0
    """Of the metered class: updates of each item; 0: what the node allows."""

    after: int = 0
    """The number of the last critical update that it had of these topics, if this engine gave it: what came since is
    sent instead of the image, as far as it is known. 0: none."""


class Modify(msgspec.Struct, frozen=True):
    """Another rate for a subscription."""

    consumer: int
    number: int
    per_second: float


class Unsubscribe(msgspec.Struct, frozen=True):
    """What is on its way still comes."""

    consumer: int
    number: int
    is_told: bool = True
    """Whether the consumer knows; if not, it is told of every item that it no longer gets."""


class RegionOpened(msgspec.Struct, frozen=True):
    """The answer to OpenRegion: records of the model are written there from now on."""

    consumer: int
    model_id: int
    sink: RegionSink


class Overrun(msgspec.Struct, frozen=True):
    """The consumer has lost its place in a ring. In that of events, its last event of kind UPDATE and class critical is
    `last_number`, 0 for none: the ring begins anew, with the updates it missed or a receipt and refreshes. That of
    notices begins anew with all its records."""

    consumer: int
    last_number: int
    ring: RingName = "events"


class Updates(msgspec.Struct, frozen=True):
    """Whole messages, in order."""

    messages: MessageBatch | Sequence[PacketMessage]
    feed: str = ""
    """Where they came from."""


class Session(msgspec.Struct, frozen=True):
    """A session of a source stream began or ended, after the updates so far. Records whose last update came from that
    stream in another session, or in the ended session, are withdrawn, and consumers are notified. A repeated event
    changes nothing."""

    event: SessionEvent


class Image(msgspec.Struct, frozen=True):
    """The node above says what an item's record is: all that want it are refreshed."""

    topic: bytes
    model_id: int
    model_version: int
    version: int
    record: bytes
    started_ns: int = 0
    is_repair: bool = False
    """Whether updates before it were lost."""
    session_id: int = 0
    """The session of the record (sessions.py); 0 if unknown."""


class RecordWithdrawn(msgspec.Struct, frozen=True):
    """The upstream node has withdrawn the record of an item; this node withdraws it as well."""

    topic: bytes
    model_id: int
    version: int


class Reconcile(msgspec.Struct, frozen=True):
    """The upstream node has sent all images of these topics after a break: `known` are its items (topic and model). All
    other items of this node were withdrawn in the meantime."""

    topics: Sequence[str]
    known: Set[tuple[bytes, int]]


class SessionTold(msgspec.Struct, frozen=True):
    """A session event from the upstream node; this node forwards it. Withdrawals arrive separately for each item. This
    node itself withdraws records of ended sessions that the upstream node does not know, because it restarted."""

    body: bytes


class Removed(msgspec.Struct, frozen=True):
    """The node above says that an item is gone; so do we."""

    topic: bytes
    model_id: int


class UpstreamLive(msgspec.Struct, frozen=True):
    """The node above has sent all images of these topics, which were Wanted."""

    topics: Sequence[str]


class Lost(msgspec.Struct, frozen=True):
    """Updates did not come to this node: consumers get a receipt. Images follow."""


class LearnModel(msgspec.Struct, frozen=True):
    """A message model, or a newer version of one."""

    model: MessageModel


class ChangeClasses(msgspec.Struct, frozen=True):
    """Other rules for the class of updates."""

    rules: ClassMap


class Signals(msgspec.Struct, frozen=True):
    """How the node is doing."""

    readings: Readings


EngineEvent: TypeAlias = (
    Attach
    | Detach
    | Subscribe
    | Modify
    | Unsubscribe
    | RegionOpened
    | Overrun
    | Updates
    | Session
    | Image
    | RecordWithdrawn
    | Removed
    | UpstreamLive
    | Reconcile
    | SessionTold
    | Lost
    | LearnModel
    | ChangeClasses
    | Signals
    | Tick
)


# Instructions


class Ready(msgspec.Struct, frozen=True):
    """The buffers of these consumers have something to send, and had nothing, or were not named, before."""

    consumers: tuple[int, ...]


class OpenRegion(msgspec.Struct, frozen=True):
    """Make a region for at least so many records of the model, and say RegionOpened; the one before, if there was one,
    is not written any more then."""

    consumer: int
    model: MessageModel
    record_count: int


class RegionTooLarge(msgspec.Struct, frozen=True):
    """The consumer would need a region of more records than there may be: it gets no record of what came last. It is to
    be told, and served no longer."""

    consumer: int
    record_count: int


class Wanted(msgspec.Struct, frozen=True):
    """Consumers want these topics now, and nobody did before. A plant, which has everything, ignores it."""

    topics: tuple[str, ...]


class Unwanted(msgspec.Struct, frozen=True):
    """Nobody wants these any more."""

    topics: tuple[str, ...]


EngineInstruction: TypeAlias = Ready | OpenRegion | RegionTooLarge | Wanted | Unwanted

__all__ = [
    "Attach",
    "ChangeClasses",
    "Detach",
    "EngineEvent",
    "EngineInstruction",
    "Image",
    "LearnModel",
    "Lost",
    "Modify",
    "OpenRegion",
    "Overrun",
    "Ready",
    "Reconcile",
    "RecordWithdrawn",
    "RegionOpened",
    "RegionTooLarge",
    "Removed",
    "Session",
    "SessionTold",
    "Signals",
    "Sinks",
    "Subscribe",
    "Tick",
    "Unsubscribe",
    "Unwanted",
    "Updates",
    "UpstreamLive",
    "Wanted",
]
