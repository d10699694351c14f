"""The events and instructions of the filter module's core.

A **consumer** is a receiver with its own copy of every packet: an application, or in the shared modes a multicast
address with several applications of one host. Applications and consumers have numbers; an application's number is its
address for direct messages, a consumer's number is small and reused.

        Attach, Want, Detach              an application registers, changes its interests, leaves
        LearnModel, ForgetModels          models that conditions refer to
        ChangeMap                         the groups of topics
    DatagramReceived, DatagramsReceived, Tick
              ->  Opened, Shut, Attached    addresses of consumers; the answer to Attach
                      Join, Leave               multicast groups
                      Tell                      messages for an application's control connection
            Send                      packets for consumers
            Unicast, Multicast        datagrams from the module's own socket
                      Collision                 two publishers use the same id

Attach, Want, LearnModel and ChangeMap may be refused with an error (LimitError, TopicError, FilterExpressionError,
ModelError, LocalProtocolError); then nothing has changed. They take effect when their instructions have been carried
out.
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
    """An application without interests. An earlier application with the same number must be detached first.

    `address` receives its datagrams: all packets, or only repairs with another delivery. Repair requests are
    accepted only from this address.
    """

    application: int
    address: Address
    delivery: Wish = "unicast"
    host: str = ""
    """Applications of the same host can share a copy."""

    entitlement: str = ""
    """Only applications with equal texts share a copy, because it represents their rights."""

    name: str = ""
    """The name in accounts."""


class Interests(msgspec.Struct, frozen=True):
    """Interests under one condition; negative ones are subtracted from the others under the same condition."""

    topics: Sequence[str]
    where: str = ""
    """A SQL condition on fields of the message, or empty."""

    content: bytes = b""
    """Bytes that must occur in the message's payload, or empty. Not together with `where`."""

    groups: Sequence[int] = ()
    """The groups of these topics; empty: those of the map or, without a map, the module's default groups."""


class Want(msgspec.Struct, frozen=True):
    """A change of an application's interests, applied completely or, with an error, not at all. An interest that is
    added again moves to its new groups; groups of removed interests are ignored. An interest in both lists stays."""

    application: int
    add: Sequence[Interests] = ()
    remove: Sequence[Interests] = ()


class Detach(msgspec.Struct, frozen=True):
    """An application has left. No effect for an unknown application."""

    application: int


class LearnModel(msgspec.Struct, frozen=True):
    """A message model that conditions may refer to, or a newer version of one."""

    model: MessageModel


class ForgetModels(msgspec.Struct, frozen=True):
    """No application uses these models any more. A model that a condition still refers to is kept until that
    condition is removed; models of the configuration are always kept."""

    model_ids: tuple[int, ...]


class ChangeMap(msgspec.Struct, frozen=True):
    """Topics have the groups of this map from now on; old groups stay joined for the configured time."""

    groups: GroupMap


FilterEvent: TypeAlias = (
    Attach | Want | Detach | LearnModel | ForgetModels | ChangeMap | DatagramReceived | DatagramsReceived | Tick
)


# Instructions


class Opened(msgspec.Struct, frozen=True):
    """Send packets for this consumer to `address`, a multicast address for shared delivery; with the delivery
    "ring", write them to a ring."""

    consumer: int
    delivery: Delivery
    address: Address
    key: AuthenticationKey | None = None
    """Key of the trailers of its datagrams; None: no trailers. Packets in a ring have no trailers."""


class Shut(msgspec.Struct, frozen=True):
    """Send nothing more to this consumer; its number may be reused by another Opened."""

    consumer: int


class Attached(msgspec.Struct, frozen=True):
    """The application is registered, and gets the packets of `consumer`; in a mask its number is `bit`."""

    application: int
    consumer: int
    delivery: Delivery
    address: Address
    bit: int = 0
    key: AuthenticationKey | None = None
    """Key of this application's requests and repairs, and of its packets unless they are shared; None: datagrams
    between the module and its applications have no trailers."""

    group_key: AuthenticationKey | None = None
    """Key of shared packets, which all their applications have."""


class Join(msgspec.Struct, frozen=True):
    group: int


class Leave(msgspec.Struct, frozen=True):
    group: int


class StreamPosition(msgspec.Struct, frozen=True):
    """The application gets packets of this stream from `next_sequence` on; gaps account for removed packets.
    `source` is the publisher's address."""

    stream: StreamKey
    epoch: int
    next_sequence: int
    source: Address
    is_replay: bool = False


class StreamOver(msgspec.Struct, frozen=True):
    """The module expects no further packets of this stream; the last one was before `next_sequence`."""

    stream: StreamKey
    epoch: int
    next_sequence: int
    cause: Cause


class Tell(msgspec.Struct, frozen=True):
    """Send a message to an application before all later packets."""

    application: int
    what: StreamPosition | StreamOver | Collision


class Send(msgspec.Struct, frozen=True):
    """Send the outbox's packets to their consumers, in order. The outbox is reused at the next event."""

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
