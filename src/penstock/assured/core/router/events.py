"""The grammar of a message router: what its core is told (events) and what it answers (instructions).

A **link** is a connection to a client, a number of the driver's choice, above 0 and never used again. A **publisher**
publishes on a link, a **flow** brings the messages of one endpoint to a link; both have handles, numbers of the core's
choice. Data frames go to the core, and come from it, as they are on the link: whole, each behind its length (four
bytes, net.framing), any number in one buffer.

    Replay*, Start                   once: what the journal had, in order; then nothing more is to come
    LinkOpened, LinkClosed           a client has logged in; it is gone
    OpenPublisher, OpenFlow, CloseFlow, ClosePublisher
    Begin, Commit, Rollback          a transaction: what it published and settled came in data frames
    Data                             data frames of a link
    CreateEndpoint, AlterEndpoint, DeleteEndpoint, EmptyEndpoint
    Stored, RecordsRead              the journal's answers
    DiskTroubled, DiskRecovered, DiskFailed
    Become                           this router is active, or stands by
    Stop, Tick
        ->  Append                   rows for the journal; answered by Stored when they are on the disk
            ReadRecords              answered by RecordsRead
            RemoveBefore             the journal need not keep older records
            Answer                   to a client: what became of its request
            SendData                 data frames for a link
            EndFlow                  a flow is over without having been closed
            FlowActive               one that stood by has its turn
            NameEndpoint             to a client: which one the numbers in its data frames mean
            Became                   the router has another role
            EndLink                  a client did what it must not
            Noted                    for the log

Whoever makes a request gives it a number, and is answered with that number.
"""

from typing import Literal, TypeAlias

import msgspec
import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.assured.config import EndpointConfig, Role
from penstock.base.core import Tick
from penstock.security.token import Grant

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


class OpenPublisher(msgspec.Struct, frozen=True):
    """A publisher that is still open on another link moves to this one: its client has lost the other."""

    link: int
    request: int
    publisher: int
    """Its own choice, 64 bits, kept over reconnects."""


class ClosePublisher(msgspec.Struct, frozen=True):
    link: int
    request: int
    handle: int


class OpenFlow(msgspec.Struct, frozen=True):
    link: int
    request: int
    endpoint: str
    credit: int = 0
    """Messages that may be delivered without a further CREDIT."""


class CloseFlow(msgspec.Struct, frozen=True):
    """What is not settled goes back to the queue."""

    link: int
    request: int
    handle: int
    read: int | None = None
    """Of what was delivered, somebody has seen the first so many: the others do not count as delivered. None: all."""


class Begin(msgspec.Struct, frozen=True):
    """A transaction of a publisher, which numbers its transactions upwards; one at a time."""

    link: int
    request: int
    handle: int
    transaction: int


class Commit(msgspec.Struct, frozen=True):
    """Asked again after a reconnect, the answer says whether it was committed: by then it has ended one way or the
    other."""

    link: int
    request: int
    handle: int
    transaction: int


class Rollback(msgspec.Struct, frozen=True):
    link: int
    request: int
    handle: int
    transaction: int


class Data(msgspec.Struct, frozen=True):
    link: int
    data: Buffer


class Beginning(msgspec.Struct, frozen=True):
    """Where a new endpoint begins in what the journal still holds (REPL-13): with a message id, or a time."""

    message_id: int = 0
    time_ns: int = 0


class CreateEndpoint(msgspec.Struct, frozen=True):
    """One that is there already with the same configuration is no error."""

    link: int
    request: int
    config: EndpointConfig
    beginning: Beginning | None = None
    """None: with the next message."""


class AlterEndpoint(msgspec.Struct, frozen=True):
    """The endpoint of this name gets another configuration; what is queued stays, also beyond a lower limit."""

    link: int
    request: int
    config: EndpointConfig


class DeleteEndpoint(msgspec.Struct, frozen=True):
    """With what is queued in it. Refused while flows are open, if not forced."""

    link: int
    request: int
    name: str
    is_forced: bool = False


class EmptyEndpoint(msgspec.Struct, frozen=True):
    """Everything queued and not in flight is deleted."""

    link: int
    request: int
    name: str


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
    Replay | Start | LinkOpened | LinkClosed | OpenPublisher | ClosePublisher | OpenFlow | CloseFlow | Begin
    | Commit | Rollback | Data | CreateEndpoint | AlterEndpoint | DeleteEndpoint | EmptyEndpoint | Stored
    | RecordsRead | DiskTroubled | DiskRecovered | DiskFailed | Become | Release | Stop | Tick
)  # fmt: skip


# Answers to requests


class PublisherOpened(msgspec.Struct, frozen=True):
    handle: int
    highest: int
    """The highest number that the router has of this publisher; 0: none. Numbers go on above it; those up to
    WINDOW_MAX below may be sent again, and are not stored twice."""
    transaction: int
    """The last transaction that was committed; 0: none."""


class FlowOpened(msgspec.Struct, frozen=True):
    handle: int
    is_active: bool
    """False: the endpoint is exclusive and another flow has it; this one takes over when that ends."""


class Ended(msgspec.Struct, frozen=True):
    """Of a transaction."""

    outcome: Literal["committed", "rolled_back"]
    treatment: int = 0
    """The outcome of its messages, as in ACKNOWLEDGE; 0: it published nothing."""
    why: str = ""


class Done(msgspec.Struct, frozen=True):
    pass


class Refused(msgspec.Struct, frozen=True):
    code: RefusalCode
    what: str
    hint: str = ""


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


class Answer(msgspec.Struct, frozen=True):
    link: int
    request: int
    answer: PublisherOpened | FlowOpened | Ended | Done | Refused


class SendData(msgspec.Struct, frozen=True):
    link: int
    data: bytes


class EndFlow(msgspec.Struct, frozen=True):
    """The endpoint was deleted, or this router is no longer active."""

    link: int
    handle: int
    code: RefusalCode
    what: str


class FlowActive(msgspec.Struct, frozen=True):
    """A flow that stood by at an exclusive endpoint has it now."""

    link: int
    handle: int


class NameEndpoint(msgspec.Struct, frozen=True):
    """An endpoint that acknowledgements speak of by its number."""

    link: int
    number: int
    endpoint: EndpointConfig


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


Instruction: TypeAlias = (
    Append
    | ReadRecords
    | RemoveBefore
    | Answer
    | SendData
    | EndFlow
    | FlowActive
    | NameEndpoint
    | Became
    | EndLink
    | Noted
)
