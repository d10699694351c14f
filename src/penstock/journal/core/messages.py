"""Control messages between a follower and a journal's server (docs/reference/protocol/journal.md).

follower server
  │ Login ───────────────────────► │      first, if the server requires tokens
  │ ◄────────────────────── Refused│      the token is missing or insufficient
  │                                │
  │ Follow ──────────────────────► │      from a sequence number, a time, or the oldest record
  │ ◄────────────────────── Records│      repeatedly, the next records
  │ ◄───────────────────── CaughtUp│      whenever all records have been sent
  │ ◄────────── Gone or Unavailable│      the server cannot continue
  │                                │
  │ Measure ─────────────────────► │      instead of Follow: which records exist?
  │ ◄────────────────────── Extent │      once for every Measure
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
"""Maximum size of the records in one message; a larger record is sent alone."""

BATCH_ROWS = 8_192

Sequence = Annotated[int, msgspec.Meta(ge=1, le=SEQUENCE_MAX)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Login(msgspec.Struct, tag="login", frozen=True):
    """Presents a token of the administration server. If sent, it is the first message."""

    token: Token


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """The token does not allow reading this journal. The server closes the connection."""

    code: Text
    what: Text
    hint: Text = ""


class Follow(msgspec.Struct, tag="follow", frozen=True):
    """Start of the records; at most one field is given, neither means the oldest record."""

    from_sequence: Sequence | None = None
    from_time_ns: Nanoseconds | None = None


class Measure(msgspec.Struct, tag="measure", frozen=True):
    """Asks for the range of existing records."""

    from_time_ns: Nanoseconds | None = None
    """Also ask for the first record that is not older than this time."""


class Extent(msgspec.Struct, tag="extent", frozen=True):
    """Range of existing records: from the first of the first segment to before `next_sequence`."""

    next_sequence: Sequence
    firsts: list[Sequence]
    """First record of every segment."""
    sizes: list[Annotated[int, msgspec.Meta(ge=0)]]
    """Size of every segment in bytes."""
    found_sequence: Sequence | None = None
    """First record that is not older than the requested time; next_sequence if there is none."""

    @property
    def first_sequence(self) -> int:
        return self.firsts[0] if self.firsts else self.next_sequence


class Records(msgspec.Struct, tag="records", frozen=True):
    """Consecutive records."""

    first_sequence: Sequence
    sizes: bytes
    """Sizes, one u32 per record."""
    timestamps: bytes
    """Times, one i64 in nanoseconds per record."""
    data: bytes
    """All payloads, concatenated."""


class CaughtUp(msgspec.Struct, tag="caught-up", frozen=True):
    """All records have been sent for now."""


class Gone(msgspec.Struct, tag="gone", frozen=True):
    """The requested record is no longer kept."""

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
    """Encode the rows from `start` up to `end`."""
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
    """Return where to split a batch into messages: the first row of each, and the end."""
    cuts, size = [0], 0
    for row, each in enumerate(batch.rows["size"].tolist()):
        if row > cuts[-1] and (size + each > BATCH_BYTES or row - cuts[-1] >= BATCH_ROWS):
            cuts.append(row)
            size = 0
        size += each
    return [*cuts, len(batch)]


def decode_records(message: Records) -> RecordBatch:
    """Check a server's message, and build rows over its data."""
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
