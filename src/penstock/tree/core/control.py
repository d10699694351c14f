"""What the parties of a distribution tree say to each other (docs/reference/protocol/tree.md).

child (agent, standby, peer,      parent (agent, root)
subscriber, publisher)
  │ Login ───────────────────────► │      who I am, and as what I come
  │ ◄────────────────────── Welcome│      who you are talking to, where it is in the tree, which streams there are
  │ Subscribe ───────────────────► │      a leg: a stream, what I want of it, and after which message
  │ ◄───────────────────────── Held│      it holds, and where it begins
  │ Fetch ───────────────────────► │      a portion of what I have missed
  │ ◄───────────── blocks of the leg
  │ ◄────────────────────── Fetched│      so far it goes; from there on it is live, or fetch again
  │ ◄──────────── live blocks, the infostream among them
  │ Unsubscribe, RenewToken ─────► │
  │ Stored ──────────────────────► │      of a standby: it has everything up to there
  │ blocks ──────────────────────► │      of a publisher (and between peers): its messages
  │ ◄──────────────────── Published│      they are kept, up to this number
  │ ◄────────────────────── Refused│      instead of an answer; number 0: the link ends with it

These are the control frames of a link; its other frames are blocks of packets. Everything else that a parent has to say
it says on the infostream (infostream.py).
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

from penstock.net.core.control import U32, U64, ControlProtocol, Interest, Name, Number, Text, Token, Version
from penstock.net.core.control import Refused as AnyRefused

TOPICS_MAX = 4_096
"""Topics of one want."""

WANTS_MAX = 4_096
"""Wants of one leg."""

WANTS_SIZE_MAX = 1024 * 1024
"""Bytes of topics and conditions of one leg, also when they are narrowed to what is granted."""

WHERE_SIZE_MAX = 4_096
STREAMS_MAX = 65_536
TERMS_MAX = 16
"""Terms of a stream whose beginnings are known: positions of older ones cannot be judged."""

PATH_MAX = 32
"""Agents from the root to a leaf, both counted."""

MESSAGE_SIZE_MAX = 4 * 1024 * 1024

Role: TypeAlias = Literal["agent", "standby", "peer", "subscriber", "publisher", "operator"]
"""As what a party comes to an agent. An operator gives orders, gets nothing else, and is no part of the tree."""

Action: TypeAlias = Literal["move", "return", "promote", "revoke", "restore"]

AGENT_ROLES: frozenset[Role] = frozenset({"agent", "standby", "peer"})
"""Those that are agents themselves, and may speak on the infostream."""

Class: TypeAlias = Literal["lossless", "conflating", "disconnect"]
Begin: TypeAlias = Literal["live", "oldest", "sequence", "time"]

BEARERS_MAX = 1_024
"""Publisher ids in one message."""

Topics = Annotated[tuple[Interest, ...], msgspec.Meta(min_length=1, max_length=TOPICS_MAX)]
Where = Annotated[str, msgspec.Meta(max_length=WHERE_SIZE_MAX)]
PlaceText = Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[^\s,]*$")]
"""host:port."""


class Want(msgspec.Struct, frozen=True, array_like=True):
    """Messages on any of these topics that meet the condition; none is met by all."""

    topics: Topics
    where: Where = ""


def size_of(want: Want) -> int:
    return len(want.where.encode()) + sum(len(topic.encode()) for topic in want.topics)


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where a leg begins: with the next message, with the oldest that is kept, after the message of a sequence, or with
    the first message of a time or later."""

    begin: Begin = "live"
    at: U64 = 0
    """The sequence, or the time in nanoseconds since 1970."""

    term: U32 = 0
    """Of a sequence: the term of the message that had it; 0 if there was none."""


LIVE = Position()
OLDEST = Position("oldest")


class StreamInfo(msgspec.Struct, frozen=True):
    number: U32
    name: Name
    topics: Annotated[tuple[Interest, ...], msgspec.Meta(max_length=TOPICS_MAX)]
    begins: Annotated[tuple[tuple[U32, U64], ...], msgspec.Meta(max_length=TERMS_MAX)] = ()
    """(term, after): messages after this sequence are of the term, until the next one begins; the newest is last."""


# What a child says


