"""What consumers and nodes (plant, multiplexer, edge cache) say to each other (protocol/distribution-control.md).

consumer                        node
  │ Login ───────────────────────► │      who I am, how I want my events, a token where one is asked for
  │ ◄────────────────────── Welcome│      what I may have, and where my ring is
  │ Subscribe ───────────────────► │      topics, a class, a rate
  │ ◄───────────────────────── Held│      it holds; the events follow: DEFINE, REFRESH, LIVE, then updates
  │ ◄─────────────────── OpenRegion│      local consumers of the adaptive class: where records of a model are
  │ Modify, Unsubscribe ─────────► │
  │ Snapshot ────────────────────► │
  │ ◄────────────────────── Records│      a static read
  │ Overrun ─────────────────────► │      the ring overran me
  │ ◄──────────────────── Restarted│
  │ AskModel, RenewToken ────────► │
  │ ◄────────────────────── Refused│      instead of an answer; without a number the connection ends with it

node below (multiplexer, edge)  node above: the same, and
  │ Vouch ───────────────────────► │      may this consumer of mine have that?
  │ ◄────────────────────── Vouched│
  │ ◄───────────────────── Withdrawn      what a token gave is taken back

Events (protocol/distribution.md) go in the ring and the regions of a local consumer, in Events messages of a
session, or in datagrams between nodes. On a WebSocket the same messages are JSON texts, and a binary message is what
Events.data is elsewhere.
"""

from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

import msgspec

from penstock.base.limits import MODEL_IN_BAND_SIZE_MAX
from penstock.net.config import ControlConfig
from penstock.net.core.control import (
    U32,
    U64,
    ControlProtocol,
    Host,
    Interest,
    Name,
    Number,
    Path,
    Port,
    SegmentName,
    Text,
    Token,
    Version,
)
from penstock.net.core.control import Refused as AnyRefused

PLANT_PORT_DEFAULT = 7410
MUX_PORT_DEFAULT = 7411
EDGE_PORT_DEFAULT = 7412

TOPICS_MAX = 16_384
"""Topics of one request; a subscription of more is several."""

GRANTS_MAX = 16_384
REGION_PARTS_MAX = 16
EVENTS_SIZE_MAX = 256 * 1024
"""Bytes of events in one message."""

MESSAGE_SIZE_MAX = 1024 * 1024

Transport: TypeAlias = Literal["local", "session", "datagram"]
"""How a consumer gets its events: in shared memory of this host, on this connection, or by UDP."""

ClassName: TypeAlias = Literal["critical", "adaptive", "metered"]
ClassWish: TypeAlias = Literal["auto", "critical", "adaptive", "metered"]
"""`auto` leaves it to the node's classifier."""

RingName: TypeAlias = Literal["events", "notices"]

Topics = Annotated[list[Interest], msgspec.Meta(min_length=1, max_length=TOPICS_MAX)]
RATE_MAX = 1e12
Rate = Annotated[float, msgspec.Meta(ge=0, le=RATE_MAX)]
EventBytes = Annotated[bytes, msgspec.Meta(max_length=EVENTS_SIZE_MAX)]
ModelNumber = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
DatagramKey = Annotated[bytes, msgspec.Meta(max_length=16)]
"""16 random bytes; empty without datagrams."""


# What a consumer says


class Login(msgspec.Struct, tag="login", frozen=True):
    """The first message. A connection is good for one consumer."""

    name: Name
    transport: Transport = "session"
    token: Token = ""
    """A stream token of the administration server, where the node asks for one."""

    is_node: bool = False
    """Whether this is a node that serves others in turn: it may send Vouch, and is told what is Withdrawn."""

    classes: list[ClassName] = []
    """Those that it can take; none named: all that the node serves by this transport."""

    host: Host = ""
    """Of datagrams: where they are to be sent."""

    port: Port = 0
    takes_group: bool = False
    """Of datagrams: whether what it takes in the adaptive class, and that alone, can come to it by multicast."""


class Subscribe(msgspec.Struct, tag="subscribe", frozen=True):
    """The current image of the topics and every update after it. All of it holds when it is answered with Held, nothing
    of it when with Refused. A LIVE event with this number follows the last refresh."""

    number: Number
    """The consumer's own, from 1: it names the request in the answer, and the subscription from then on."""

    topics: Topics
    """Patterns as text (docs/reference/topics.md)."""

    cls: ClassWish = "auto"
    per_second: Rate = 0.0
    """Of the metered class: updates of each item; 0 asks for unmetered ones."""

    after: U64 = 0
    """Events of the critical class from after this event number on are sent again, if the node still has them; 0: the
    current image is enough. Only with the epoch that gave the number."""

    epoch: U64 = 0


class Modify(msgspec.Struct, tag="modify", frozen=True):
    """Another rate for a subscription."""

    number: Number
    subscription: Number
    per_second: Rate


class Unsubscribe(msgspec.Struct, tag="unsubscribe", frozen=True):
    """Answered with Held; what is on its way still comes."""

    number: Number
    subscription: Number


class Snapshot(msgspec.Struct, tag="snapshot", frozen=True):
    """A static read of current records: answered with one Records message or more."""

    number: Number
    topics: Topics


class Overrun(msgspec.Struct, tag="overrun", frozen=True):
    """The consumer was too slow for its ring and has lost its place in it. Answered with Restarted; then the ring
    begins anew, with what was missed or with refreshes."""

    number: Number
    last_number: U64
    """Of the last event that it has; 0 for none."""

    ring: RingName = "events"


class Missed(msgspec.Struct, tag="missed", frozen=True):
    """Packets of the group's stream that did not come; the node's configuration says what becomes of them. From 0 to 0:
    the group is not heard at all, and no more is to be sent by it to this consumer."""

    first_sequence: U64
    last_sequence: U64


