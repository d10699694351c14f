"""The control messages between the parties of a distribution tree (docs/reference/protocol/tree.md).

child (agent, standby, peer,      parent (agent, root)
subscriber, publisher)
  │ Login ───────────────────────► │      name, role and token
  │ ◄────────────────────── Welcome│      the agent's name, its place in the tree, the streams
  │ Subscribe ───────────────────► │      a leg: a stream, wants, and a start position
  │ ◄───────────────────────── Held│      confirmed, with the position of the first message
  │ Fetch ───────────────────────► │      request a portion of missed messages
  │ ◄───────────── blocks of the leg
  │ ◄────────────────────── Fetched│      end of the portion; then the leg is live, or fetch again
  │ ◄──────────── live blocks, the infostream among them
  │ Unsubscribe, RenewToken ─────► │
  │ Stored ──────────────────────► │      from a standby: everything is stored up to here
  │ blocks ──────────────────────► │      from a publisher (and between peers): its messages
  │ ◄──────────────────── Published│      stored up to this number
  │ ◄────────────────────── Refused│      instead of an answer; number 0: the link ends with it

These are the control frames of a link; its other frames are blocks of packets. All other messages of a parent are sent
on the infostream (infostream.py).
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

from penstock.net.core.control import U32, U64, ControlProtocol, Interest, Name, Number, Text, Token, Version
from penstock.net.core.control import Refused as AnyRefused

TOPICS_MAX = 4_096
"""Maximum number of topics of one want."""

WANTS_MAX = 4_096
"""Maximum number of wants of one leg."""

WANTS_SIZE_MAX = 1024 * 1024
"""Maximum size of topics and conditions of one leg, also after they are narrowed to grants."""

WHERE_SIZE_MAX = 4_096
STREAMS_MAX = 65_536
TERMS_MAX = 16
"""Number of terms of a stream whose begins are kept: positions of older terms cannot be checked."""

PATH_MAX = 32
"""Maximum number of agents from the root to a leaf, inclusive."""

MESSAGE_SIZE_MAX = 4 * 1024 * 1024

Role: TypeAlias = Literal["agent", "standby", "peer", "subscriber", "publisher", "operator"]
"""The role of a party at an agent. An operator only gives orders, and is not part of the tree."""

Action: TypeAlias = Literal["move", "return", "promote", "revoke", "restore"]

AGENT_ROLES: frozenset[Role] = frozenset({"agent", "standby", "peer"})
"""Roles of agents, which may send on the infostream."""

Class: TypeAlias = Literal["lossless", "conflating", "disconnect"]
Begin: TypeAlias = Literal["live", "oldest", "sequence", "time"]

BEARERS_MAX = 1_024
"""Maximum number of publisher ids in one message."""

Topics = Annotated[tuple[Interest, ...], msgspec.Meta(min_length=1, max_length=TOPICS_MAX)]
Where = Annotated[str, msgspec.Meta(max_length=WHERE_SIZE_MAX)]
PlaceText = Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[^\s,]*$")]
"""host:port."""


class Want(msgspec.Struct, frozen=True, array_like=True):
    """Messages on any of these topics that match the condition; without a condition, all of them match."""

    topics: Topics
    where: Where = ""


def size_of(want: Want) -> int:
    return len(want.where.encode()) + sum(len(topic.encode()) for topic in want.topics)


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The start of a leg: the next message, the oldest one that is kept, the message after a sequence, or the first
    message of a time or later."""

    begin: Begin = "live"
    at: U64 = 0
    """The sequence, or the time in nanoseconds since 1970."""

    term: U32 = 0
    """For a sequence: the term of its message; 0: none."""


LIVE = Position()
OLDEST = Position("oldest")


class StreamInfo(msgspec.Struct, frozen=True):
    number: U32
    name: Name
    topics: Annotated[tuple[Interest, ...], msgspec.Meta(max_length=TOPICS_MAX)]
    begins: Annotated[tuple[tuple[U32, U64], ...], msgspec.Meta(max_length=TERMS_MAX)] = ()
    """(term, after): messages after this sequence belong to the term, until the next one begins; the newest is last."""


# Messages of a child


