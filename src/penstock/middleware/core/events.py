"""Events and instructions of the middleware's cores.

A stream is what one publisher sends to one group; its packets are numbered from 1 within an epoch, and a publisher
that starts again takes a higher epoch.

    Publisher:   Publish, PublishBatch, Close, DatagramReceived, Tick
                     ->  Multicast, MulticastStored, Unicast, Closed
    Receiver:    DatagramReceived, DatagramsReceived, Expect, Tick
                     ->  Deliver, DeliverBatch, LossReceipt, StreamStarted, StreamEnded, Collision, Multicast, Unicast
    Merger:      the receiver's instructions, StartAfter, Tick
                     ->  Merged, MergedBatch, MergeGap, Discontinuity, SessionEvent, and what is not merged

For every stream the receiver's answers tell the whole story in order: StreamStarted, then Delivers and LossReceipts
whose sequence numbers follow each other without a hole, then StreamEnded.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.base.core import Tick
from penstock.base.counters import Cause
from penstock.middleware.core.batch import Packable
from penstock.model import MessageModel
from penstock.wire import DatagramBatch, MessageBatch, Packet, PacketMessage, PacketStore
from penstock.wire.term import is_same_session

Address: TypeAlias = tuple[str, int]
"""Where a datagram comes from or goes to: host and port."""


class StreamKey(msgspec.Struct, frozen=True, order=True):
    """Names a stream."""

    publisher_id: int
    group: int


# Events


class OutgoingMessage(msgspec.Struct, frozen=True):
    """A message as the application hands it over; `extensions` is encoded (wire.extensions)."""

    topic: str
    payload: Buffer
    model_id: int = 0
    model_version: int = 0
    flags: int = 0
    extensions: bytes = b""


class Publish(msgspec.Struct, frozen=True):
    """The application publishes messages; those of one event share packets, because they are there anyway."""

    group: int
    messages: Sequence[OutgoingMessage]


class PublishBatch(msgspec.Struct, frozen=True):
    """The application publishes many messages at once; none is so large that it must be cut."""

    group: int
    batch: Packable


class Close(msgspec.Struct, frozen=True):
    """The application has nothing more to publish."""


class DatagramReceived(msgspec.Struct, frozen=True):
    """The network brought a datagram; nothing is known about its bytes yet.

    Its buffer may be used again once the instructions have been carried out: a core copies what it keeps.
    """

    data: Buffer
    source: Address
    source_key: int = 0


class DatagramsReceived(msgspec.Struct, frozen=True):
    """The network brought many datagrams; the same is true of them as of one."""

    batch: DatagramBatch


class Expect(msgspec.Struct, frozen=True):
    """A filter passes this stream on from now: its packets come from `source`, the first of them after
    `next_sequence` - 1. What is missing is asked for at `repair_source`, if that is not the filter itself, and may come
    from there, too. `is_anew` says that what was before is not missed, because nobody listened."""

    stream: StreamKey
    epoch: int
    next_sequence: int
    source: Address
    repair_source: Address | None = None
    is_anew: bool = False


class ExpectEnd(msgspec.Struct, frozen=True):
    """A filter passes nothing more of this stream on: its last packet was the one before `next_sequence`. What
    has not come of it is missing."""

    stream: StreamKey
    epoch: int
    next_sequence: int


class StartAfter(msgspec.Struct, frozen=True):
    """What a source stream brought up to this number is known from elsewhere (an image): begin with the next one."""

    stream_id: int
    term: int
    message_sequence: int
    stream: StreamKey | None = None
    """A publisher's stream that is known to bring everything after it."""


PublisherEvent: TypeAlias = Publish | PublishBatch | Close | DatagramReceived | Tick
ReceiverEvent: TypeAlias = DatagramReceived | DatagramsReceived | Expect | ExpectEnd | Tick


# Instructions


class Multicast(msgspec.Struct, frozen=True):
    """Send a datagram, a packet with its trailer if it has one, to everybody who listens to the group."""

    group: int
    data: bytes


class MulticastStored(msgspec.Struct, frozen=True):
    """Send the packets `first` to `last` of the store, with their trailers, to everybody who listens to the group."""

    group: int
    store: PacketStore
    first: int
    last: int


class Unicast(msgspec.Struct, frozen=True):
    """Send a datagram to one address."""

    destination: Address
    data: bytes


class Closed(msgspec.Struct, frozen=True):
    """The publisher has said goodbye and waited long enough for stragglers; it can be dropped."""


class Deliver(msgspec.Struct, frozen=True):
    """Hand these messages of one packet to the application.

    `first` is below `sequence` when a filter removed the packets in between on purpose. A packet may bring no message
    (a keep-alive, or a fragment of a message whose end is still to come). `data` is the packet as it came; its buffer,
    and that of the messages, may be used again when the receiver is given its next event.
    """

    stream: StreamKey
    epoch: int
    first: int
    sequence: int
    flags: int
    messages: Packet | Sequence[PacketMessage]
    data: Buffer