class AskModel(msgspec.Struct, tag="ask-model", frozen=True):
    """The document of a message model that events have, and the consumer does not know."""

    number: Number
    id: ModelNumber
    version: ModelNumber


class RenewToken(msgspec.Struct, tag="renew", frozen=True):
    number: Number
    token: Token


class Vouch(msgspec.Struct, tag="vouch", frozen=True):
    """A node asks for one of its consumers: is this token good, and does it grant these topics?"""

    number: Number
    name: Name
    token: Token
    topics: Annotated[list[Interest], msgspec.Meta(max_length=TOPICS_MAX)] = []
    """None: what it grants is all that is asked."""


# What the node says


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    node: Name
    epoch: U64
    """Of this run of the node: event numbers of another epoch mean nothing here."""

    consumer: U32
    classes: list[ClassName]
    """Those that this consumer can have."""

    rate_max: Rate = 0.0
    """Updates per second and item that a consumer can ask for at most; 0: also unmetered ones."""

    grants: Annotated[list[Interest], msgspec.Meta(max_length=GRANTS_MAX)] = []
    """What the token lets it receive live, as patterns; with a leading ! what is taken away. Everything, where the
    node asks for no tokens: then `>`."""

    path: Path = ""
    """Of local delivery: where segments are handed over, and what those of the rings are called."""

    ring: SegmentName = ""
    notices: SegmentName = ""
    publisher_id: U64 = 0
    """Of datagrams: the stream of the critical class, and where it comes from."""

    host: Host = ""
    port: Port = 0
    fresh_port: Port = 0
    """From where adaptive and metered updates come that are not sent again when they are lost; 0: with the others."""

    group: Text = ""
    """As group:port, where adaptive updates are sent to this consumer and others at once; empty: nowhere."""

    group_port: Port = 0
    """Of `host`, from which they come."""

    group_publisher_id: U64 = 0
    group_sequence: U64 = 0
    """The number of the first packet that concerns this consumer."""

    key: DatagramKey = b""
    """Of datagrams: authenticates the packets and repair requests of this consumer's streams."""

    group_key: DatagramKey = b""
    """The same for the group; all its members have it."""


class Held(msgspec.Struct, tag="held", frozen=True):
    """What was asked for under this number holds."""

    number: Number
    per_second: Rate = 0.0
    """The rate that is granted; 0: none is kept."""


class OpenRegion(msgspec.Struct, tag="open-region", frozen=True):
    """Records of this model are in this segment from now on; one that was there before is not written any more."""

    model_id: ModelNumber
    model_version: ModelNumber
    segment: SegmentName
    marks: SegmentName
    """Where the consumer notes which generation of each record it has read; empty for a region that is shared."""

    record_size: U32
    record_count: U32
    parts: Annotated[list[U32], msgspec.Meta(max_length=REGION_PARTS_MAX)] = []
    """Where the parts of a record begin that have checksums of their own; none: it is one."""

    is_shared: bool = False


class Restarted(msgspec.Struct, tag="restarted", frozen=True):
    """The ring begins anew; its first events say what is missing."""

    number: Number


class Records(msgspec.Struct, tag="records", frozen=True):
    """DEFINE and REFRESH events of what was asked for."""

    number: Number
    data: EventBytes
    is_last: bool


class ModelDocument(msgspec.Struct, tag="model-document", frozen=True):
    number: Number
    document: Annotated[str, msgspec.Meta(max_length=MODEL_IN_BAND_SIZE_MAX)]


class Vouched(msgspec.Struct, tag="vouched", frozen=True):
    """The token is good, and grants what was asked for."""

    number: Number
    subject: Text
    subscription_id: Text
    expires_ns: U64
    grants: Annotated[list[Interest], msgspec.Meta(max_length=GRANTS_MAX)]


class Withdrawn(msgspec.Struct, tag="withdrawn", frozen=True):
    """To a node: tokens of this subscription at the administration server are no longer good."""

    subscription_id: Text
    reason: Text


class Events(msgspec.Struct, tag="events", frozen=True):
    """Whole events, in their order (docs/reference/protocol/distribution.md)."""

    data: EventBytes


class RefusalCode(StrEnum):
    """Why something is refused."""

    TOKEN = "token"
    EXPIRED = "expired"
    REVOKED = "revoked"
    ENTITLEMENT = "entitlement"
    TAKEN = "taken"
    TRANSPORT = "transport"
    CLASS = "class"
    RATE = "rate"
    TOPIC = "topic"
    MODEL = "model"
    SUBSCRIPTION = "subscription"
    SEGMENT = "segment"
    UPSTREAM = "upstream"
    LIMIT = "limit"
    PROTOCOL = "protocol"
    STOPPING = "stopping"


class Refused(AnyRefused, tag="refused", frozen=True):
    """`code` is one of RefusalCode."""


ConsumerMessage: TypeAlias = (
    Login | Subscribe | Modify | Unsubscribe | Snapshot | Overrun | Missed | AskModel | RenewToken | Vouch
)
NodeMessage: TypeAlias = (
    Welcome | Held | OpenRegion | Restarted | Records | ModelDocument | Vouched | Withdrawn | Events | Refused
)
ControlMessage: TypeAlias = ConsumerMessage | NodeMessage

PROTOCOL: ControlProtocol[ControlMessage] = ControlProtocol("distribution", Version(3, 1), ControlMessage)

CONNECTION = ControlConfig(
    message_size_max=MESSAGE_SIZE_MAX, inbox_messages_max=64, ping_ms=1_000, silence_ms=5_000, write_ms=5_000
)
"""How both sides configure the connection, unless told otherwise."""
