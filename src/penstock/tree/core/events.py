"""The events and instructions of a distribution agent's core.

A **link** is a connection to another party, with a number that the driver chooses, above 0 and never reused. A link
that the agent opened leads to its parent or a peer; an accepted one leads down. All bytes of a link pass the agent's
fan-out (kernel/_fanout.pyi): the driver, or a compiled lane, gives it received bytes (receive), and sends waiting ones
(ready, take). After every event, links may be ready.

    Start                             once, with the state of the disk
    Arrived                           a party has logged in on a link that it opened
    Connected, ConnectFailed          the answer to Connect
    Noticed                           the fan-out has notices for the core, or has accepted packets
    LinkClosed                        a link has ended
    JournalRead, Appended             answers to ReadJournal and Append
    Renewed                           the answer to CheckToken
    Revoke, Restore                   an operator's changes of rights
    Move, SendBack, Promote, Define, Busy, Stop    orders of an operator or the node
    Tick
        ->  Connect, Close            open or end a link
            DefineStream, Append, ReadJournal    the journals of a root or standby
            CheckToken                a child presents a newer token
            Informed                  a message of the infostream was sent or received, for display
            Became                    the agent has a new place in the tree

A refused party gets the reason on its link, which is then closed.
"""

from typing import Literal, TypeAlias

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.core import Tick
from penstock.security.core.token import Grant
from penstock.tree.core.control import Class, Role, StreamInfo
from penstock.tree.core.infostream import Info

# Events


class Recovered(msgspec.Struct, frozen=True):
    """A stream found on the disk of a root or standby."""

    info: StreamInfo
    oldest: int
    """The first sequence that is kept; `last` + 1 if there is none."""
    last: int
    """The sequence of the last complete message on the disk."""


class Start(msgspec.Struct, frozen=True):
    streams: tuple[Recovered, ...] = ()
    publishers: dict[int, int] = {}
    """By publisher id: the number up to which all its messages are stored."""
    beyond: dict[int, list[int]] = {}
    """Stored numbers above that: the numbers before them were lost in another stream."""
    term: int = 0
    """The highest term that this root or standby has known."""
    was_root: bool = False
    """For a standby: True if it had taken over (Became with the role of a root) before its restart."""
    place: str = ""
    """host:port for children."""
    wall_ns: int = 0
    """The wall-clock time of this event."""
    bearers: dict[int, str] = {}
    """By publisher id: the client whose token it presented."""


class Party(msgspec.Struct, frozen=True):
    """The party on an accepted link, according to the handshake, its Login and its token."""

    name: str
    role: Role
    tree: str = "tree"
    place: str = ""
    home: str = ""
    publisher_id: int = 0
    cls: Class = "lossless"
    term: int = 0
    grants: tuple[Grant, ...] | None = None
    """The token's grants; None: all."""
    subject: str = ""
    """The token's client; the party chooses its name itself."""

    def is_called(self, name: str) -> bool:
        return name in (self.name, self.subject)


class Arrived(msgspec.Struct, frozen=True):
    """A party has logged in on a link that it opened. Answered with Welcome or Refused."""

    link: int
    party: Party


class Connected(msgspec.Struct, frozen=True):
    """The link of this `attempt` is open, with a complete handshake: `name` is the peer. The core logs in."""

    attempt: int
    link: int
    name: str


class ConnectFailed(msgspec.Struct, frozen=True):
    attempt: int
    why: str = ""


class LinkClosed(msgspec.Struct, frozen=True):
    """A link has ended, on either side; also after Close. No effect for an unknown link."""

    link: int
    why: str = ""


class Noticed(msgspec.Struct, frozen=True):
    """The fan-out has notices, or has accepted live packets since the last Noticed."""


class JournalRead(msgspec.Struct, frozen=True):
    """The journal's packets for a request: in order, from the first one that is kept and requested."""

    request: int
    packets: bytes
    after: int
    """The sequence before the first packet that matches the request, even if there is none."""
    through: int
    """The sequence of the last packet; `after` if there is none."""
    is_failed: bool = False
    """The read failed; all other fields are undefined."""


