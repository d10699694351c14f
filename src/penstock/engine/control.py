"""The messages between consumers and nodes (plant, multiplexer, edge cache) (protocol/distribution-control.md).

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
  │ ◄───────────────────── GroupKeys      the keys of the group's packets have changed

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
"""Maximum number of topics in one request; larger subscriptions are split."""

GRANTS_MAX = 16_384
REGION_PARTS_MAX = 16
EVENTS_SIZE_MAX = 256 * 1024
"""Maximum size of events in one message."""

MESSAGE_SIZE_MAX = 1024 * 1024

Transport: TypeAlias = Literal["local", "session", "datagram"]
"""The transport of a consumer's events: shared memory on this host, this connection, or UDP."""

ClassName: TypeAlias = Literal["critical", "adaptive", "metered"]
ClassWish: TypeAlias = Literal["auto", "critical", "adaptive", "metered"]
"""`auto`: the node's classifier decides."""

RingName: TypeAlias = Literal["events", "notices"]

Topics = Annotated[list[Interest], msgspec.Meta(min_length=1, max_length=TOPICS_MAX)]
RATE_MAX = 1e12
Rate = Annotated[float, msgspec.Meta(ge=0, le=RATE_MAX)]
EventBytes = Annotated[bytes, msgspec.Meta(max_length=EVENTS_SIZE_MAX)]
ModelNumber = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
GROUP_KEYS_MAX = 8
DatagramKey = Annotated[bytes, msgspec.Meta(max_length=16)]
"""16 random bytes; empty without datagrams."""


# Messages of consumers


class Login(msgspec.Struct, tag="login", frozen=True):
    """The first message. One connection has one consumer."""

    name: Name
    transport: Transport = "session"
    token: Token = ""
    """A stream token of the administration server, if the node requires one."""

    is_node: bool = False
    """True for a node that serves others: it may send Vouch, and gets Withdrawn."""

    classes: list[ClassName] = []
    """Classes that the consumer accepts; empty: all that the node serves on this transport."""

    host: Host = ""
    """With datagrams: their destination host."""

    port: Port = 0
    takes_group: bool = False
    """With datagrams: True if adaptive updates, and only those, may be sent by multicast."""


class Subscribe(msgspec.Struct, tag="subscribe", frozen=True):
    """Requests the current image of the topics and every later update. Held confirms the whole request, Refused
    rejects the whole request. A LIVE event with this number follows the last refresh."""

    number: Number
    """Chosen by the consumer, from 1 on; identifies the request in the answer, and later the subscription."""

    topics: Topics
    """Patterns as text (docs/reference/topics.md)."""

    cls: ClassWish = "auto"
    per_second: Rate = 0.0
    """For the metered class: updates per second of each item; 0: unmetered."""

    after: U64 = 0
    """Critical events after this event number are sent again, if the node still has them; 0: the current image is
    enough. Only valid with the epoch of that number."""

    epoch: U64 = 0


class Modify(msgspec.Struct, tag="modify", frozen=True):
    """Changes the rate of a subscription."""

    number: Number
    subscription: Number
    per_second: Rate


class Unsubscribe(msgspec.Struct, tag="unsubscribe", frozen=True):
    """Answered with Held; events on their way may still arrive."""

    number: Number
    subscription: Number


class Snapshot(msgspec.Struct, tag="snapshot", frozen=True):
    """Requests current records once: answered with one or more Records messages."""

    number: Number
    topics: Topics


class Overrun(msgspec.Struct, tag="overrun", frozen=True):
    """The consumer was too slow for its ring, which was overrun. Answered with Restarted; then the ring starts
    again, with the missed events or with refreshes."""

    number: Number
    last_number: U64
    """Number of the last event that the consumer has; 0: none."""

    ring: RingName = "events"


class Missed(msgspec.Struct, tag="missed", frozen=True):
    """Lost packets of the group's stream, handled as configured at the node. 0 to 0: the group cannot be received,
    and the node must use other means."""

    first_sequence: U64
    last_sequence: U64


class AskModel(msgspec.Struct, tag="ask-model", frozen=True):
    """Requests the document of an unknown message model that events refer to."""

    number: Number
    id: ModelNumber
    version: ModelNumber


class RenewToken(msgspec.Struct, tag="renew", frozen=True):
    number: Number
    token: Token


class Vouch(msgspec.Struct, tag="vouch", frozen=True):
    """A node verifies the token and topics of one of its consumers."""

    number: Number
    name: Name
    token: Token
    topics: Annotated[list[Interest], msgspec.Meta(max_length=TOPICS_MAX)] = []
    """Empty: only the token is verified."""


