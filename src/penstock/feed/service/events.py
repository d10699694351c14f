"""The grammar of the stream service's core: what it is told (events) and what it answers (instructions).

Said, Left, Sent                 a subscriber's connection: a message came, it is gone, so many bytes went out
Published, Overrun               what the adapter has published, in order; some of it could not be taken in time
ImageTaken                       answers TakeImage
Recorded                         answers StartHistory, again and again
CannotServe                      answers any of these instead
ContributionTaken                answers TakeContribution
Revoke, Close, Tick

Say                              send a message to a subscriber; its connection queues it
End                              last words, if any, and the connection's end; what is queued is dropped
TakeImage                        of the whole conversion state, as it is between two batches
StartHistory                     give what the journal has, as it becomes old enough
TakeContribution                 hand messages to the adapter as a source stream
"""

from typing import Any, TypeAlias

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.core import Tick
from penstock.feed.service.published import PublishedBatch
from penstock.middleware.unicast import AdapterMessage, Contribution, Position, StreamRefused, SubscriberMessage


class Image(msgspec.Struct, frozen=True):
    """The whole conversion state as messages. `next_packet` is the first published packet that is not included."""

    topic_data: NDArray[numpy.uint8]
    payloads: NDArray[numpy.uint8]
    rows: NDArray[Any]
    positions: list[Position]
    next_packet: int


# Events


class Said(msgspec.Struct, frozen=True):
    subscriber: int
    message: SubscriberMessage


class Left(msgspec.Struct, frozen=True):
    subscriber: int


class Sent(msgspec.Struct, frozen=True):
    """A message that was queued has left; `size` is what its Say told."""

    subscriber: int
    size: int


class Published(msgspec.Struct, frozen=True):
    """The batch's data is not used again; its rows are."""

    batch: PublishedBatch


class Overrun(msgspec.Struct, frozen=True):
    """Published packets are missing before the next Published."""


class ImageTaken(msgspec.Struct, frozen=True):
    subscriber: int
    image: Image


class Recorded(msgspec.Struct, frozen=True):
    """Packets from the journal that are old enough for this subscriber."""

    subscriber: int
    batch: PublishedBatch


class CannotServe(msgspec.Struct, frozen=True):
    """What a subscriber asked for cannot be had now."""

    subscriber: int
    refusal: StreamRefused


class ContributionTaken(msgspec.Struct, frozen=True):
    subscriber: int
    stream: str
    next_sequence: int
    taken_count: int
    """Without those that had been taken before."""


class Revoke(msgspec.Struct, frozen=True):
    """The administration server took back what a client, or one subscription, was entitled to."""

    reason: str
    client: str = ""
    subscription_id: str = ""


class Close(msgspec.Struct, frozen=True):
    """The adapter stops."""


ServiceEvent: TypeAlias = (
    Said
    | Left
    | Sent
    | Published
    | Overrun
    | ImageTaken
    | Recorded
    | CannotServe
    | ContributionTaken
    | Revoke
    | Close
    | Tick
)


# Instructions


class Say(msgspec.Struct, frozen=True):
    subscriber: int
    message: AdapterMessage
    size: int = 0
    """Bytes that count for the subscriber's queue."""


class End(msgspec.Struct, frozen=True):
    subscriber: int
    refusal: StreamRefused | None = None


class TakeImage(msgspec.Struct, frozen=True):
    subscriber: int


class StartHistory(msgspec.Struct, frozen=True):
    subscriber: int
    delay_s: int
    from_ns: int


class TakeContribution(msgspec.Struct, frozen=True):
    subscriber: int
    stream: str
    first_sequence: int
    messages: list[Contribution]


ServiceInstruction: TypeAlias = Say | End | TakeImage | StartHistory | TakeContribution
