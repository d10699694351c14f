"""The events that the distribution engine handles, and the instructions that it returns.

A **consumer** is identified by a small number that the driver chooses, a **subscription** by a number that the consumer
chooses. An **item** is a topic with a message model; the engine has its current record.

    Attach, Detach                    a consumer with its sinks
    Subscribe, Modify, Unsubscribe    its subscriptions
    RegionOpened                      the region for its adaptive records of a model
    Overrun                           one of its rings was overrun
    Updates                           messages: the items' new records
    SessionChanged                    a session of a source stream began or ended: stale records are withdrawn
    Image, RecordWithdrawn, Removed, UpstreamLive, Reconcile, SessionTold, Lost    from the upstream node
    LearnModel, ChangeClasses, Signals    models, class rules, and the load of the node
    Tick
        ->  Ready                     sessions that have events to send
            OpenRegion                a consumer needs a region, or a larger one
            RegionTooLarge            the region would exceed the limit
            Wanted, Unwanted          topics to be subscribed to, or no longer, at the upstream node

Attach, Subscribe, Modify, RegionOpened and Overrun are refused with an error (LimitError, TopicError,
LocalProtocolError). After an error nothing has changed.
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
    """A consumer's events go into a ring, or into the buffer of its session. A consumer with a ring of `notices` takes
    records of the adaptive class in regions. The driver owns the sinks, and closes them after Detach."""

    ring: RingWriter | None = None
    buffer: SessionBuffer | None = None
    notices: RingWriter | None = None


class Attach(msgspec.Struct, frozen=True):
    """A consumer attaches, without subscriptions."""

    consumer: int
    name: str
    sinks: Sinks
    destination: str = ""
    """Its address, for operators and class rules."""

    classes: frozenset[ClassName] | None = None
    """The classes that it takes; None: all that the node serves."""

    overrides: ClassMap | None = None
    """Class rules of its own, which take precedence over the node's."""


class Detach(msgspec.Struct, frozen=True):
    """A consumer has left. No effect for an unknown consumer."""

    consumer: int


class Subscribe(msgspec.Struct, frozen=True):
    """The current image of the topics, then every update after it. `number` is not in use by the consumer."""

    consumer: int
    number: int
    topics: Sequence[str]
    cls: ClassWish = "auto"
    per_second: float = 0.0
    """For the metered class: updates per second of each item; 0: the node's maximum."""

    after: int = 0
    """The number of the last critical update of these topics that the consumer has, if this engine assigned it:
    later updates are sent instead of the image, as far as they are logged. 0: none."""


class Modify(msgspec.Struct, frozen=True):
    """Change the rate of a subscription."""

    consumer: int
    number: int
    per_second: float


class Unsubscribe(msgspec.Struct, frozen=True):
    """Events that were written before still arrive."""

    consumer: int
    number: int
    is_told: bool = True
    """False: the consumer is told of every item that it no longer gets."""


class RegionOpened(msgspec.Struct, frozen=True):
    """The answer to OpenRegion: records of the model are written into this region from now on."""

    consumer: int
    model_id: int
    sink: RegionSink


class Overrun(msgspec.Struct, frozen=True):
    """A ring of the consumer was overrun. Ring of events: the last critical UPDATE that was read is `last_number`
    (0: none), and the ring starts again with the missed updates, or a receipt and refreshes. Ring of notices: it
    starts again with all records."""

    consumer: int
    last_number: int
    ring: RingName = "events"


class Updates(msgspec.Struct, frozen=True):
    """Complete messages, in order."""

    messages: MessageBatch | Sequence[PacketMessage]
    feed: str = ""
    """The feed that the messages came from."""


class SessionChanged(msgspec.Struct, frozen=True):
    """A session of a source stream began or ended, after the updates so far. Records whose last update came from that
    stream in another session, or in the ended session, are withdrawn, and consumers are notified. A repeated event
    changes nothing."""

    event: SessionEvent


class Image(msgspec.Struct, frozen=True):
    """The upstream node has sent an item's record: all consumers of the item are refreshed."""

    topic: bytes
    model_id: int
    model_version: int
    version: int
    record: bytes
    started_ns: int = 0
    is_repair: bool = False
    """True if updates before it were lost."""
    session_id: int = 0
    """The session of the record (session_events.py); 0 if unknown."""


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
    """A session event of the upstream node, to be forwarded. Withdrawals arrive separately for each item. This node
    itself withdraws records of ended sessions that a restarted upstream node does not know."""

    body: bytes


class Removed(msgspec.Struct, frozen=True):
    """The upstream node has removed an item; this node removes it as well."""

    topic: bytes
    model_id: int


class UpstreamLive(msgspec.Struct, frozen=True):
    """The upstream node has sent all images of these topics, which were Wanted."""

    topics: Sequence[str]


class Lost(msgspec.Struct, frozen=True):
    """Updates were lost on the way to this node: consumers get a receipt. Images follow."""


class LearnModel(msgspec.Struct, frozen=True):
    """A message model, or a newer version of one."""

    model: MessageModel


class ChangeClasses(msgspec.Struct, frozen=True):
    """Replace the class rules."""

    rules: ClassMap


class Signals(msgspec.Struct, frozen=True):
    """Measurements of the node's load."""

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
    | SessionChanged
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
    """The buffers of these consumers have events to send. Each consumer is listed once until its driver asks again."""

    consumers: tuple[int, ...]


class OpenRegion(msgspec.Struct, frozen=True):
    """Create a region for at least this number of records of the model, and pass RegionOpened; an earlier region is
    no longer written then."""

    consumer: int
    model: MessageModel
    record_count: int


class RegionTooLarge(msgspec.Struct, frozen=True):
    """The consumer needs a region above the limit of records, so it gets no record of the last items. The driver has
    to end it with an error."""

    consumer: int
    record_count: int


class Wanted(msgspec.Struct, frozen=True):
    """Topics that the first consumer has subscribed to. A plant, which has all topics, ignores it."""

    topics: tuple[str, ...]


class Unwanted(msgspec.Struct, frozen=True):
    """Topics that no consumer has subscribed to any more."""

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
    "SessionChanged",
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
