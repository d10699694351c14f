"""What the core of a client of message routers (session.py) is told and answers.

Begin, Connected, ConnectFailed, LinkClosed, Received, DataReceived, OpenPart, ClosePart, End, Ask, BeginTransaction,
EndTransaction, Flush, Renew, Tick
    -> Connect, Say, SendData, Close, Answered, Opened, PartFailed, Changed, Over

Those that say what becomes of a link are every client's (net/core/client_session.py).
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
    """Whole data frames came on a link, each with its length."""

    link: int
    data: bytes


class OpenPart(msgspec.Struct, frozen=True):
    """A publisher or flow that is to be open on whichever link there is."""

    part: "PublisherPart | FlowPart"


class ClosePart(msgspec.Struct, frozen=True):
    part: "PublisherPart | FlowPart"
    is_unread: bool = False
    """Of a flow: what is not settled is as though nobody had read it."""


class End(msgspec.Struct, frozen=True):
    """Nobody wants anything more; flows say what was read of what came."""


class Ask(msgspec.Struct, frozen=True):
    """A request; its number is put in here. Asked again on another link, it is answered there."""

    token: int
    """The asker's own."""

    request: Request


class BeginTransaction(msgspec.Struct, frozen=True):
    """Of a publisher that is open; what it publishes from then on with that number is the transaction's."""

    part: "PublisherPart"


class EndTransaction(msgspec.Struct, frozen=True):
    """Answered when it is known what became of it, which may be on another link."""

    token: int
    part: "PublisherPart"
    is_commit: bool


class Flush(msgspec.Struct, frozen=True):
    """Something was published or settled."""


class Renew(msgspec.Struct, frozen=True):
    """A newer token."""

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
    """To an Ask."""

    token: int
    answer: Answer


class Opened(msgspec.Struct, frozen=True):
    part: "PublisherPart | FlowPart"


class PartFailed(msgspec.Struct, frozen=True):
    """The router refuses it, or has ended it; it is not opened again."""

    part: "PublisherPart | FlowPart"
    error: PenstockError


Refusal: TypeAlias = tuple["PublisherPart", int, int, int]
"""Messages that were refused: whose, the first and the last number, and the outcome."""


class Changed(msgspec.Struct, frozen=True):
    """Messages were acknowledged, or came: whoever waits for that looks again."""

    refused: tuple[Refusal, ...] = ()


Instruction: TypeAlias = Connect | Say | SendData | Close | Answered | Opened | PartFailed | Changed | Over