class Login(msgspec.Struct, tag="login", frozen=True):
    """The first message. The handshake of the connection has shown that the name is the party's own."""

    name: Name
    role: Role = "subscriber"
    tree: Name = "tree"
    token: Token = ""
    """A stream token of the administration server, where the agent asks for one."""

    place: PlaceText = ""
    """Of an agent: where its children connect."""

    home: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """The name of the agent that sent it here for the time being."""

    publisher_id: U64 = 0
    """Of a publisher: in whose numbering its messages are."""

    cls: Class = "lossless"
    """What becomes of it when it does not keep up."""

    term: U32 = 0
    """The highest that it has heard of."""


class Subscribe(msgspec.Struct, tag="subscribe", frozen=True):
    """A leg. Answered with Held or Refused. Nothing comes before it is fetched, unless it begins live."""

    number: Number
    """The child's own, from 1: it names the leg from then on, and is used once on a link."""

    stream: Name
    wants: Annotated[tuple[Want, ...], msgspec.Meta(min_length=1, max_length=WANTS_MAX)]
    after: Position = LIVE


class Fetch(msgspec.Struct, tag="fetch", frozen=True):
    """The next portion of a leg that is not live. Answered with blocks of the leg, then Fetched. One at a time."""

    number: Number
    bytes_max: U32


class Unsubscribe(msgspec.Struct, tag="unsubscribe", frozen=True):
    """What is on its way still comes. Not answered."""

    number: Number


class Stored(msgspec.Struct, tag="stored", frozen=True):
    """A standby has on its disk what there is of the stream up to this sequence."""

    stream: U32
    through: U64


class RenewToken(msgspec.Struct, tag="renew", frozen=True):
    token: Token


class Order(msgspec.Struct, tag="order", frozen=True):
    """Of an operator. Answered with Ordered or Refused."""

    number: Number
    action: Action
    party: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """The child that is meant."""

    place: PlaceText = ""
    """Where a child is to move; empty: the agent chooses."""

    topics: Annotated[tuple[Interest, ...], msgspec.Meta(max_length=TOPICS_MAX)] = ()
    """What is revoked; none named: everything."""

    reason: Text = ""


# What the parent says


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    agent: Name
    tree: Name
    term: U32
    path: Annotated[tuple[Name, ...], msgspec.Meta(max_length=PATH_MAX)]
    """From the root to this agent, as far as it knows."""

    is_rooted: bool
    """Whether that holds now."""

    streams: Annotated[tuple[StreamInfo, ...], msgspec.Meta(max_length=STREAMS_MAX)] = ()
    published_through: U64 = 0
    """For a publisher: the last number of its messages that is kept."""


class Held(msgspec.Struct, tag="held", frozen=True):
    number: Number
    stream: U32
    after: U64
    """Messages after this sequence are the leg's."""

    term: U32
    """Of the first of these."""

    is_live: bool
    """Otherwise they are to be fetched."""

    wants: Annotated[tuple[Want, ...], msgspec.Meta(max_length=WANTS_MAX)] = ()
    """What of it is granted, if that is not all."""


class Fetched(msgspec.Struct, tag="fetched", frozen=True):
    """A portion is over: the child has everything of the leg through this sequence. If it is live, what comes after
    that follows in live blocks."""

    number: Number
    through: U64
    is_live: bool


class Published(msgspec.Struct, tag="published", frozen=True):
    """The publisher's messages are kept, up to this number of its own."""

    through: U64
    is_degraded: bool = False
    """True if some newly acknowledged messages have no copy at a standby, although replication is synchronous."""


class Bearers(msgspec.Struct, tag="bearers", frozen=True):
    """To a standby: publisher ids, and the clients that they belong to, also after a takeover."""

    bearers: Annotated[tuple[tuple[U64, Text], ...], msgspec.Meta(max_length=BEARERS_MAX)]


class Ordered(msgspec.Struct, tag="ordered", frozen=True):
    """It is done, or under way."""

    number: Number


class Refused(AnyRefused, tag="refused", frozen=True):
    """The number is that of the leg or the order; 0: the party is refused, and the link ends."""

    place: PlaceText = ""
    """Where to go instead, if the agent knows."""


ChildMessage: TypeAlias = Login | Subscribe | Fetch | Unsubscribe | Stored | RenewToken | Order
ParentMessage: TypeAlias = Welcome | Held | Fetched | Published | Bearers | Ordered | Refused
Message: TypeAlias = ChildMessage | ParentMessage

TREE: ControlProtocol[Message] = ControlProtocol("tree", Version(1, 0), Message)