class Appended(msgspec.Struct, frozen=True):
    """The journal has the stream up to this sequence, with the configured persistence."""

    stream: int
    through: int


class Renewed(msgspec.Struct, frozen=True):
    """The grants of a newer token; `refusal` is the reason if it is invalid."""

    link: int
    grants: tuple[Grant, ...] | None = None
    refusal: str = ""


class GotToken(msgspec.Struct, frozen=True):
    """The agents above this one, from now on."""

    token: str


class Revoke(msgspec.Struct, frozen=True):
    """A party may no longer receive or publish topics that match these patterns; empty: any. The name is the party's
    own, or that of its token's client."""

    name: str
    topics: tuple[str, ...] = ()
    reason: str = ""
    is_lasting: bool = True
    """True: also for the party's later links, until Restore; False: only its token is revoked."""


class Restore(msgspec.Struct, frozen=True):
    """Revocations by name end; the party has to subscribe again."""

    name: str


class Move(msgspec.Struct, frozen=True):
    """Move a child to another agent temporarily; `place` "": to the sibling with the least load."""

    name: str
    place: str = ""
    reason: str = ""


class SendBack(msgspec.Struct, frozen=True):
    """Return a child that was moved here."""

    name: str
    reason: str = ""


class Promote(msgspec.Struct, frozen=True):
    """Make a standby the root, with the next term."""


class Define(msgspec.Struct, frozen=True):
    """At the root: add a stream."""

    name: str
    topics: tuple[str, ...]


class Busy(msgspec.Struct, frozen=True):
    """The agent's load."""

    percent: int


class Stop(msgspec.Struct, frozen=True):
    """The agent shuts down: children are told. The driver flushes, then closes."""

    reason: str = ""


Event: TypeAlias = (
    Start
    | Arrived
    | Connected
    | ConnectFailed
    | LinkClosed
    | Noticed
    | JournalRead
    | Appended
    | Renewed
    | GotToken
    | Revoke
    | Restore
    | Move
    | SendBack
    | Promote
    | Define
    | Busy
    | Stop
    | Tick
)


# Instructions


class Connect(msgspec.Struct, frozen=True):
    """Open a link to the agent at this address. Answered with Connected or ConnectFailed, within a time limit of the
    driver."""

    attempt: int
    place: str


class Close(msgspec.Struct, frozen=True):
    """End a link when its waiting bytes are sent, or cannot be sent soon. The core has forgotten it."""

    link: int
    cause: str
    reason: str = ""


class Append(msgspec.Struct, frozen=True):
    """Append packets, at these places, to the stream's journal: record n is the packet of sequence n. `cut_after`:
    remove records after that sequence first, because they are not part of the stream."""

    stream: int
    packets: bytes
    offsets: NDArray[numpy.uint32]
    sizes: NDArray[numpy.uint32]
    through: int
    """The sequence of the last packet."""
    cut_after: int | None = None
    is_in_tail: bool = False
    """The tail has the packets already, and they are distributed."""


class DefineStream(msgspec.Struct, frozen=True):
    """A root or standby has a new stream to store, or one with a newer term."""

    info: StreamInfo


class ReadJournal(msgspec.Struct, frozen=True):
    """Read packets of the stream after a sequence, or from a time on (`time_ns` not None): the first ones that are
    kept."""

    request: int
    stream: int
    after: int
    time_ns: int | None
    bytes_max: int


class CheckToken(msgspec.Struct, frozen=True):
    """Answered with Renewed."""

    link: int
    token: str


class Informed(msgspec.Struct, frozen=True):
    """A message was sent to children (`link` 0: to all), or received from a parent or peer."""

    direction: Literal["said", "heard"]
    link: int
    party: str
    info: Info


class Became(msgspec.Struct, frozen=True):
    """The agent's current role and place."""

    role: Literal["root", "standby", "agent", "fenced"]
    is_rooted: bool
    parent: str
    path: tuple[str, ...]
    term: int


Instruction: TypeAlias = Connect | Close | Append | DefineStream | ReadJournal | CheckToken | Informed | Became
