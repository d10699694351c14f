"""The messages between applications, publishers and a filter module over TCP (protocol/filter-control.md).

application                    filter
  │ Register ────────────────────► │      name, delivery, and a token if the module requires one
  │ ◄────────────────── Registered │      addresses of packets and of repairs
  │ Models ──────────────────────► │      message models that conditions refer to
  │ Want ────────────────────────► │      interests to add and to remove
  │ ◄──────────────────── Position │      position of each stream that carries them
  │ ◄─────────────────────── Holds │      the change is active: no matching message is lost from now on
  │ ◄──── Position, Ended, Collided       changes of streams
  │ RenewToken ──────────────────► │      the same rights for longer
  │ RestartRing ─────────────────► │      the ring was overrun
  │ ◄──────────────────── Restarted│
  │ ◄────────────────────── Refused│      instead of an answer; a Refused without a number ends the connection

publisher                      filter
  │ OfferRing ───────────────────► │      a ring with every packet of the publisher, for a filter on its host
  │ ◄─────────────────────── Holds │
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
from penstock.wire.authentication import KEY_SIZE

PORT_DEFAULT = 7402
"""Default port of a filter module's control connections."""

TOPICS_MAX = 16_384
"""Maximum number of interests under one condition in one message."""

CONDITIONS_MAX = 256
"""Maximum number of conditions in one message."""

CONDITION_SIZE_MAX = 4_096
CHANNELS_MAX = 4_096

OWN_KEY_ID = 1
"""Key id of trailers made with `key` of Registered."""

GROUP_KEY_ID = 2
"""Key id of trailers made with `group_key` of Registered."""

MODELS_MAX = 64

Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
DatagramKey = Annotated[bytes, msgspec.Meta(max_length=KEY_SIZE)]
"""16 random bytes, or empty."""

ChannelText = Annotated[str, msgspec.Meta(min_length=1, max_length=32)]

Wish: TypeAlias = Literal["unicast", "ring", "shared"]
"""The requested delivery: to the application's own address, in shared memory, or shared with other applications of
its host."""

Delivery: TypeAlias = Literal["unicast", "ring", "mask", "residual"]
"""The actual delivery."""

Repair: TypeAlias = Literal["filter", "receivers"]


# Messages of applications and publishers


class Register(msgspec.Struct, tag="register", frozen=True):
    """The first message of an application, or of a controller that acts for it. One connection registers one
    application."""

    application: Name
    """The connection's node name; a controller names the application that it registers."""

    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    """The UDP port for packets; with delivery by ring or shared, for repairs only."""

    delivery: Wish = "unicast"
    host: Host = ""
    """The application's address, if it differs from the address of this connection."""

    application_id: U64 = 0
    """The address for messages to this application alone; 0: the filter chooses one."""

    token: Token = ""
    """A stream token of the administration server, if the filter requires one."""


class Interests(msgspec.Struct, frozen=True):
    """Interests with the same condition."""

    topics: Annotated[list[Interest], msgspec.Meta(max_length=TOPICS_MAX)]
    """As text (docs/reference/topics.md); negative interests are subtracted from others under the same condition."""

    where: Annotated[str, msgspec.Meta(max_length=CONDITION_SIZE_MAX)] = ""
    """A SQL condition on the fields of the message; empty: none."""

    content: Annotated[bytes, msgspec.Meta(max_length=CONDITION_SIZE_MAX)] = b""
    """Bytes that must occur in the message's payload; empty: none. Not together with `where`."""

    channels: Annotated[list[ChannelText], msgspec.Meta(max_length=CHANNELS_MAX)] = []
    """The channels of these topics, as group:port. Empty: the channels of the filter's map, or all its channels."""


InterestsList = Annotated[list[Interests], msgspec.Meta(max_length=CONDITIONS_MAX)]


class Want(msgspec.Struct, tag="want", frozen=True):
    """A change of interests. Holds confirms the whole change, Refused rejects the whole change."""

    number: Number
    """Chosen by the application, from 1 on; the answer repeats it."""

    add: InterestsList = []
    remove: InterestsList = []


class Models(msgspec.Struct, tag="models", frozen=True):
    """Message models (TOML documents) that conditions refer to, in addition to the models that the filter knows."""

    number: Number
    documents: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=MODEL_IN_BAND_SIZE_MAX)]], msgspec.Meta(max_length=MODELS_MAX)
    ]