# Messages of the node


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    node: Name
    epoch: U64
    """Epoch of the node's start; event numbers of other epochs are invalid."""

    consumer: U32
    classes: list[ClassName]
    """Classes that are available to this consumer."""

    rate_max: Rate = 0.0
    """Maximum updates per second and item; 0: no limit, including unmetered updates."""

    grants: Annotated[list[Interest], msgspec.Meta(max_length=GRANTS_MAX)] = []
    """Patterns that the token allows to receive live; a leading ! denies. `>` if the node requires no tokens."""

    path: Path = ""
    """With local delivery: the handover socket, and the names of the rings."""

    ring: SegmentName = ""
    notices: SegmentName = ""
    publisher_id: U64 = 0
    """With datagrams: the publisher of the reliable stream, and its source."""

    host: Host = ""
    port: Port = 0
    fresh_port: Port = 0
    """Source port of adaptive updates that are not sent again when lost; 0: they are in the reliable stream."""

    group: Text = ""
    """The multicast group of shared adaptive updates, as group:port; empty: none."""

    group_port: Port = 0
    """Source port of the group's packets, at `host`."""

    group_publisher_id: U64 = 0
    group_sequence: U64 = 0
    """Number of the first group packet that concerns this consumer."""

    key: DatagramKey = b""
    """With datagrams: authenticates packets and repair requests of this consumer's streams."""

    group_key: DatagramKey = b""
    """Authenticates the group's packets; all members have this key."""

    group_key_id: Annotated[int, msgspec.Meta(ge=2, le=2**32 - 1)] = 2
    """Id of this key in trailers."""


class Held(msgspec.Struct, tag="held", frozen=True):
    """The request of this number is active."""

    number: Number
    per_second: Rate = 0.0
    """The granted rate; 0: none."""


class OpenRegion(msgspec.Struct, tag="open-region", frozen=True):
    """Records of this model are in this segment from now on; an earlier segment is no longer written."""

    model_id: ModelNumber
    model_version: ModelNumber
    segment: SegmentName
    marks: SegmentName
    """Segment in which the consumer marks the read generation of each record; empty for a shared region."""

    record_size: U32
    record_count: U32
    parts: Annotated[list[U32], msgspec.Meta(max_length=REGION_PARTS_MAX)] = []
    """Offsets of record parts with their own checksums; empty: one part."""

    is_shared: bool = False


class Restarted(msgspec.Struct, tag="restarted", frozen=True):
    """The ring starts again; its first events report what is missing."""

    number: Number


class Records(msgspec.Struct, tag="records", frozen=True):
    """DEFINE and REFRESH events of the requested records."""

    number: Number
    data: EventBytes
    is_last: bool


class ModelDocument(msgspec.Struct, tag="model-document", frozen=True):
    number: Number
    document: Annotated[str, msgspec.Meta(max_length=MODEL_IN_BAND_SIZE_MAX)]


class Vouched(msgspec.Struct, tag="vouched", frozen=True):
    """The token is valid and grants the topics."""

    number: Number
    subject: Text
    subscription_id: Text
    expires_ns: U64
    grants: Annotated[list[Interest], msgspec.Meta(max_length=GRANTS_MAX)]


class Withdrawn(msgspec.Struct, tag="withdrawn", frozen=True):
    """To a node: tokens of this subscription are no longer valid."""

    subscription_id: Text
    reason: Text


class GroupKey(msgspec.Struct, frozen=True):
    key_id: Annotated[int, msgspec.Meta(ge=2, le=2**32 - 1)]
    key: DatagramKey


class GroupKeys(msgspec.Struct, tag="group-keys", frozen=True):
    """To a member of the group: accept packets of the group only under these keys. After a member has left, the next
    key is added, and then replaces the old one."""

    keys: Annotated[list[GroupKey], msgspec.Meta(max_length=GROUP_KEYS_MAX)]


class Events(msgspec.Struct, tag="events", frozen=True):
    """Complete events, in order (docs/reference/protocol/distribution.md)."""

    data: EventBytes


class RefusalCode(StrEnum):
    """The reason of a refusal."""

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
    Welcome
    | Held
    | OpenRegion
    | Restarted
    | Records
    | ModelDocument
    | Vouched
    | Withdrawn
    | GroupKeys
    | Events
    | Refused
)
ControlMessage: TypeAlias = ConsumerMessage | NodeMessage

PROTOCOL: ControlProtocol[ControlMessage] = ControlProtocol("distribution", Version(3, 2), ControlMessage)

CONNECTION = ControlConfig(
    message_size_max=MESSAGE_SIZE_MAX, inbox_messages_max=64, ping_ms=1_000, silence_ms=5_000, write_ms=5_000
)
"""Default configuration of the connection on both sides."""
