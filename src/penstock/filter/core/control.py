"""What applications, publishers and a filter module say to each other over TCP (protocol/filter-control.md).

application                    filter
  │ Register ────────────────────► │      who I am, how I want my packets, a token where one is asked for
  │ ◄────────────────── Registered │      where packets come from, where repairs are asked for
  │ Models ──────────────────────► │      the message models that conditions speak of
  │ Want ────────────────────────► │      interests to add and to remove
  │ ◄──────────────────── Position │      where each stream stands that brings them
  │ ◄─────────────────────── Holds │      the change holds: nothing that matches is lost from now on
  │ ◄──── Position, Ended, Collided       what becomes of the streams
  │ RenewToken ──────────────────► │      the same rights for longer
  │ RestartRing ─────────────────► │      the ring overran me
  │ ◄──────────────────── Restarted│
  │ ◄────────────────────── Refused│      in place of an answer; a Refused without a number ends the connection

publisher                      filter
  │ OfferRing ───────────────────► │      a ring that has every packet I send, for a filter on my own host
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

PORT_DEFAULT = 7402
"""Where a filter module listens for applications, unless told otherwise."""

TOPICS_MAX = 16_384
"""Interests under one condition in one message."""

CONDITIONS_MAX = 256
"""Conditions in one message."""

CONDITION_SIZE_MAX = 4_096
CHANNELS_MAX = 4_096
MODELS_MAX = 64

Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
ChannelText = Annotated[str, msgspec.Meta(min_length=1, max_length=32)]

Wish: TypeAlias = Literal["unicast", "ring", "shared"]
"""How an application would like its packets: to its own address, in shared memory, or with others of its host."""

Delivery: TypeAlias = Literal["unicast", "ring", "mask", "residual"]
"""How it gets them."""

Repair: TypeAlias = Literal["filter", "receivers"]


# What an application says


class Register(msgspec.Struct, tag="register", frozen=True):
    """The first message of an application, or of whoever acts for it. A connection is good for one application."""

    application: Name
    """The connection's own node name; a controlling entity names the application on whose behalf it speaks."""

    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    """The UDP port for its packets; if they come another way (ring, shared), for repairs only."""

    delivery: Wish = "unicast"
    host: Host = ""
    """Its address, where that is not the address from which this connection comes."""

    application_id: U64 = 0
    """Its address for messages to it alone; 0 has the filter choose one."""

    token: Token = ""
    """A stream token of the administration server, where the filter asks for one."""


class Interests(msgspec.Struct, frozen=True):
    """Interests under one condition."""

    topics: Annotated[list[Interest], msgspec.Meta(max_length=TOPICS_MAX)]
    """As text (docs/reference/topics.md); negative interests are subtracted from others under the same condition."""

    where: Annotated[str, msgspec.Meta(max_length=CONDITION_SIZE_MAX)] = ""
    """A SQL condition on the fields of the message; empty for none."""

    content: Annotated[bytes, msgspec.Meta(max_length=CONDITION_SIZE_MAX)] = b""
    """Bytes that must occur in the message's content; empty for none. Not together with `where`."""

    channels: Annotated[list[ChannelText], msgspec.Meta(max_length=CHANNELS_MAX)] = []
    """Where these topics flow, as group:port. None: where the filter's map says, or everything it listens to."""


InterestsList = Annotated[list[Interests], msgspec.Meta(max_length=CONDITIONS_MAX)]


class Want(msgspec.Struct, tag="want", frozen=True):
    """A change of interests. All of it holds when it is answered with Holds, nothing of it when with Refused."""

    number: Number
    """The application's own, from 1: it names the change in the answer."""

    add: InterestsList = []
    remove: InterestsList = []


class Models(msgspec.Struct, tag="models", frozen=True):
    """Message models (TOML documents) that conditions may speak of, besides those the filter knows."""

    number: Number
    documents: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=MODEL_IN_BAND_SIZE_MAX)]], msgspec.Meta(max_length=MODELS_MAX)
    ]


class RenewToken(msgspec.Struct, tag="renew", frozen=True):
    number: Number
    token: Token


class RestartRing(msgspec.Struct, tag="restart-ring", frozen=True):
    """The application was too slow for its ring and has lost its place in it."""

    number: Number


class OfferRing(msgspec.Struct, tag="offer-ring", frozen=True):
    """A publisher on the filter's host: the ring at this handover has every packet that it sends. The connection lasts
    as long as the offer."""

    number: Number
    publisher_id: Annotated[int, msgspec.Meta(ge=1)]
    path: Annotated[str, msgspec.Meta(min_length=1, max_length=107)]
    segment: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    host: Host
    """From where the same packets come by the network, and repairs are asked for."""

    port: Port


# What the filter says


class Registered(msgspec.Struct, tag="registered", frozen=True):
    filter: Name
    application_id: U64
    """Where messages to this application alone are sent."""

    delivery: Delivery
    repair: Repair
    """Whether lost packets are asked for at the filter, or at their publishers."""

    host: Host
    """The filter's own address: from it come unicast packets, and their repairs."""

    port: Port
    group: Host = ""
    """Of shared delivery: the address to join, and its port."""

    group_port: Port = 0
    bit: Number = 0
    """Of delivery by mask: this application's bit in the mask of each message."""

    path: Path = ""
    """Of delivery by ring: where the segment is handed over, and what it is called."""

    segment: SegmentName = ""


class Holds(msgspec.Struct, tag="holds", frozen=True):
    """The change of this number holds."""

    number: Number


class Position(msgspec.Struct, tag="position", frozen=True):
    """The application gets this stream from packet `next_sequence` on: whatever of it is not for the application is
    accounted for by gaps."""

    publisher_id: U64
    group: U32
    epoch: U64
    next_sequence: Sequence
    host: Host
    """The publisher's address, where repairs are asked for when the filter has none."""

    port: Port
    is_replay: bool = False
    """Whether the stream is from the past, not live."""


class Ended(msgspec.Struct, tag="ended", frozen=True):
    """Nothing more is expected of this stream; `cause` is a Cause."""

    publisher_id: U64
    group: U32
    epoch: U64
    next_sequence: Sequence
    cause: Text


class Collided(msgspec.Struct, tag="collided", frozen=True):
    """Two publishers use one id; the packets of the second are refused."""

    publisher_id: U64
    group: U32
    epoch: U64
    owner: Text
    intruder: Text


class Restarted(msgspec.Struct, tag="ring-restarted", frozen=True):
    """The ring begins anew; what was in it is lost, and can be asked for."""

    number: Number


class RefusalCode(StrEnum):
    """Why something is refused."""

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

PROTOCOL: ControlProtocol[ControlMessage] = ControlProtocol("filter", Version(1, 0), ControlMessage)

CONNECTION = ControlConfig(
    message_size_max=1024 * 1024, inbox_messages_max=64, ping_ms=1_000, silence_ms=5_000, write_ms=5_000
)
"""How both sides configure the connection, unless told otherwise."""
