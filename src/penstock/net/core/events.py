"""The events and instructions of the cores on a byte stream.

    ControlSession, WebSocketSession:   Connected, BytesReceived, EndOfStream, ReadingPaused, ReadingResumed, Send,
                                        Close, Tick
                                        -> SendBytes, Opened, Received, ClockSampled, Disconnect

A session returns Opened at most once, Received only after it, and Disconnect exactly once, as the last instruction.
"""

from typing import Any, TypeAlias

import msgspec

from penstock.base.core import Tick
from penstock.base.counters import Cause
from penstock.base.errors import PenstockError

# Events


class Connected(msgspec.Struct, frozen=True):
    """The byte stream is connected."""


class BytesReceived(msgspec.Struct, frozen=True):
    """The peer sent bytes, which are not parsed yet. They may contain secrets, and are not shown in logs."""

    data: bytes

    def __repr__(self) -> str:
        return f"BytesReceived({len(self.data)} bytes)"


class EndOfStream(msgspec.Struct, frozen=True):
    """The peer, or the network, ended the byte stream."""


class ReadingPaused(msgspec.Struct, frozen=True):
    """The application is slow, so no bytes are read until ReadingResumed: silence is not the peer's fault."""


class ReadingResumed(msgspec.Struct, frozen=True):
    """Bytes are read again: from now on the peer's silence counts."""


class Send(msgspec.Struct, frozen=True):
    """Send a message of the application. It may contain secrets, and is not shown in logs."""

    message: Any

    def __repr__(self) -> str:
        return f"Send({type(self.message).__name__})"


class Close(msgspec.Struct, frozen=True):
    """The application closes the connection."""

    reason: str = ""


SessionEvent: TypeAlias = Connected | BytesReceived | EndOfStream | ReadingPaused | ReadingResumed | Send | Close | Tick


# Instructions


class SendBytes(msgspec.Struct, frozen=True):
    """Send these bytes to the peer."""

    data: bytes


class Opened(msgspec.Struct, frozen=True):
    """The handshake with `peer` is complete."""

    peer: Any


class Received(msgspec.Struct, frozen=True):
    """Pass a message to the application."""

    message: Any


class ClockSample(msgspec.Struct, frozen=True):
    """One exchange: the request was sent at `t1` and arrived at `t2`, the answer was sent at `t3` and arrived at `t4`.

    t1 and t4 are times of the local wall clock, t2 and t3 of the peer's; nanoseconds.
    """

    t1: int
    t2: int
    t3: int
    t4: int


class ClockSampled(msgspec.Struct, frozen=True):
    """The answer to a heartbeat gave a sample of the peer's clock."""

    sample: ClockSample


class Disconnect(msgspec.Struct, frozen=True):
    """Send what is buffered, then end the byte stream; `error` is None after a goodbye in either direction."""

    cause: Cause
    error: PenstockError | None


SessionInstruction: TypeAlias = SendBytes | Opened | Received | ClockSampled | Disconnect
