"""What the core of a client of message routers (session.py) is told and answers.

Begin, Connected, ConnectFailed, LinkClosed, Received, DataReceived, OpenPart, ClosePart, End, Ask, BeginTransaction,
EndTransaction, Flush, Renew, Tick
    -> Connect, Say, SendData, Close, Answered, Opened, PartFailed, Changed, Over
"""

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from penstock.assured.wire.control import Answer, Message, Request
from penstock.base.core import Tick
from penstock.base.errors import PenstockError
from penstock.net.core.control import Ping, Pong

if TYPE_CHECKING:
    from penstock.assured.core.session.parts import FlowPart, PublisherPart

# Events


class Begin(msgspec.Struct, frozen=True):
    """Look for the active router."""


class Connected(msgspec.Struct, frozen=True):
    """Of a Connect; the handshake is done."""

    attempt: int
    link: int


class ConnectFailed(msgspec.Struct, frozen=True):
    attempt: int
    why: str = ""
    is_stranger: bool = False
    """The two sides do not have the same secret."""

    is_hopeless: bool = False
    """There is no host of this name, or it may not be asked as this client is configured."""


class LinkClosed(msgspec.Struct, frozen=True):
    link: int
    why: str = ""


class Received(msgspec.Struct, frozen=True):
    """A control message came on a link."""

    link: int
    message: Message | Ping | Pong


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


class Connect(msgspec.Struct, frozen=True):
    attempt: int
    place: str


class Say(msgspec.Struct, frozen=True):
    link: int
    message: Message | Ping | Pong


class SendData(msgspec.Struct, frozen=True):
    link: int
    data: bytes


class Close(msgspec.Struct, frozen=True):
    link: int


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


class Over(msgspec.Struct, frozen=True):
    """No router will take this client."""

    error: PenstockError


Instruction: TypeAlias = Connect | Say | SendData | Close | Answered | Opened | PartFailed | Changed | Over
