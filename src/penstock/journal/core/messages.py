"""What a follower and a journal's server say to each other, in control messages (docs/reference/protocol/journal.md).

follower                       server
  │ Login ───────────────────────► │      first, if the server asks for tokens
  │ ◄────────────────────── Refused│      instead of an answer: the token is missing or not good enough
  │                                │
  │ Follow ──────────────────────► │      from a sequence number, a time, or the oldest record
  │ ◄────────────────────── Records│      again and again, each time those that follow
  │ ◄───────────────────── CaughtUp│      once there is nothing more, and then whenever that comes true again
  │ ◄────────── Gone or Unavailable│      instead, when it cannot go on
  │                                │
  │ Measure ─────────────────────► │      or, instead of following: how far does it go?
  │ ◄────────────────────── Extent │      and again for every Measure
"""

from typing import Annotated, TypeAlias

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.errors import RemoteProtocolError
from penstock.base.limits import JOURNAL_PAYLOAD_SIZE_MAX
from penstock.journal.core._log import RECORD_DTYPE
from penstock.journal.core.format import SEQUENCE_MAX
from penstock.journal.core.records import RecordBatch
from penstock.net.config import ControlConfig
from penstock.net.core.control import ControlProtocol, Text, Token, Version

BATCH_BYTES = 256 * 1024
"""Bytes of records in one message; one record that is longer goes alone."""

BATCH_ROWS = 8_192

Sequence = Annotated[int, msgspec.Meta(ge=1, le=SEQUENCE_MAX)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Login(msgspec.Struct, tag="login", frozen=True):
    """Shows a token of the administration server. It is the first message, if there is one."""

    token: Token


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """The token does not allow reading this journal. The server ends the connection."""

    code: Text
    what: Text
    hint: Text = ""


class Follow(msgspec.Struct, tag="follow", frozen=True):
    """At most one of the places is given; neither means the oldest record."""

    from_sequence: Sequence | None = None
    from_time_ns: Nanoseconds | None = None


class Measure(msgspec.Struct, tag="measure", frozen=True):
    """Asks which records there are."""

    from_time_ns: Nanoseconds | None = None
    """Besides, which is the first that is not older."""


class Extent(msgspec.Struct, tag="extent", frozen=True):
    """Which records there are: from the first of the first segment to before `next_sequence`."""

    next_sequence: Sequence
    firsts: list[Sequence]
    """The first record of every segment."""
    sizes: list[Annotated[int, msgspec.Meta(ge=0)]]
    """Bytes of each."""
    found_sequence: Sequence | None = None
    """The first record that is not older than what was asked for; next_sequence when there is none."""

    @property
    def first_sequence(self) -> int:
        return self.firsts[0] if self.firsts else self.next_sequence


class Records(msgspec.Struct, tag="records", frozen=True):
    """Records that follow each other."""

    first_sequence: Sequence
    sizes: bytes
    """u32 of each."""
    timestamps: bytes
    """i64 of each, nanoseconds."""
    data: bytes
    """All payloads, one after the other."""


class CaughtUp(msgspec.Struct, tag="caught-up", frozen=True):
    """There is nothing more for now."""


class Gone(msgspec.Struct, tag="gone", frozen=True):
    """The record asked for is no longer kept."""

    first_sequence: Sequence
    what: Text


class Unavailable(msgspec.Struct, tag="unavailable", frozen=True):
    """The server cannot read its journal."""

    code: Text
    what: Text


FollowerMessage: TypeAlias = Login | Follow | Measure
ServerMessage: TypeAlias = Records | CaughtUp | Gone | Unavailable | Extent | Refused
JournalMessage: TypeAlias = FollowerMessage | ServerMessage

PROTOCOL: ControlProtocol[JournalMessage] = ControlProtocol("journal", Version(1, 2), JournalMessage)

CONNECTION = ControlConfig(message_size_max=JOURNAL_PAYLOAD_SIZE_MAX + 65_536, inbox_messages_max=8)


def encode_records(batch: RecordBatch, start: int, end: int) -> Records:
    """The rows from `start` up to `end`."""
    rows = batch.rows[start:end]
    offsets, sizes = rows["offset"].tolist(), rows["size"].tolist()
    data = b"".join(batch.data[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True))
    return Records(
        int(rows[0]["sequence"]),
        rows["size"].astype("<u4").tobytes(),
        rows["timestamp_ns"].astype("<i8").tobytes(),
        data,
    )


def cut_batch(batch: RecordBatch) -> list[int]:
    """Where to cut a batch into messages: the first row of each, and the end."""
    cuts, size = [0], 0
    for row, each in enumerate(batch.rows["size"].tolist()):
        if row > cuts[-1] and (size + each > BATCH_BYTES or row - cuts[-1] >= BATCH_ROWS):
            cuts.append(row)
            size = 0
        size += each
    return [*cuts, len(batch)]


def decode_records(message: Records) -> RecordBatch:
    """Check what a server sent, and lay rows over it."""
    count, rest = divmod(len(message.sizes), 4)
    if rest or not count or len(message.timestamps) != 8 * count:
        raise RemoteProtocolError("the sizes and times of records do not match")
    sizes: NDArray[numpy.uint64] = numpy.frombuffer(message.sizes, "<u4").astype(numpy.uint64)
    ends = numpy.cumsum(sizes)
    if int(ends[-1]) != len(message.data) or message.first_sequence + count > SEQUENCE_MAX:
        raise RemoteProtocolError("the sizes of records and their data do not match")
    rows = numpy.zeros(count, RECORD_DTYPE)
    rows["sequence"] = numpy.arange(message.first_sequence, message.first_sequence + count, dtype=numpy.uint64)
    rows["timestamp_ns"] = numpy.frombuffer(message.timestamps, "<i8")
    rows["offset"] = ends - sizes
    rows["size"] = sizes
    return RecordBatch(message.data, rows)
