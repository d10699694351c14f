"""The interface of a message router's core: events in, instructions out.

A **link** is a connection to a client. The driver numbers links from 1 and never uses a number again. A **publisher**
publishes on a link; a **flow** delivers the messages of one endpoint to a link. Both have handles, which the core
chooses. Requests and answers are the decoded messages of the control protocol (wire/control.py). Data frames pass
unchanged: whole frames, each after its length (four bytes, net.framing), any number in one buffer.

    Replay*, Start                   once: the records of the journal, in order; then the end of recovery
    LinkOpened, LinkClosed           a client has logged in; its link is gone
    RequestReceived                  a client's request
    Data                             data frames of a link
    Stored, RecordsRead              the journal's answers
    DiskTroubled, DiskRecovered, DiskFailed
    Become                           this router becomes active or standby
    Release                          synchronous messages need not wait for the standby any longer
    Stop, Tick
        ->  Append                   rows for the journal; answered by Stored when they are on the disk
            ReadRecords              answered by RecordsRead
            RemoveBefore             the journal may delete older records
            SendMessage              a control message for a link: the answer to a request, or a notice
            SendData                 data frames for a link
            Became                   the router has a new role
            EndLink                  the client broke the protocol, or this router is not active
            Noted                    for the log
"""

from typing import Literal, TypeAlias

import msgspec
import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.assured.config import Role
from penstock.assured.wire.control import RouterMessage, RouterRequest
from penstock.base.core import Tick
from penstock.security.core.token import Grant

RefusalCode: TypeAlias = Literal[
    "unknown_endpoint", "endpoint_exists", "endpoint_in_use", "unknown_publisher", "unknown_flow",
    "unknown_transaction", "publisher_in_use", "transaction_open", "transaction_failed", "transaction_large",
    "not_entitled", "limit", "disk", "not_active", "malformed", "gone",
]  # fmt: skip

# Events


class Replay(msgspec.Struct, frozen=True):
    """Records of the journal from a reader: RecordBatch.data and .rows."""

    data: Buffer
    rows: NDArray[numpy.void]


class Start(msgspec.Struct, frozen=True):
    """All records of the journal have been replayed; new records are numbered from here on."""

    next_sequence: int
    wall_ns: int
    """The wall-clock time of this event."""
    role: Role = "active"
    epoch: int = 1
    """Minimum epoch; the journal may have a higher one."""


class LinkOpened(msgspec.Struct, frozen=True):
    link: int
    name: str
    """The owner of its publishers: its token's subject, or without tokens the name of its login."""
    grants: tuple[Grant, ...] | None = None
    """Of its token; None: it may publish and consume everything."""
    is_operator: bool = False
    may_define: bool = True
    """True if it may define endpoints without being an operator, if it may consume everything."""


class LinkClosed(msgspec.Struct, frozen=True):
    """A link has ended, on either side; also after EndLink. No effect for an unknown link."""

    link: int


class RequestReceived(msgspec.Struct, frozen=True):
    link: int
    request: RouterRequest


class Data(msgspec.Struct, frozen=True):
    link: int
    data: Buffer


class Stored(msgspec.Struct, frozen=True):
    """All rows up to this sequence number are on the disk."""

    through: int


class RecordsRead(msgspec.Struct, frozen=True):
    """The records requested by ReadRecords, or the first of them; `data` and `rows` as in a RecordBatch.

    `first` is the oldest record in the journal: older ones are gone."""

    request: int
    data: Buffer
    rows: NDArray[numpy.void]
    first: int
    is_failed: bool = False
    """The read failed; the core repeats it."""


class DiskTroubled(msgspec.Struct, frozen=True):
    """The disk is full. Appended rows wait in the driver, in order, and are not lost."""

    why: str
    is_relieved: bool = False
    """The reserve has made some room, for records that help to free more: settlements and cleaning."""


class DiskRecovered(msgspec.Struct, frozen=True):
    pass


class DiskFailed(msgspec.Struct, frozen=True):
    """Nothing more will be stored."""

    why: str


class Become(msgspec.Struct, frozen=True):
    """The router gets a role in an epoch that is not lower than any known one."""

    role: Role
    epoch: int
    where: str = ""
    """For a standby: host:port of the active router, for clients."""


class Release(msgspec.Struct, frozen=True):
    """Synchronous messages up to this id no longer wait for the standby, and are acknowledged with this outcome."""

    through_id: int
    outcome: int


class Stop(msgspec.Struct, frozen=True):
    reason: str = ""


Event: TypeAlias = (
    Replay | Start | LinkOpened | LinkClosed | RequestReceived | Data | Stored | RecordsRead | DiskTroubled
    | DiskRecovered | DiskFailed | Become | Release | Stop | Tick
)  # fmt: skip


# Instructions


class Append(msgspec.Struct, frozen=True):
    """Rows for the journal, in the format of JournalWriter.append_packed; the first is record number `first`."""

    data: bytes
    offsets: NDArray[numpy.uint32]
    sizes: NDArray[numpy.uint32]
    timestamps_ns: NDArray[numpy.int64]
    first: int
    through: int


class ReadRecords(msgspec.Struct, frozen=True):
    """Read records of the journal: these numbers, ascending; or, if there are none, those after the record `after`
    or from a time on, up to `bytes_max`. At least one, if there is one."""

    request: int
    sequences: NDArray[numpy.uint64]
    after: int = 0
    time_ns: int = 0
    bytes_max: int = 0


class RemoveBefore(msgspec.Struct, frozen=True):
    """Records before this one are not needed any more: whole older segments of the journal may be deleted."""

    sequence: int


class SendMessage(msgspec.Struct, frozen=True):
    link: int
    message: RouterMessage


class SendData(msgspec.Struct, frozen=True):
    link: int
    data: bytes


class Became(msgspec.Struct, frozen=True):
    """The router has the role, and the role is on the disk."""

    role: Role
    epoch: int


class EndLink(msgspec.Struct, frozen=True):
    """Tell the client, then close; the core has forgotten the link."""

    link: int
    code: RefusalCode
    what: str


class Noted(msgspec.Struct, frozen=True):
    """An event for the log."""

    what: str
    values: dict[str, str | int]
    is_trouble: bool = False


Instruction: TypeAlias = Append | ReadRecords | RemoveBefore | SendMessage | SendData | Became | EndLink | Noted
