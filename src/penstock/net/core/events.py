"""The grammar of connections: what the cores on a byte stream are told (events) and what they answer (instructions).

    ControlSession, WebSocketSession:   Connected, BytesReceived, EndOfStream, ReadingPaused, ReadingResumed, Send,
                                        Close, Tick
                                        -> SendBytes, Opened, Received, ClockSampled, Disconnect

A session answers with Opened at most once, with Received only after it, and with Disconnect exactly once and last.
"""

from typing import Any, TypeAlias

import msgspec

from penstock.base.core import Tick
from penstock.base.counters import Cause
from penstock.base.errors import PenstockError

# Events


class Connected(msgspec.Struct, frozen=True):
    """The byte stream is there."""


class BytesReceived(msgspec.Struct, frozen=True):
    """The peer sent bytes; nothing is known about them yet. They may hold secrets, and are not shown in logs."""

    data: bytes

    def __repr__(self) -> str:
        return f"BytesReceived({len(self.data)} bytes)"


class EndOfStream(msgspec.Struct, frozen=True):
    """The peer, or the network, ended the byte stream."""


class ReadingPaused(msgspec.Struct, frozen=True):
    """The application is behind, so no bytes are taken until ReadingResumed: silence is not the peer's fault."""


class ReadingResumed(msgspec.Struct, frozen=True):
    """Bytes are taken again: from now on the peer must be heard of."""


class Send(msgspec.Struct, frozen=True):
    """The application sends a message. It may hold secrets, and is not shown in logs."""

    message: Any

    def __repr__(self) -> str:
        return f"Send({type(self.message).__name__})"


class Close(msgspec.Struct, frozen=True):
    """The application is done."""

    reason: str = ""


SessionEvent: TypeAlias = Connected | BytesReceived | EndOfStream | ReadingPaused | ReadingResumed | Send | Close | Tick


# Instructions


class SendBytes(msgspec.Struct, frozen=True):
    """Send these bytes to the peer."""

    data: bytes


class Opened(msgspec.Struct, frozen=True):
    """The handshake is done; `peer` says with whom."""

    peer: Any


class Received(msgspec.Struct, frozen=True):
    """Hand a message to the application."""

    message: Any


class ClockSample(msgspec.Struct, frozen=True):
    """One exchange: the request left at `t1` and came at `t2`, the answer left at `t3` and came at `t4`.

    t1 and t4 are of this side's wall clock, t2 and t3 of the peer's; nanoseconds.
    """

    t1: int
    t2: int
    t3: int
    t4: int


class ClockSampled(msgspec.Struct, frozen=True):
    """A heartbeat was answered and says something about the peer's clock."""

    sample: ClockSample


class Disconnect(msgspec.Struct, frozen=True):
    """Send what was to be sent, then end the byte stream; `error` is None after a goodbye, given or taken."""

    cause: Cause
    error: PenstockError | None


SessionInstruction: TypeAlias = SendBytes | Opened | Received | ClockSampled | Disconnect
