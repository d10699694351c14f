"""The grammar of the filter module: what its core is told (events) and what it answers (instructions).

A **consumer** is whoever gets a copy of its own of every packet: an application, or in the shared modes a multicast
address with several applications of one host. Applications and consumers are numbers; an application's is its address
for messages to it alone, a consumer's is small and used again.

    Attach, Want, Detach              an application comes, changes its interests, goes
    LearnModel, ForgetModels          what conditions speak of
    ChangeMap                         where topics flow
    DatagramReceived, DatagramsReceived, Tick
        ->  Opened, Shut, Attached    where a consumer's packets are to be sent; the answer to Attach
            Join, Leave               multicast groups to listen to
            Tell                      something for an application's control connection
            Send                      packets for consumers
            Unicast, Multicast        datagrams from the module's own socket
            Collision                 two publishers use one id

Attach, Want, LearnModel and ChangeMap are refused with an error (LimitError, TopicError, FilterExpressionError,
ModelError, LocalProtocolError); then nothing has changed. What they ask for holds when their instructions have been
carried out.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from penstock.base.core import Tick
from penstock.base.counters import Cause
from penstock.middleware import (
    Address,
    Collision,
    DatagramReceived,
    DatagramsReceived,
    Multicast,
    StreamKey,
    Unicast,
)
from penstock.model import MessageModel
from penstock.topics import GroupMap
from penstock.wire import AuthenticationKey, Outbox

Wish: TypeAlias = Literal["unicast", "ring", "shared"]
Delivery: TypeAlias = Literal["unicast", "ring", "mask", "residual"]


# Events


class Attach(msgspec.Struct, frozen=True):
    """An application comes. It wants nothing yet; one that was there before under this number is to be detached first.

    `address` is where it gets datagrams: its packets, or with another delivery only its repairs. Requests for repair
    are taken from there alone.
    """

    application: int
    address: Address
    delivery: Wish = "unicast"
    host: str = ""
    """Applications of one host can share a copy."""

    entitlement: str = ""
    """Only applications with the same text share a copy: it stands for what they may see."""

    name: str = ""
    """For accounts."""


class Interests(msgspec.Struct, frozen=True):
    """Interests under one condition; negative ones take away from the others under the same condition."""

    topics: Sequence[str]
    where: str = ""
    """A SQL condition on fields of the message, or none."""

    content: bytes = b""
    """Bytes that must occur in the message's content, or none. Not together with `where`."""

    groups: Sequence[int] = ()
    """Where these topics flow; none: where the map says or, without a map, on the groups the module was made with."""


class Want(msgspec.Struct, frozen=True):
    """An application changes its interests, all of it or, with an error, nothing. What is added again with other groups
    flows there from now on; of what is removed, the groups do not count. What is both added and removed stays."""

    application: int
    add: Sequence[Interests] = ()
    remove: Sequence[Interests] = ()


class Detach(msgspec.Struct, frozen=True):
    """An application is gone; for one that is not known this does nothing."""

    application: int


class LearnModel(msgspec.Struct, frozen=True):
    """A message model that conditions may speak of, or a newer version of one."""

    model: MessageModel


class ForgetModels(msgspec.Struct, frozen=True):
    """No application uses these models any more. A model that a condition still refers to is kept until that condition
    is removed; models of the configuration are always kept."""

    model_ids: tuple[int, ...]


class ChangeMap(msgspec.Struct, frozen=True):
    """Topics flow by this map from now on; the old groups are listened to for the configured time."""

    groups: GroupMap


FilterEvent: TypeAlias = (
    Attach | Want | Detach | LearnModel | ForgetModels | ChangeMap | DatagramReceived | DatagramsReceived | Tick
)


# Instructions


class Opened(msgspec.Struct, frozen=True):
    """Packets for this consumer are to be sent to `address`, a multicast one for shared delivery; with the delivery
    "ring" into a ring of its own."""

    consumer: int
    delivery: Delivery
    address: Address
    key: AuthenticationKey | None = None
    """Of the trailers of its datagrams; None: they have none. What goes into a ring needs none."""


class Shut(msgspec.Struct, frozen=True):
    """Nothing more is sent to this consumer; its number may come again with Opened."""

    consumer: int


class Attached(msgspec.Struct, frozen=True):
    """The application is known, and gets what is sent to `consumer`; in a mask it is number `bit`."""

    application: int
    consumer: int
    delivery: Delivery
    address: Address
    bit: int = 0
    key: AuthenticationKey | None = None
    """Of requests and repairs of this application, and of its packets unless they come to several applications; None:
    datagrams between the module and its applications have no trailers."""

    group_key: AuthenticationKey | None = None
    """Of packets that come to several applications, which all have it."""


class Join(msgspec.Struct, frozen=True):
    group: int


class Leave(msgspec.Struct, frozen=True):
    group: int


class StreamPosition(msgspec.Struct, frozen=True):
    """Packets of this stream from `next_sequence` on are sent to the application, or accounted for by gaps. `source`
    is the publisher's address."""

    stream: StreamKey
    epoch: int
    next_sequence: int
    source: Address
    is_replay: bool = False


class StreamOver(msgspec.Struct, frozen=True):
    """The module expects nothing more of this stream; its last packet was the one before `next_sequence`."""

    stream: StreamKey
    epoch: int
    next_sequence: int
    cause: Cause


class Tell(msgspec.Struct, frozen=True):
    """Tell an application, before anything that comes after this is sent."""

    application: int
    what: StreamPosition | StreamOver | Collision


class Send(msgspec.Struct, frozen=True):
    """Send the outbox's packets, each to its consumer, in their order. It is used again at the next event."""

    outbox: Outbox


FilterInstruction: TypeAlias = Opened | Shut | Attached | Join | Leave | Tell | Send | Unicast | Multicast | Collision

__all__ = [
    "Address",
    "Attach",
    "Attached",
    "ChangeMap",
    "Collision",
    "DatagramReceived",
    "DatagramsReceived",
    "Delivery",
    "Detach",
    "FilterEvent",
    "FilterInstruction",
    "ForgetModels",
    "Interests",
    "Join",
    "LearnModel",
    "Leave",
    "Multicast",
    "Opened",
    "Send",
    "Shut",
    "StreamOver",
    "StreamPosition",
    "Tell",
    "Tick",
    "Unicast",
    "Want",
    "Wish",
]