class DeliverBatch(msgspec.Struct, frozen=True):
    """Hand these messages to the application: whole packets of any streams, each the next one of its stream.

    The messages are good until the receiver is given its next event.
    """

    messages: MessageBatch

    def one_by_one(self) -> Iterator[Deliver]:
        """The same as a Deliver for each packet."""
        for index, packet in enumerate(self.messages.packets.tolist()):
            row = dict(zip(self.messages.packets.dtype.names or (), packet, strict=True))
            yield Deliver(
                StreamKey(row["publisher_id"], row["group"]),
                row["epoch"],
                row["sequence"] - row["gap"],
                row["sequence"],
                row["flags"],
                self.messages.of_packet(index),
                self.messages.packet_data(index),
            )


class LossReceipt(msgspec.Struct, frozen=True):
    """Proof of what the application does not see: packets `first` to `last`, and why.

    With the cause FRAGMENT or LENGTH a single message on `topic` is meant, whose fragments were in these packets;
    the packets themselves are accounted for by their own Deliver or LossReceipt.
    """

    stream: StreamKey
    epoch: int
    first: int
    last: int
    cause: Cause
    topic: str = ""


class StreamStarted(msgspec.Struct, frozen=True):
    """A stream begins, or goes on after a silence, with packet `first`. A replay is from the past, not live."""

    stream: StreamKey
    epoch: int
    first: int
    is_replay: bool = False


class StreamEnded(msgspec.Struct, frozen=True):
    """Nothing more is expected of this epoch: all packets below `next_sequence` are accounted for.

    Only with the cause GOODBYE is it known that there were no further ones.
    """

    stream: StreamKey
    epoch: int
    next_sequence: int
    cause: Cause


class Collision(msgspec.Struct, frozen=True):
    """Two publishers use one id; `intruder` is the one whose packets are refused."""

    stream: StreamKey
    epoch: int
    owner: Address
    intruder: Address


PublisherInstruction: TypeAlias = Multicast | MulticastStored | Unicast | Closed
ReceiverInstruction: TypeAlias = (
    Deliver | DeliverBatch | LossReceipt | StreamStarted | StreamEnded | Collision | Multicast | Unicast
)


class Merged(msgspec.Struct, frozen=True):
    """Hand these messages to the application: each source stream's next ones. They may be kept as long as the Deliver
    that they came with."""

    messages: list[PacketMessage]


class MergedBatch(msgspec.Struct, frozen=True):
    """The same for many; they are good until the receiver is given its next event."""

    messages: MessageBatch


class MergeGap(msgspec.Struct, frozen=True):
    """Proof of what the application does not see: no stream brought the messages `first` to `last` of a source stream.

    Where the streams are filtered, some of these may not have been meant for this subscriber.
    """

    stream_id: int
    term: int
    first: int
    last: int
    cause: Cause


class Discontinuity(msgspec.Struct, frozen=True):
    """The numbers of a source stream go on with `message_sequence` + 1, its content from `source_sequence` on.

    `reason` is what the adapter says (protocol/merging.md), or "unseen" when its announcement was lost; `lost` has
    the ranges of source messages, first and last, that the adapter never had. `trading_date` is that of the session, as
    2026-01-30; empty where it is not known.
    """

    stream_id: int
    term: int
    message_sequence: int
    source_sequence: int
    reason: str
    lost: list[tuple[int, int]] = []
    session: str = ""
    trading_date: str = ""

    @property
    def is_loss(self) -> bool:
        """True if messages may be missing; False at the start of a feed or of a session."""
        return bool(self.lost) or self.reason not in ("start", "session")


SessionKind: TypeAlias = Literal["begin", "end", "running"]


class SessionEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session of a source stream began or ended; in order with the messages. Values of an ended session are stale.

    "begin" ends the session before it, if no "end" came. "running" says that the stream was met in the middle of a
    session. `session` is the name that the feed gave it, empty if the announcement was lost; `trading_date` is an ISO
    date, empty if it is not known.
    """

    kind: SessionKind
    stream_id: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    session: Annotated[str, msgspec.Meta(max_length=256)] = ""
    trading_date: Annotated[str, msgspec.Meta(max_length=32)] = ""
    tag: Annotated[int, msgspec.Meta(ge=0, lt=2**13 + 1)] = 0
    """The session's tag, as in each of its messages (wire/term.py); 0 if unknown."""
    feed: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """The feed, for receivers that combine source streams of several feeds."""

    def has_name_of(self, other: "SessionEvent") -> bool:
        """True if both events name one session."""
        return is_same_session(self.session, self.trading_date, other.session, other.trading_date)

    def repeats(self, known: "SessionEvent | None") -> bool:
        """True if `known`, an event that came before, says the same of the same session."""
        if known is None or self.tag != known.tag or (self.session and not self.has_name_of(known)):
            return False
        return self.kind != "end" or known.kind == "end"


MergerEvent: TypeAlias = ReceiverInstruction | StartAfter | Tick
MergerInstruction: TypeAlias = Merged | MergedBatch | MergeGap | Discontinuity | SessionEvent | ReceiverInstruction


def records_of(delivered: Deliver | DeliverBatch | Merged | MergedBatch, model: MessageModel) -> NDArray[Any]:
    """The messages of one model, as an array to keep; those whose size is not the model's are left out."""
    if isinstance(delivered, DeliverBatch | MergedBatch):
        return delivered.messages.records(model.dtype, model.id)
    payloads = (message.payload for message in delivered.messages if message.model_id == model.id)
    return numpy.frombuffer(b"".join(each for each in payloads if len(each) == model.record_size), model.dtype)
