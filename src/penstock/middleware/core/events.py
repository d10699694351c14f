"""Events and instructions of the middleware's cores.

A stream is the sequence of packets from one publisher to one group. Packets are numbered from 1 within an epoch, and
a restarted publisher has a higher epoch.

    Publisher:   Publish, PublishBatch, Close, DatagramReceived, Tick
                     ->  Multicast, MulticastStored, Unicast, Closed
    Receiver:    DatagramReceived, DatagramsReceived, Expect, Tick
                     ->  Deliver, DeliverBatch, LossReceipt, StreamStarted, StreamEnded, Collision, Multicast, Unicast
    Merger:      the receiver's instructions, StartAfter, Tick
                     ->  Merged, MergedBatch, MergeGap, Discontinuity, SessionEvent, and unmerged items

For every stream the receiver returns, in order, StreamStarted, then Delivers and LossReceipts with contiguous
sequence numbers, then StreamEnded.
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
"""Source or destination of a datagram: host and port."""


class StreamKey(msgspec.Struct, frozen=True, order=True):
    """Identifies a stream."""

    publisher_id: int
    group: int


# Events


class OutgoingMessage(msgspec.Struct, frozen=True):
    """A message of the application; `extensions` is encoded (wire.extensions)."""

    topic: str
    payload: Buffer
    model_id: int = 0
    model_version: int = 0
    flags: int = 0
    extensions: bytes = b""


class Publish(msgspec.Struct, frozen=True):
    """Publish messages. Messages of one event share packets, because they are available at the same time."""

    group: int
    messages: Sequence[OutgoingMessage]


class PublishBatch(msgspec.Struct, frozen=True):
    """Publish many messages at once; none of them needs fragmentation."""

    group: int
    batch: Packable


class Close(msgspec.Struct, frozen=True):
    """Stop publishing."""


class DatagramReceived(msgspec.Struct, frozen=True):
    """A datagram arrived; its bytes are not checked yet.

    Its buffer may be reused when the instructions have been carried out: a core copies what it keeps.
    """

    data: Buffer
    source: Address
    source_key: int = 0


class DatagramsReceived(msgspec.Struct, frozen=True):
    """Many datagrams arrived; their buffers are handled like that of DatagramReceived."""

    batch: DatagramBatch


class Expect(msgspec.Struct, frozen=True):
    """A filter forwards this stream from now on: its packets come from `source` and begin after `next_sequence` - 1.
    Missing packets are requested at `repair_source`, if that is not the filter itself, and may come from there too.
    `is_anew` means that earlier packets are not missing, because the receiver did not listen."""

    stream: StreamKey
    epoch: int
    next_sequence: int
    source: Address
    repair_source: Address | None = None
    is_anew: bool = False


class ExpectEnd(msgspec.Struct, frozen=True):
    """A filter no longer forwards this stream: its last packet was the one before `next_sequence`. Packets up to it
    that have not arrived are missing."""

    stream: StreamKey
    epoch: int
    next_sequence: int


class StartAfter(msgspec.Struct, frozen=True):
    """Messages of a source stream up to this number are known from an image: begin with the next one."""

    stream_id: int
    term: int
    message_sequence: int
    stream: StreamKey | None = None
    """A publisher's stream that will deliver everything after this number."""


PublisherEvent: TypeAlias = Publish | PublishBatch | Close | DatagramReceived | Tick
ReceiverEvent: TypeAlias = DatagramReceived | DatagramsReceived | Expect | ExpectEnd | Tick


# Instructions


class Multicast(msgspec.Struct, frozen=True):
    """Send a datagram, a packet with its trailer if it has one, to a group."""

    group: int
    data: bytes


class MulticastStored(msgspec.Struct, frozen=True):
    """Send the packets `first` to `last` of the store, with their trailers, to a group."""

    group: int
    store: PacketStore
    first: int
    last: int


class Unicast(msgspec.Struct, frozen=True):
    """Send a datagram to one address."""

    destination: Address
    data: bytes


class Closed(msgspec.Struct, frozen=True):
    """The publisher has said goodbye and answered late requests for long enough; it can be dropped."""