class RenewToken(msgspec.Struct, tag="renew", frozen=True):
    number: Number
    token: Token


class RestartRing(msgspec.Struct, tag="restart-ring", frozen=True):
    """The application was too slow for its ring, which was overrun."""

    number: Number


class OfferRing(msgspec.Struct, tag="offer-ring", frozen=True):
    """A publisher on the filter's host offers a ring that has all its packets. The offer lasts as long as the
    connection."""

    number: Number
    publisher_id: Annotated[int, msgspec.Meta(ge=1)]
    path: Annotated[str, msgspec.Meta(min_length=1, max_length=107)]
    segment: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    host: Host
    """The source address of the same packets on the network, for repair requests."""

    port: Port


# Messages of the filter module


class Registered(msgspec.Struct, tag="registered", frozen=True):
    filter: Name
    application_id: U64
    """The address for messages to this application alone."""

    delivery: Delivery
    repair: Repair
    """Where the application requests lost packets: at the filter or at their publishers."""

    host: Host
    """The source address of the filter's unicast packets and repairs."""

    port: Port
    group: Host = ""
    """With shared delivery: the group to join and its port."""

    group_port: Port = 0
    bit: Number = 0
    """With delivery by mask: this application's bit in the mask of each message."""

    path: Path = ""
    """With delivery by ring: the handover socket and the name of the segment."""

    segment: SegmentName = ""
    key: DatagramKey = b""
    """Authenticates this application's repair requests and the packets to its own port; empty: no authentication."""

    group_key: DatagramKey = b""
    """With shared delivery: authenticates packets to `group`; all applications of the group have this key."""


class Holds(msgspec.Struct, tag="holds", frozen=True):
    """The change of this number is active."""

    number: Number


class Position(msgspec.Struct, tag="position", frozen=True):
    """The application gets this stream from packet `next_sequence` on; gaps account for packets without matching
    messages."""

    publisher_id: U64
    group: U32
    epoch: U64
    next_sequence: Sequence
    host: Host
    """The publisher's address, for repair requests if the filter does not repair."""

    port: Port
    is_replay: bool = False
    """True if the stream is a replay."""


class Ended(msgspec.Struct, tag="ended", frozen=True):
    """The filter expects no further packets of this stream; `cause` is a Cause."""

    publisher_id: U64
    group: U32
    epoch: U64
    next_sequence: Sequence
    cause: Text


class Collided(msgspec.Struct, tag="collided", frozen=True):
    """Two publishers use the same id; the packets of the second one are refused."""

    publisher_id: U64
    group: U32
    epoch: U64
    owner: Text
    intruder: Text


class Restarted(msgspec.Struct, tag="ring-restarted", frozen=True):
    """The ring starts again; its previous content is lost and can be requested."""

    number: Number


class RefusalCode(StrEnum):
    """The reason of a refusal."""

    TOKEN = "token"
    EXPIRED = "expired"
    REVOKED = "revoked"
    ENTITLEMENT = "entitlement"
    CONTROLLER = "controller"
    HOST = "host"
    TAKEN = "taken"
    DELIVERY = "delivery"
    INTEREST = "interest"
    CONDITION = "condition"
    MODEL = "model"
    CHANNEL = "channel"
    RING = "ring"
    LIMIT = "limit"
    PROTOCOL = "protocol"
    STOPPING = "stopping"


class Refused(AnyRefused, tag="refused", frozen=True):
    """`code` is one of RefusalCode."""


ApplicationMessage: TypeAlias = Register | Want | Models | RenewToken | RestartRing | OfferRing
FilterMessage: TypeAlias = Registered | Holds | Position | Ended | Collided | Restarted | Refused
ControlMessage: TypeAlias = ApplicationMessage | FilterMessage

PROTOCOL: ControlProtocol[ControlMessage] = ControlProtocol("filter", Version(2, 0), ControlMessage)

CONNECTION = ControlConfig(
    message_size_max=1024 * 1024, inbox_messages_max=64, ping_ms=1_000, silence_ms=5_000, write_ms=5_000
)
"""Default configuration of the connection on both sides."""
