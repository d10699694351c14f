"""The messages between a subscriber and a feed adapter's stream service over TCP (protocol/unicast.md).

subscriber                     adapter
  │ OpenStream ──────────────────► │      a token of the administration server, and topics
  │ ◄──────────────── StreamOpened │      who publishes, under which term
  │ ◄─── ImageBegin, Packets, ImageEnd    the current image, when it was asked for
  │ ◄───────────────────── Packets │      what comes: packets as on multicast, with what the token and topics allow
  │ ModifyStream ────────────────► │      other topics from now on
  │ RenewToken ──────────────────► │      the same grants for longer
  │ Contribute ──────────────────► │      messages of one's own
  │ ◄───────────────── Contributed │      up to where they were taken
  │ CloseStream ─────────────────► │
  │ ◄─────────────── StreamRefused │      instead of anything: not allowed (any more), and why

The packets of a connection count from 1 without a gap, those of an image as well; group is 0.
"""

from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec

from penstock.base.limits import PACKET_SIZE_MAX
from penstock.net.config import ControlConfig
from penstock.net.core.control import ControlProtocol, Name, Text, Version

TOKEN_SIZE_MAX = 65_536
TOPICS_MAX = 4_096
"""Maximum number of interests in one request."""

PACKETS_BYTES = 256 * 1024
"""Bytes of packets in one message, unless a single packet is longer."""

PACKETS_MAX = 4_096
CONTRIBUTIONS_MAX = 1_024
CONTRIBUTION_SIZE_MAX = 32_768
"""Maximum size of a contributed message's payload."""

U16_MAX = 2**16 - 1
U32_MAX = 2**32 - 1

Token = Annotated[str, msgspec.Meta(max_length=TOKEN_SIZE_MAX)]
Interest = Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]
Topics = Annotated[list[Interest], msgspec.Meta(max_length=TOPICS_MAX)]
U16 = Annotated[int, msgspec.Meta(ge=0, le=U16_MAX)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=U32_MAX)]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class OpenStream(msgspec.Struct, tag="open", frozen=True):
    """The first message of a subscriber."""

    token: Token
    """The token of the administration server; empty if the adapter requires none."""

    topics: Topics
    """Interests as text: patterns, and negative ones with a `!`. The token's grants limit them."""

    live: bool = True
    """True to continue with live messages; False to end the stream after the image."""

    image: bool = False
    """True to begin with the current image."""

    from_ns: Sequence = 0
    """For a delayed grant: begin with messages captured at this time of the wall clock; 0: with the newest one that
    is old enough."""

    delay_s: U32 | None = None
    """The delay of the requested grants: topics granted with this delay and not with a smaller one, each message at
    least that old; 0 is live. If no grant has this delay, the next smaller one counts. None: the smallest delay
    among the grants."""


class ModifyStream(msgspec.Struct, tag="modify", frozen=True):
    """Changes the topics from the next packet on."""

    topics: Topics


class Contribution(msgspec.Struct, frozen=True):
    topic: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    model_id: U16
    model_version: U16
    payload: Annotated[bytes, msgspec.Meta(max_length=CONTRIBUTION_SIZE_MAX)]


class Contribute(msgspec.Struct, tag="contribute", frozen=True):
    """Messages of the contributor, numbered from 1."""

    stream: Name
    """A source stream for which the adapter accepts contributions."""

    first_sequence: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    messages: Annotated[list[Contribution], msgspec.Meta(max_length=CONTRIBUTIONS_MAX)]


class RenewToken(msgspec.Struct, tag="renew", frozen=True):
    token: Token


class CloseStream(msgspec.Struct, tag="close", frozen=True):
    """The subscriber ends the stream."""


class StreamOpened(msgspec.Struct, tag="opened", frozen=True):
    adapter: Name
    publisher_id: Annotated[int, msgspec.Meta(ge=1)]
    term: U32
    """The adapter's term; 0 if unknown."""

    streams: list[U32]
    """Ids of the source streams the adapter converts."""


class Packets(msgspec.Struct, tag="packets", frozen=True):
    """Wire packets (docs/reference/protocol/packet.md), in order."""

    packets: Annotated[
        list[Annotated[bytes, msgspec.Meta(max_length=PACKET_SIZE_MAX)]], msgspec.Meta(max_length=PACKETS_MAX)
    ]


class Position(msgspec.Struct, frozen=True):
    """The position of a source stream."""

    stream_id: U32
    term: U32
    message_sequence: Annotated[int, msgspec.Meta(ge=0)]
    """Number of the last included message."""


class ImageBegin(msgspec.Struct, tag="image-begin", frozen=True):
    """Packets up to ImageEnd are the current image."""

    positions: list[Position]


class ImageEnd(msgspec.Struct, tag="image-end", frozen=True):
    """The image is complete: later messages follow these positions."""

    positions: list[Position]


class Contributed(msgspec.Struct, tag="contributed", frozen=True):
    """Everything below this number was accepted. Also the answer to an empty Contribute."""

    stream: Name
    next_sequence: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class RefusalCode(StrEnum):
    """The reason why a stream ends or was not opened."""

    TOKEN = "token"
    EXPIRED = "expired"
    REVOKED = "revoked"
    ENTITLEMENT = "entitlement"
    TOPICS = "topics"
    SLOW = "slow"
    PROTOCOL = "protocol"
    CONTRIBUTION = "contribution"
    GONE = "gone"
    UNAVAILABLE = "unavailable"
    LIMIT = "limit"
    STOPPING = "stopping"


class StreamRefused(msgspec.Struct, tag="refused", frozen=True):
    """The adapter ends the stream or does not open it; `code` is one of RefusalCode."""

    code: Text
    reason: Text


SubscriberMessage: TypeAlias = OpenStream | ModifyStream | Contribute | RenewToken | CloseStream
AdapterMessage: TypeAlias = StreamOpened | Packets | ImageBegin | ImageEnd | Contributed | StreamRefused
UnicastMessage: TypeAlias = SubscriberMessage | AdapterMessage

PROTOCOL: ControlProtocol[UnicastMessage] = ControlProtocol("stream", Version(1, 0), UnicastMessage)

CONNECTION = ControlConfig(message_size_max=1024 * 1024, inbox_messages_max=64)
"""Default configuration of the connection on both sides."""