class Login(msgspec.Struct, tag="login", frozen=True):
    """The first message. The handshake of the connection has verified the name."""

    name: Name
    role: Role = "subscriber"
    tree: Name = "tree"
    token: Token = ""
    """A stream token of the administration server, if the agent requires one."""

    place: PlaceText = ""
    """For an agent: its address for children."""

    home: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """The name of the agent that moved it here temporarily."""

    publisher_id: U64 = 0
    """For a publisher: the id in whose numbering its messages are."""

    cls: Class = "lossless"
    """Handling of the party when it does not keep up."""

    term: U32 = 0
    """The highest known term."""


class Subscribe(msgspec.Struct, tag="subscribe", frozen=True):
    """Opens a leg. Answered with Held or Refused. No packets are sent before a Fetch, unless the leg begins live."""

    number: Number
    """Chosen by the child, from 1 on; identifies the leg, and is used once per link."""

    stream: Name
    wants: Annotated[tuple[Want, ...], msgspec.Meta(min_length=1, max_length=WANTS_MAX)]
    after: Position = LIVE


class Fetch(msgspec.Struct, tag="fetch", frozen=True):
    """Requests the next portion of a leg that is not live. Answered with blocks of the leg, then Fetched. One
    request at a time."""

    number: Number
    bytes_max: U32


class Unsubscribe(msgspec.Struct, tag="unsubscribe", frozen=True):
    """Closes a leg. Packets on their way still arrive. Not answered."""

    number: Number


class Stored(msgspec.Struct, tag="stored", frozen=True):
    """From a standby: it has stored the stream up to this sequence."""

    stream: U32
    through: U64


class RenewToken(msgspec.Struct, tag="renew", frozen=True):
    token: Token


class Order(msgspec.Struct, tag="order", frozen=True):
    """An operator's order. Answered with Ordered or Refused."""

    number: Number
    action: Action
    party: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """The child that the order concerns."""

    place: PlaceText = ""
    """The new parent of a child; empty: the agent chooses."""

    topics: Annotated[tuple[Interest, ...], msgspec.Meta(max_length=TOPICS_MAX)] = ()
    """The topics to revoke; empty: all."""

    reason: Text = ""


# Messages of the parent


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    agent: Name
    tree: Name
    term: U32
    path: Annotated[tuple[Name, ...], msgspec.Meta(max_length=PATH_MAX)]
    """From the root to this agent, as far as known."""

    is_rooted: bool
    """True if the path is complete now."""

    streams: Annotated[tuple[StreamInfo, ...], msgspec.Meta(max_length=STREAMS_MAX)] = ()
    published_through: U64 = 0
    """For a publisher: the last number of its messages that is stored."""


class Held(msgspec.Struct, tag="held", frozen=True):
    number: Number
    stream: U32
    after: U64
    """The leg has messages after this sequence."""

    term: U32
    """Term of the first of these messages."""

    is_live: bool
    """False: the messages have to be fetched."""

    wants: Annotated[tuple[Want, ...], msgspec.Meta(max_length=WANTS_MAX)] = ()
    """The granted wants, if not all were granted."""


class Fetched(msgspec.Struct, tag="fetched", frozen=True):
    """End of a portion: the child has everything of the leg through this sequence. If the leg is live, later
    messages follow in live blocks."""

    number: Number
    through: U64
    is_live: bool


class Published(msgspec.Struct, tag="published", frozen=True):
    """The publisher's messages are stored up to this number."""

    through: U64
    is_degraded: bool = False
    """True if some newly acknowledged messages have no copy at a standby, although replication is synchronous."""


class Bearers(msgspec.Struct, tag="bearers", frozen=True):
    """To a standby: the clients that publisher ids belong to, also after a takeover."""

    bearers: Annotated[tuple[tuple[U64, Text], ...], msgspec.Meta(max_length=BEARERS_MAX)]


class Ordered(msgspec.Struct, tag="ordered", frozen=True):
    """The order was carried out, or started."""

    number: Number


class Refused(AnyRefused, tag="refused", frozen=True):
    """`number` is that of the leg or order; 0: the party is refused, and the link ends."""

    place: PlaceText = ""
    """The address to use instead, if the agent knows one."""


ChildMessage: TypeAlias = Login | Subscribe | Fetch | Unsubscribe | Stored | RenewToken | Order
ParentMessage: TypeAlias = Welcome | Held | Fetched | Published | Bearers | Ordered | Refused
Message: TypeAlias = ChildMessage | ParentMessage

TREE: ControlProtocol[Message] = ControlProtocol("tree", Version(1, 0), Message)
