"""Events and instructions of the stream service's core.

MessageReceived      a subscriber sent a message
MessageSent          a queued message has left
Disconnected         a subscriber's connection is gone
Published            packets that the adapter has published, in order
Overrun              published packets were overwritten before the service could take them
ImageTaken           the answer to TakeImage
Recorded             packets from the journal; answers StartHistory, repeatedly
ContributionTaken    the answer to TakeContribution
RequestFailed        instead of the three answers above
Revoke, Close, Tick

SendMessage          queue a message on a subscriber's connection
EndStream            drop the queued messages, send the refusal if there is one, and close the connection
TakeImage            take an image of the whole conversion state, between two batches
StartHistory         read the journal, each record as soon as it is old enough
TakeContribution     pass contributed messages to the adapter, as a source stream
"""

from typing import Any, TypeAlias

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.core import Tick
from penstock.feed.core.service.published import PublishedBatch
from penstock.middleware.unicast import AdapterMessage, Contribution, Position, StreamRefused, SubscriberMessage


class Image(msgspec.Struct, frozen=True):
    """The whole conversion state as messages. `next_packet` is the first published packet that is not included."""

    topic_data: NDArray[numpy.uint8]
    payloads: NDArray[numpy.uint8]
    rows: NDArray[Any]
    positions: list[Position]
    next_packet: int


# Events


class MessageReceived(msgspec.Struct, frozen=True):
    subscriber: int
    message: SubscriberMessage


class Disconnected(msgspec.Struct, frozen=True):
    subscriber: int


class MessageSent(msgspec.Struct, frozen=True):
    """A queued message was sent; `size` is that of its SendMessage."""

    subscriber: int
    size: int


class Published(msgspec.Struct, frozen=True):
    """The batch's data is not reused; its rows are."""

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


class RequestFailed(msgspec.Struct, frozen=True):
    """The subscriber's request cannot be served now."""

    subscriber: int
    refusal: StreamRefused


class ContributionTaken(msgspec.Struct, frozen=True):
    subscriber: int
    stream: str
    next_sequence: int
    taken_count: int
    """Without messages that had been taken before."""


class Revoke(msgspec.Struct, frozen=True):
    """The administration server revoked the rights of a client, or of one subscription."""

    reason: str
    client: str = ""
    subscription_id: str = ""


class Close(msgspec.Struct, frozen=True):
    """The adapter shuts down."""


ServiceEvent: TypeAlias = (
    MessageReceived
    | Disconnected
    | MessageSent
    | Published
    | Overrun
    | ImageTaken
    | Recorded
    | RequestFailed
    | ContributionTaken
    | Revoke
    | Close
    | Tick
)


# Instructions


class SendMessage(msgspec.Struct, frozen=True):
    subscriber: int
    message: AdapterMessage
    size: int = 0
    """Size that counts for the subscriber's queue."""


class EndStream(msgspec.Struct, frozen=True):
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


ServiceInstruction: TypeAlias = SendMessage | EndStream | TakeImage | StartHistory | TakeContribution
