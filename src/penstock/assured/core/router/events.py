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
    """Records of the journal as a reader gave them: RecordBatch.data and .rows."""

    data: Buffer
    rows: NDArray[numpy.void]


class Start(msgspec.Struct, frozen=True):
    """Everything that the journal had has been replayed; records are numbered from here on."""

    next_sequence: int
    wall_ns: int
    """The wall clock at this moment."""
    role: Role = "active"
    epoch: int = 1
    """At least so high; the journal may know a higher one."""


class LinkOpened(msgspec.Struct, frozen=True):
    link: int
    name: str
    """Whose publishers its publishers are: its token's subject, or without tokens the name that it logged in with."""
    grants: tuple[Grant, ...] | None = None
    """Of its token; None: it may publish and consume everything."""
    is_operator: bool = False
    may_define: bool = True
    """Endpoints, though it is no operator, if it may consume everything."""


class LinkClosed(msgspec.Struct, frozen=True):
    """A link is gone, whoever ended it; also after EndLink. One that the core does not know is no error."""

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
    """The records that ReadRecords asked for, or the first of them; `data` and `rows` as of a RecordBatch.

    `first` is the oldest record that the journal has: what is older than that is gone."""

    request: int
    data: Buffer
    rows: NDArray[numpy.void]
    first: int
    is_failed: bool = False
    """They could not be read now; the core asks again."""


class DiskTroubled(msgspec.Struct, frozen=True):
    """The disk is full. What was given with Append waits with the driver, in order, and is not lost."""

    why: str
    is_relieved: bool = False
    """There is some room that was kept for that: for what makes more of it, settlements and cleaning."""


class DiskRecovered(msgspec.Struct, frozen=True):
    pass


class DiskFailed(msgspec.Struct, frozen=True):
    """Nothing beyond what was stored will ever be."""

    why: str


class Become(msgspec.Struct, frozen=True):
    """The router takes a role in an epoch that is not lower than any it has known."""

    role: Role
    epoch: int
    where: str = ""
    """Of a standby: host:port of the active router, for clients."""


class Release(msgspec.Struct, frozen=True):
    """Synchronous messages up to this id need not wait for the other router any longer, and are acknowledged so."""

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
    """Rows for the journal, as JournalWriter.append_packed takes them; the first is record number `first`."""

    data: bytes
    offsets: NDArray[numpy.uint32]
    sizes: NDArray[numpy.uint32]
    timestamps_ns: NDArray[numpy.int64]
    first: int
    through: int


class ReadRecords(msgspec.Struct, frozen=True):
    """Records of the journal: these numbers, ascending; or, if there are none, those after the record `after`, or from
    a time on, up to `bytes_max` of them. At least one, if there is one."""

    request: int
    sequences: NDArray[numpy.uint64]
    after: int = 0
    time_ns: int = 0
    bytes_max: int = 0


class RemoveBefore(msgspec.Struct, frozen=True):
    """Nothing before this record is needed any more: whole segments of the journal that are older may go."""

    sequence: int


class SendMessage(msgspec.Struct, frozen=True):
    link: int
    message: RouterMessage


class SendData(msgspec.Struct, frozen=True):
    link: int
    data: bytes


class Became(msgspec.Struct, frozen=True):
    """The router has the role, and the disk has it."""

    role: Role
    epoch: int


class EndLink(msgspec.Struct, frozen=True):
    """Tell the client, then close; the core has forgotten the link."""

    link: int
    code: RefusalCode
    what: str


class Noted(msgspec.Struct, frozen=True):
    """Something that people should find in the log."""

    what: str
    values: dict[str, str | int]
    is_trouble: bool = False


Instruction: TypeAlias = Append | ReadRecords | RemoveBefore | SendMessage | SendData | Became | EndLink | Noted
