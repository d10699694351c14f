"""Fanout, the data path of an agent: finds new packets, matches them with legs, and queues them for links."""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from types import TracebackType
from typing import Self

from typing_extensions import Buffer

from penstock.filter.core.kernel._condition import Condition
from penstock.topics import InterestTable
from penstock.tree.core.kernel._intake import Intake
from penstock.tree.core.kernel.notices import LinkState, Notice, Portion, StreamState
from penstock.tree.core.kernel.taken import Taken

class Brings(IntEnum):
    """Frames that a link may bring besides control frames, combined with |; any other frame ends the link."""

    NOTHING = 0
    PACKETS = 1
    """Live blocks, and blocks of legs: from a parent or a peer."""
    INFO = 2
    """The infostream: from an agent."""
    PUBLISHED = 4
    """Blocks of a publisher."""

class LinkClass(IntEnum):
    """What happens to a child that does not keep up."""

    LOSSLESS = 0
    """Its legs leave live; it fetches what it missed when it reads again."""
    CONFLATING = 1
    """It gets the newest message of each topic."""
    DISCONNECT = 2
    """Its link ends."""

class Fanout:
    """Any thread may call the methods. `with fanout:` holds the mutex: no other thread and not the lane runs in
    between, so that everything in the block happens at one sequence of every stream."""

    def __init__(
        self,
        tree_id: int,
        *,
        history_size: int = ...,
        streams_max: int = ...,
        links_max: int = ...,
        legs_max: int = ...,
        wants_max: int = ...,
        queue_packets_max: int = ...,
        control_size_max: int = ...,
        topics_waiting_max: int = ...,
    ) -> None: ...
    @property
    def tree_id(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    # Streams

    def open_stream(self, stream: int, *, term: int = 0, last: int = 0) -> None:
        """Accept packets of this stream after `last`. Stream 0, the infostream, is never opened."""

    def be_origin(self) -> None:
        """The agent is the root: packets of streams from links are dropped."""

    def close_stream(self, stream: int) -> None:
        """Close the stream and its legs; packets that wait are still sent."""

    def set_stream(self, stream: int, *, term: int, last: int) -> None:
        """Continue after `last` in this term. Later packets in the history are dropped; legs stay as they are."""

    def advance(self, stream: int, last: int) -> None:
        """All matching packets up to `last` have arrived. No effect if the stream is further."""

    def stream(self, stream: int) -> StreamState: ...

    # Links and received bytes

    def open_link(self, link: int, *, brings: int = ..., cls: int = ...) -> None:
        """The caller chooses the number: above 0, and used once."""

    def close_link(self, link: int) -> None:
        """Close the link's legs and drop waiting packets. No effect if it is not open. If the lane has its socket,
        the lane has to close it first."""

    def stop(self, link: int) -> None:
        """Accept nothing more from the link, and send it control frames but no packets. Makes no notice."""

    def take_back(self, link: int) -> None:
        """Drop the packets that wait, as if the link were too slow: its legs leave live. No effect if none waits."""

    def receive(self, link: int, data: Buffer, now_ns: int = 0) -> bool:
        """Accept bytes of the link's frames, in arbitrary pieces; notices() has the events for the core. False if
        nothing more is accepted now; the link is in ready() when it is accepted again. The intake accepts messages
        only with `now_ns`."""

    def is_taking(self, link: int) -> bool:
        """False if bytes of the link are buffered."""

    def pause(self, link: int) -> None:
        """Buffer bytes of the link, and stop the lane from reading it, until resume()."""

    def resume(self, link: int) -> None:
        """Continue after pause(), LegBlock or NewerTerm. No effect if the link is not open."""

    def absorb(self, packets: Buffer, link: int = 0) -> int:
        """Accept whole packets as if they had arrived live on the link (0: from this agent). Return the number of
        new packets. Packets of a newer term begin that term."""

    def has_notices(self) -> bool: ...
    def notices(self, count_max: int = ...) -> list[Notice]:
        """The next notices. A link with many unread control frames is not read until release_held()."""

    def release_held(self) -> bool:
        """Resume links that waited until the core had read their notices. True if there is more to handle."""

    def link(self, link: int) -> LinkState: ...
    def links(self) -> list[int]: ...

    # Legs

    def open_leg(
        self,
        link: int,
        leg: int,
        stream: int,
        wants: Iterable[tuple[Sequence[str], Condition | None]],
        *,
        is_live: bool,
    ) -> int:
        """A child's subscription to a stream. A live leg gets all new packets; another one gets nothing until fetch()
        makes it live. Returns the stream's last sequence."""

    def close_leg(self, link: int, leg: int) -> None:
        """Packets that wait are still sent. No effect if the leg is not open."""

    def change_leg(self, link: int, leg: int, wants: Iterable[tuple[Sequence[str], Condition | None]]) -> int:
        """Replace its wants. Returns the stream's last sequence."""

    def is_live(self, link: int, leg: int) -> bool:
        """False as soon as the leg has left live, even if the notice is unread."""

    def fetch(self, link: int, leg: int, after: int, size_max: int) -> Portion | None:
        """The leg's packets after this sequence from the history; None if the history begins later. A portion that
        reaches the stream's last sequence makes the leg live."""

    def select(self, link: int, leg: int, packets: Buffer, size_max: int) -> Portion:
        """Select the leg's packets among these, which were read elsewhere. The leg does not become live."""

    # A root's intake

    def use_intake(self, intake: Intake | None) -> None:
        """Use this intake, closed and without publishers; None: no intake."""

    def open_intake(self, now_ns: int) -> None:
        """All sequenced messages are distributed: let the intake sequence messages from now on."""

    def hold_intake(self) -> None:
        """The intake sequences nothing now, but will soon: publishers wait for it."""

    def close_intake(self) -> None:
        """The intake sequences nothing: notices() has the publishers' blocks."""

    def admit(self, link: int, publisher_id: int, through: int, allowed: InterestTable | None = None) -> None:
        """The intake may sequence the publisher's messages after its number `through`, on this link only, on the
        topics that `allowed` matches with subscriber 0; None: on all topics."""

    def dismiss(self, link: int) -> None:
        """Report the link's blocks in notices(), until it is admitted again."""

    def take_out(self, now_ns: int) -> Taken | None:
        """The messages that the intake has sequenced since the last call; None if there are none."""

    # Sending

    def say(self, link: int, frames: Buffer, *, is_behind: bool = True) -> None:
        """Queue control frames behind everything that waits. LimitError if too many wait already. `is_behind` False:
        they do not depend on waiting packets, and may overtake some; a conflating link continues to conflate."""

    def ready(self) -> list[int]:
        """The links that got data to send since the last call."""

    def take(self, link: int, size_max: int) -> bytes:
        """Return whole frames that wait for the link, at most `size_max` bytes unless the first is larger; b"" if
        none waits. Not for a link whose socket the lane has."""
