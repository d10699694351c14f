"""The events and instructions of a LineArbiter."""

from typing import TypeAlias

import msgspec

from penstock.base.core import Tick
from penstock.base.counters import Cause
from penstock.convert import SourceBatch
from penstock.wire import DatagramBatch


class LineDatagram(msgspec.Struct, frozen=True):
    """A datagram arrived on a line. The line number after the last one stands for answers to requests."""

    line: int
    data: bytes
    receive_ns: int = 0


class LineDatagrams(msgspec.Struct, frozen=True):
    """Many datagrams arrived; `batch.socket(n)` is the line. Returned instructions are valid until the batch is
    reused."""

    batch: DatagramBatch


LineEvent: TypeAlias = LineDatagram | LineDatagrams | Tick


class SourceReady(msgspec.Struct, frozen=True):
    """The next messages of the source stream, without a gap."""

    batch: SourceBatch


class RequestRetransmission(msgspec.Struct, frozen=True):
    """Request messages again."""

    session: str
    first: int
    count: int


class SourceLost(msgspec.Struct, frozen=True):
    """These messages will not arrive; the stream continues after them."""

    first: int
    last: int
    cause: Cause


class SessionStarted(msgspec.Struct, frozen=True):
    """Messages are numbered anew from here on; `first` is the number of the next one."""

    name: str
    first: int
    is_reset: bool = False
    """The source restarted its numbers under the same name; `name` has the count, as in `day#2`."""

    receive_ns: int = 0
    """Receive time of its first datagram, in nanoseconds since 1970; 0: unknown."""


class SessionEnded(msgspec.Struct, frozen=True):
    """No more messages follow in this session; `next_sequence` would have been next."""

    name: str
    next_sequence: int


class LineSilent(msgspec.Struct, frozen=True):
    """A line is silent, without heartbeats."""

    line: int


class LineHeard(msgspec.Struct, frozen=True):
    """A silent line is back."""

    line: int


LineInstruction: TypeAlias = (
    SourceReady | RequestRetransmission | SourceLost | SessionStarted | SessionEnded | LineSilent | LineHeard
)


class LineHealth(msgspec.Struct, frozen=True):
    """The health of one line."""

    line: int
    is_silent: bool
    datagrams: int
    first_copies: int
    duplicates: int
    latest_sequence: int
