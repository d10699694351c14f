"""The events and instructions of the core of a router's client (session.py).

Begin, Connected, ConnectFailed, LinkClosed, Received, DataReceived, OpenPart, ClosePart, End, Ask, BeginTransaction,
EndTransaction, Flush, Renew, Tick
    -> Connect, Say, SendData, Close, Answered, Opened, PartFailed, Changed, Over

Events and instructions about links are those of every client (net/core/client_session.py).
"""

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from penstock.assured.wire.control import Answer, Request
from penstock.base.core import Tick
from penstock.base.errors import PenstockError
from penstock.net.core.client_session import (
    Begin,
    Close,
    Connect,
    Connected,
    ConnectFailed,
    LinkClosed,
    Over,
    Received,
    Say,
    SendData,
)

if TYPE_CHECKING:
    from penstock.assured.core.session.parts import FlowPart, PublisherPart

# Events


class DataReceived(msgspec.Struct, frozen=True):
    """Whole data frames arrived on a link, each with its length."""

    link: int
    data: bytes


class OpenPart(msgspec.Struct, frozen=True):
    """Keep a publisher or flow open on the current link, and on every later one."""

    part: "PublisherPart | FlowPart"


class ClosePart(msgspec.Struct, frozen=True):
    part: "PublisherPart | FlowPart"
    is_unread: bool = False
    """For a flow: treat unsettled messages as unread."""


class End(msgspec.Struct, frozen=True):
    """End the session; flows report how many messages were read."""


class Ask(msgspec.Struct, frozen=True):
    """A request; the core sets its number. It is repeated on another link if necessary."""

    token: int
    """Chosen by the caller."""

    request: Request


class BeginTransaction(msgspec.Struct, frozen=True):
    """Begin a transaction of an open publisher, whose messages with that number belong to it."""

    part: "PublisherPart"


class EndTransaction(msgspec.Struct, frozen=True):
    """End a transaction. Answered when the outcome is known, possibly on another link."""

    token: int
    part: "PublisherPart"
    is_commit: bool


class Flush(msgspec.Struct, frozen=True):
    """Messages were published or settled."""


class Renew(msgspec.Struct, frozen=True):
    """Use a newer token."""

    token: str


Event: TypeAlias = (
    Begin
    | Connected
    | ConnectFailed
    | LinkClosed
    | Received
    | DataReceived
    | OpenPart
    | ClosePart
    | End
    | Ask
    | BeginTransaction
    | EndTransaction
    | Flush
    | Renew
    | Tick
)

# Instructions


class Answered(msgspec.Struct, frozen=True):
    """The answer to an Ask."""

    token: int
    answer: Answer


class Opened(msgspec.Struct, frozen=True):
    part: "PublisherPart | FlowPart"


class PartFailed(msgspec.Struct, frozen=True):
    """The router refuses the part, or has ended it; it is not opened again."""

    part: "PublisherPart | FlowPart"
    error: PenstockError


Refusal: TypeAlias = tuple["PublisherPart", int, int, int]
"""Refused messages: the publisher, the first and last number, and the outcome."""


class Changed(msgspec.Struct, frozen=True):
    """Messages were acknowledged or received: waiting callers check again."""

    refused: tuple[Refusal, ...] = ()


Instruction: TypeAlias = Connect | Say | SendData | Close | Answered | Opened | PartFailed | Changed | Over
