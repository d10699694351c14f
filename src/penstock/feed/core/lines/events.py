"""What a LineArbiter is told and answers."""

from typing import TypeAlias

import msgspec

from penstock.base.core import Tick
from penstock.base.counters import Cause
from penstock.convert import SourceBatch
from penstock.wire import DatagramBatch


class LineDatagram(msgspec.Struct, frozen=True):
    """A datagram has come over a line. The line after the last one is where answers to requests come in."""

    line: int
    data: bytes
    receive_ns: int = 0


class LineDatagrams(msgspec.Struct, frozen=True):
    """Many have come; `batch.socket(n)` is the line. What is answered is good until the batch is used again."""

    batch: DatagramBatch


LineEvent: TypeAlias = LineDatagram | LineDatagrams | Tick


class SourceReady(msgspec.Struct, frozen=True):
    """The next messages of the source stream, without a gap."""

    batch: SourceBatch


class RequestRetransmission(msgspec.Struct, frozen=True):
    """Ask for messages to be sent again."""

    session: str
    first: int
    count: int


class SourceLost(msgspec.Struct, frozen=True):
    """These messages will not come; what follows goes on after them."""

    first: int
    last: int
    cause: Cause


class SessionStarted(msgspec.Struct, frozen=True):
    """From here on messages are numbered anew; `first` is the number of the next one."""

    name: str
    first: int
    is_reset: bool = False
    """The source counts anew under the name it had; `name` says the how manieth time, as in `day#2`."""

    receive_ns: int = 0
    """When its first datagram was received, in nanoseconds since 1970; 0 where that is not known."""


class SessionEnded(msgspec.Struct, frozen=True):
    """Nothing more comes of this session; `next_sequence` would have been next."""

    name: str
    next_sequence: int


class LineSilent(msgspec.Struct, frozen=True):
    """A line brings nothing any more, not even heartbeats."""

    line: int


class LineHeard(msgspec.Struct, frozen=True):
    """A line that was silent is back."""

    line: int


LineInstruction: TypeAlias = (
    SourceReady | RequestRetransmission | SourceLost | SessionStarted | SessionEnded | LineSilent | LineHeard
)


class LineHealth(msgspec.Struct, frozen=True):
    """How one line does."""

    line: int
    is_silent: bool
    datagrams: int
    first_copies: int
    duplicates: int
    latest_sequence: int
