"""Events and instructions of the cores of a subscriber and of a publisher; tree/core/events.py has those of agents.

Subscriber:  Begin, Connected, ConnectFailed, LinkClosed, Received, BlockReceived, Paused, Resumed, Tick
             -> Connect, Say, Close, Deliver, Receipt, InfoHeard, Over
Publisher:   Begin, Connected, ConnectFailed, LinkClosed, Received, BlockReceived, Tick; publish() besides
             -> Connect, Say, SendData, Close, Accepted, InfoHeard, Over

Events and instructions about links are those of every client (net/core/client_session.py).
"""

from typing import TypeAlias

import msgspec

from penstock.base.core import Tick
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
from penstock.tree.core.infostream import Info
from penstock.wire import PacketMessage
from penstock.wire._packet_run import PacketRun

# Events


class BlockReceived(msgspec.Struct, frozen=True):
    """Whole packets came on a link, one after another: live (leg 0), the infostream among them, or of a leg that is
    fetched."""

    link: int
    leg: int
    packets: bytes


class Paused(msgspec.Struct, frozen=True):
    """The application is behind: nothing more is fetched until Resumed."""


class Resumed(msgspec.Struct, frozen=True):
    """The application is ready for more."""


Event: TypeAlias = Begin | Connected | ConnectFailed | LinkClosed | Received | BlockReceived | Paused | Resumed | Tick

# Instructions


class Deliver(msgspec.Struct, frozen=True):
    """Messages for the application, in the order of their stream; none of them was delivered before."""

    stream: str
    messages: PacketRun | list[PacketMessage]


class Receipt(msgspec.Struct, frozen=True):
    """A loss receipt for messages of a stream that the application does not get: from `first` to `last`, or `count` of
    them."""

    stream: str
    cause: str
    """"gone": kept nowhere any more; "conflated": newer ones took their place; "diverged": only a lost root had
    them."""

    first: int
    last: int
    count: int = 0


class InfoHeard(msgspec.Struct, frozen=True):
    """The agent sent a message on its infostream."""

    agent: str
    info: Info


class Accepted(msgspec.Struct, frozen=True):
    """The root stores the publisher's messages up to this number."""

    through: int


Instruction: TypeAlias = Connect | Say | SendData | Close | Deliver | Receipt | InfoHeard | Accepted | Over

SharedEvent: TypeAlias = Begin | Connected | ConnectFailed | LinkClosed | Received | BlockReceived | Tick
"""Events of both cores."""