class Deliver(msgspec.Struct, frozen=True):
    """Deliver these messages of one packet to the application.

    `first` is below `sequence` if a filter removed the packets in between on purpose. A packet may have no message
    (a keep-alive, or a fragment of an incomplete message). `data` is the packet as received; its buffer, and that of
    the messages, may be reused at the receiver's next event.
    """

    stream: StreamKey
    epoch: int
    first: int
    sequence: int
    flags: int
    messages: Packet | Sequence[PacketMessage]
    data: Buffer


class DeliverBatch(msgspec.Struct, frozen=True):
    """Deliver these messages to the application: complete packets of any streams, each the next one of its stream.

    The messages are valid until the receiver's next event.
    """

    messages: MessageBatch

    def one_by_one(self) -> Iterator[Deliver]:
        """Yield a Deliver for each packet."""
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
    """Reports packets `first` to `last` that the application does not get, with the cause.

    The causes FRAGMENT and LENGTH refer to a single message on `topic`, whose fragments were in these packets; the
    packets themselves are accounted for by their own Deliver or LossReceipt.
    """

    stream: StreamKey
    epoch: int
    first: int
    last: int
    cause: Cause
    topic: str = ""


class StreamStarted(msgspec.Struct, frozen=True):
    """A stream begins, or continues after a silence, with packet `first`. A replay is not live."""

    stream: StreamKey
    epoch: int
    first: int
    is_replay: bool = False


class StreamEnded(msgspec.Struct, frozen=True):
    """No further packets of this epoch are expected: all packets below `next_sequence` are accounted for.

    Only the cause GOODBYE means that there are no further packets.
    """

    stream: StreamKey
    epoch: int
    next_sequence: int
    cause: Cause


class Collision(msgspec.Struct, frozen=True):
    """Two publishers use the same id; packets of `intruder` are refused."""

    stream: StreamKey
    epoch: int
    owner: Address
    intruder: Address


PublisherInstruction: TypeAlias = Multicast | MulticastStored | Unicast | Closed
ReceiverInstruction: TypeAlias = (
    Deliver | DeliverBatch | LossReceipt | StreamStarted | StreamEnded | Collision | Multicast | Unicast
)


class Merged(msgspec.Struct, frozen=True):
    """Deliver the next messages of source streams to the application. They are valid as long as the Deliver that
    they came with."""

    messages: list[PacketMessage]


class MergedBatch(msgspec.Struct, frozen=True):
    """Deliver many merged messages; they are valid until the receiver's next event."""

    messages: MessageBatch


class MergeGap(msgspec.Struct, frozen=True):
    """Reports messages `first` to `last` of a source stream that no stream delivered.

    If the streams are filtered, some of these messages may not have matched this subscriber's interests.
    """

    stream_id: int
    term: int
    first: int
    last: int
    cause: Cause


class Discontinuity(msgspec.Struct, frozen=True):
    """The numbers of a source stream continue with `message_sequence` + 1, its content from `source_sequence` on.

    `reason` is the adapter's (protocol/merging.md), or "unseen" if the announcement was lost; `lost` has the ranges
    of source messages, first and last, that the adapter never received. `trading_date` is that of the session, as
    2026-01-30; empty if unknown.
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

    "begin" also ends the previous session, if there was no "end". "running" means that the receiver joined during a
    session. `session` is the name in the feed, empty if the announcement was lost; `trading_date` is an ISO date,
    empty if unknown.
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
        """True if both events refer to the same session."""
        return is_same_session(self.session, self.trading_date, other.session, other.trading_date)

    def repeats(self, known: "SessionEvent | None") -> bool:
        """True if `known`, an earlier event, has the same content for the same session."""
        if known is None or self.tag != known.tag or (self.session and not self.has_name_of(known)):
            return False
        return self.kind != "end" or known.kind == "end"


MergerEvent: TypeAlias = ReceiverInstruction | StartAfter | Tick
MergerInstruction: TypeAlias = Merged | MergedBatch | MergeGap | Discontinuity | SessionEvent | ReceiverInstruction


def records_of(delivered: Deliver | DeliverBatch | Merged | MergedBatch, model: MessageModel) -> NDArray[Any]:
    """Return the messages of one model as a new array; messages of another size are skipped."""
    if isinstance(delivered, DeliverBatch | MergedBatch):
        return delivered.messages.records(model.dtype, model.id)
    payloads = (message.payload for message in delivered.messages if message.model_id == model.id)
    return numpy.frombuffer(b"".join(each for each in payloads if len(each) == model.record_size), model.dtype)
