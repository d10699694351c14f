"""The grammar of a distribution agent: what its core is told (events) and what it answers (instructions).

A **link** is a connection to another party, a number of the driver's choice, above 0 and never used again. One that the
agent opened leads up, to its parent, or to a peer; one that it accepted leads down. Whatever comes and goes on a link
passes through the agent's fan-out (core.fanout): the driver, or a compiled lane, gives it the bytes that came
(receive), and sends those that wait (ready, take). After every event, links may be ready.

    Start                             once, with what the disk had
    Arrived                           a party has logged in on a link that it opened
    Connected, ConnectFailed          the answer to Connect
    Noticed                           the fan-out has notices for the core, or has taken in packets
    LinkClosed                        a link is gone
    JournalRead, Appended             answers to ReadJournal and Append
    Renewed                           the answer to CheckToken
    Revoke, Restore                   what a party may have, by an operator's word
    Move, SendBack, Promote, Define, Busy, Stop    what an operator, or the node, wants
    Tick
        ->  Connect, Close            open a link, end one
            DefineStream, Append, ReadJournal    the journals of a root or standby
            CheckToken                a child shows a newer token
            Informed                  something was said or heard on the infostream, for people
            Became                    the agent's place in the tree is another

A party that is not served is told why on its link, which then is to be closed.
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
    """A stream as a root or standby found it on its disk."""

    info: StreamInfo
    oldest: int
    """The first sequence that is kept; one more than `last` if none is."""
    last: int
    """The sequence of the last message that is whole on the disk."""


class Start(msgspec.Struct, frozen=True):
    streams: tuple[Recovered, ...] = ()
    publishers: dict[int, int] = {}
    """By publisher id, the number up to which all its messages are kept."""
    beyond: dict[int, list[int]] = {}
    """Numbers beyond that which are kept, too: what is before them was lost on another stream."""
    term: int = 0
    """The highest that this root or standby has known."""
    was_root: bool = False
    """Of a standby: whether it had taken over (Became with the role of a root) before it was started anew."""
    place: str = ""
    """host:port where children connect."""
    wall_ns: int = 0
    """The wall clock at this moment."""
    bearers: dict[int, str] = {}
    """By publisher id, whose token it showed."""


class Party(msgspec.Struct, frozen=True):
    """Who is at the other end of an accepted link, as the handshake, its Login and its token showed."""

    name: str
    role: Role
    tree: str = "tree"
    place: str = ""
    home: str = ""
    publisher_id: int = 0
    cls: Class = "lossless"
    term: int = 0
    grants: tuple[Grant, ...] | None = None
    """Of its token; None: it may have everything."""
    subject: str = ""
    """Whose token it is; its name is its own choice."""

    def is_called(self, name: str) -> bool:
        return name in (self.name, self.subject)


class Arrived(msgspec.Struct, frozen=True):
    """A party has logged in, on a link that it opened. Answered with Welcome or Refused."""

    link: int
    party: Party


class Connected(msgspec.Struct, frozen=True):
    """The link that `attempt` asked for is open, its handshake done: `name` is who answered. The core logs in."""

    attempt: int
    link: int
    name: str


class ConnectFailed(msgspec.Struct, frozen=True):
    attempt: int
    why: str = ""


class LinkClosed(msgspec.Struct, frozen=True):
    """A link is gone, whoever ended it; also after Close. One that the core does not know is no error."""

    link: int
    why: str = ""


class Noticed(msgspec.Struct, frozen=True):
    """The fan-out has notices, or has taken in live packets since it said so the last time."""


class JournalRead(msgspec.Struct, frozen=True):
    """What a journal has for a request: packets in their order, from the first that is kept and asked for."""

    request: int
    packets: bytes
    after: int
    """The sequence before the first packet that fits the request, whether or not there is one."""
    through: int
    """The sequence of the last packet here; `after` if there is none."""
    is_failed: bool = False
    """It could not be read now, and says nothing else."""


class Appended(msgspec.Struct, frozen=True):
    """The journal has everything of the stream up to this sequence, as surely as the configuration asks for."""

    stream: int
    through: int


class Renewed(msgspec.Struct, frozen=True):
    """What a newer token grants; `refusal` says why it is no good."""

    link: int
    grants: tuple[Grant, ...] | None = None
    refusal: str = ""


class GotToken(msgspec.Struct, frozen=True):
    """By which agents above this one know it from now on."""

    token: str


class Revoke(msgspec.Struct, frozen=True):
    """A party may no longer have what these patterns match, nor publish it; empty: anything. The name is the party's
    own or that of its token's bearer."""

    name: str
    topics: tuple[str, ...] = ()
    reason: str = ""
    is_lasting: bool = True
    """It holds for the party's later links as well, until Restore; else it is its token that is worth nothing."""


class Restore(msgspec.Struct, frozen=True):
    """What was revoked by name is so no longer; the party has to subscribe again."""

    name: str


class Move(msgspec.Struct, frozen=True):
    """A child is to go to another agent for the time being; `place` "": to the sibling with the least load."""

    name: str
    place: str = ""
    reason: str = ""


class SendBack(msgspec.Struct, frozen=True):
    """A child that was sent here is to go home."""

    name: str
    reason: str = ""


class Promote(msgspec.Struct, frozen=True):
    """A standby is to be the root, with the next term."""


class Define(msgspec.Struct, frozen=True):
    """At the root: a stream that there is from now on."""

    name: str
    topics: tuple[str, ...]


class Busy(msgspec.Struct, frozen=True):
    """How much of what it can do the agent does."""

    percent: int


class Stop(msgspec.Struct, frozen=True):
    """The agent ends in order: children are told. The driver flushes, then closes."""

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
    """Open a link to the agent at this place; answered with Connected or ConnectFailed, within a time that the driver
    bounds."""

    attempt: int
    place: str


class Close(msgspec.Struct, frozen=True):
    """End a link when what waits for it is sent, or cannot be sent soon. The core has forgotten it."""

    link: int
    cause: str
    reason: str = ""


class Append(msgspec.Struct, frozen=True):
    """Add packets, at these places, to the stream's journal: record n is the packet of sequence n. `cut_after`: what is
    on the disk after that sequence is not part of the stream, and goes first."""

    stream: int
    packets: bytes
    offsets: NDArray[numpy.uint32]
    sizes: NDArray[numpy.uint32]
    through: int
    """The sequence of the last one."""
    cut_after: int | None = None
    is_in_tail: bool = False
    """The tail has them already, and they are distributed."""


class DefineStream(msgspec.Struct, frozen=True):
    """A root or standby has a stream to keep that it had not, or one with a newer term."""

    info: StreamInfo


class ReadJournal(msgspec.Struct, frozen=True):
    """Packets of the stream after a sequence, or from a time on (`time_ns` not None): the first that are kept."""

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
    """Something was said to children (`link` 0: to all of them), or heard from a parent or peer."""

    direction: Literal["said", "heard"]
    link: int
    party: str
    info: Info


class Became(msgspec.Struct, frozen=True):
    """What the agent is now."""

    role: Literal["root", "standby", "agent", "fenced"]
    is_rooted: bool
    parent: str
    path: tuple[str, ...]
    term: int


Instruction: TypeAlias = Connect | Close | Append | DefineStream | ReadJournal | CheckToken | Informed | Became
