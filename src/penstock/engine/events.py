"""The grammar of the distribution engine: what its core is told (events) and what it answers (instructions).

A **consumer** is who is attached, a small number of the driver's choice; a **subscription** is a number of the
consumer's choice. An **item** is a topic with a message model; the engine has its current record.

    Attach, Detach                    a consumer comes with its sinks, and goes
    Subscribe, Unsubscribe            what it wants
    Overrun                           its ring was overrun
    Updates                           messages: the items' new records
    Image, UpstreamLive, Lost         what a node above says
    Tick
        ->  Ready                     sessions that have something to send
            Wanted, Unwanted          what has to be asked of the node above, or no longer

Attach, Subscribe and Overrun are refused with an error (LimitError, TopicError, LocalProtocolError); then nothing has
changed.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from penstock.base.core import Tick
from penstock.engine._sinks import SessionBuffer
from penstock.engine.control import ClassWish
from penstock.shm import RingWriter
from penstock.wire import MessageBatch, PacketMessage

# Events


class Sinks(msgspec.Struct, frozen=True):
    """Where a consumer's events go: into a ring, or into the buffer of its session. They stay the driver's, to be
    closed after Detach."""

    ring: RingWriter | None = None
    buffer: SessionBuffer | None = None


class Attach(msgspec.Struct, frozen=True):
    """A consumer comes. It wants nothing yet."""

    consumer: int
    name: str
    sinks: Sinks
    destination: str = ""
    """Where it is, for the operator and for rules."""


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


class Unsubscribe(msgspec.Struct, frozen=True):
    """What is on its way still comes."""

    consumer: int
    number: int


class Overrun(msgspec.Struct, frozen=True):
    """The consumer has lost its place in its ring; the last event of kind UPDATE and class critical that it has is
    `last_number`, 0 for none. Its ring begins anew, with the updates it missed or a receipt and refreshes."""

    consumer: int
    last_number: int


class Updates(msgspec.Struct, frozen=True):
    """Whole messages, in order."""

    messages: MessageBatch | Sequence[PacketMessage]


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


class UpstreamLive(msgspec.Struct, frozen=True):
    """The node above has sent all images of these topics, which were Wanted."""

    topics: Sequence[str]


class Lost(msgspec.Struct, frozen=True):
    """Updates did not come to this node: consumers get a receipt. Images follow."""


EngineEvent: TypeAlias = (
    Attach | Detach | Subscribe | Unsubscribe | Overrun | Updates | Image | UpstreamLive | Lost | Tick
)


# Instructions


class Ready(msgspec.Struct, frozen=True):
    """The buffers of these consumers have something to send, and had nothing, or were not named, before."""

    consumers: tuple[int, ...]


class Wanted(msgspec.Struct, frozen=True):
    """Consumers want these topics now, and nobody did before. A plant, which has everything, ignores it."""

    topics: tuple[str, ...]


class Unwanted(msgspec.Struct, frozen=True):
    """Nobody wants these any more."""

    topics: tuple[str, ...]


EngineInstruction: TypeAlias = Ready | Wanted | Unwanted

__all__ = [
    "Attach",
    "Detach",
    "EngineEvent",
    "EngineInstruction",
    "Image",
    "Lost",
    "Overrun",
    "Ready",
    "Sinks",
    "Subscribe",
    "Tick",
    "Unsubscribe",
    "Unwanted",
    "Updates",
    "UpstreamLive",
    "Wanted",
]
