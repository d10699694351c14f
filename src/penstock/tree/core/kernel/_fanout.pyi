"""The data path of an agent: what comes on a link, what of it is new, who wants it, and what waits for whom."""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from typing_extensions import Buffer

from penstock.filter.core.kernel._condition import Condition
from penstock.topics import InterestTable
from penstock.tree.core.kernel._flow import Brings as Brings
from penstock.tree.core.kernel._flow import Flow
from penstock.tree.core.kernel._flow import LinkClass as LinkClass
from penstock.tree.core.kernel._intake import Intake
from penstock.tree.core.kernel.notices import LinkState, Notice, Portion, StreamState
from penstock.tree.core.kernel.taken import Taken

class Fanout(Flow):
    """One agent's data path. Its methods may be called by any thread; `with fanout:` keeps all others out, the lane
    too, so that what is done and said in between takes place at one point of every stream."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    # Streams

    def open_stream(self, stream: int, *, term: int = 0, last: int = 0) -> None:
        """Packets of this stream after `last` are accepted from now on. 0 is the infostream's and never opened."""

    def be_origin(self) -> None:
        """From now on packets of streams come from here alone: those that links bring are dropped."""

    def close_stream(self, stream: int) -> None:
        """Its legs are closed, too."""

    def set_stream(self, stream: int, *, term: int, last: int) -> None:
        """Go on after `last` in that term. What is in the history after it is forgotten; legs stay as they are."""

    def advance(self, stream: int, last: int) -> None:
        """Everything that is wanted of the stream up to here is there; nothing happens if more is."""

    def stream(self, stream: int) -> StreamState: ...

    # Links and what comes on them

    def open_link(self, link: int, *, brings: int = ..., cls: int = ...) -> None:
        """`link` is a number of the caller's, above 0 and used once."""

    def close_link(self, link: int) -> None:
        """Its legs are closed and what waits is thrown away. Nothing happens if it is not open."""

    def stop(self, link: int) -> None:
        """Nothing more is taken from the link and no packets are sent; what was said is. Without a notice."""

    def take_back(self, link: int) -> None:
        """What waits for the link is not sent, as if it were too slow: its legs leave live. Not if nothing waits."""

    def receive(self, link: int, data: Buffer, now_ns: int = 0) -> bool:
        """Bytes of the link's stream of frames, however cut. What the core has to know is in notices(). Whether more
        can be taken now; if not, the link is ready() when it can. An intake takes messages only if it is told what time
        it is."""

    def is_taking(self, link: int) -> bool:
        """Whether what comes on the link is taken now, and not kept for later."""

    def pause(self, link: int) -> None:
        """What comes on the link is kept, and the lane reads no more from it, until resume()."""

    def resume(self, link: int) -> None:
        """Go on after pause(), LegBlock or NewerTerm. Nothing happens if the link is not open."""

    def absorb(self, packets: Buffer, link: int = 0) -> int:
        """Take whole packets as if they had come live on the link (0: from here); how many were new. Those of a
        term that their stream is not in yet are taken, and begin it."""

    def has_notices(self) -> bool: ...
    def notices(self, count_max: int = ...) -> list[Notice]:
        """The next ones, at most so many. A link that has sent many control frames waits until all are seen."""

    def release_held(self) -> bool:
        """Let links go on that had to wait, as far as what they sent has been in notices(), which were seen to. Whether
        there is more to see to: then or now."""

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
        """What a child wants of a stream; it gets what comes from now on if the leg is live, and else nothing before
        fetch() has brought it there. Returns the stream's last sequence."""

    def close_leg(self, link: int, leg: int) -> None: ...
    def change_leg(self, link: int, leg: int, wants: Iterable[tuple[Sequence[str], Condition | None]]) -> int:
        """From now on it wants this. Returns the stream's last sequence."""

    def is_live(self, link: int, leg: int) -> bool:
        """Also while the core has yet to see that it is not any more."""

    def fetch(self, link: int, leg: int, after: int, size_max: int) -> Portion | None:
        """What the leg wants of the stream after this sequence, out of the history; None if that does not reach back so
        far. With everything through the stream's last, the leg is live from there on."""

    def select(self, link: int, leg: int, packets: Buffer, size_max: int) -> Portion:
        """What the leg wants of these packets of its stream, which were read elsewhere. It does not become live."""

    # A root's intake

    def use_intake(self, intake: Intake | None) -> None:
        """From now on this takes what admitted publishers send, while it is open; None: nobody does. It is closed, and
        nobody is admitted."""

    def open_intake(self, now_ns: int) -> None:
        """Every message that has a place is distributed: from now on it gives places."""

    def hold_intake(self) -> None:
        """It gives no places, but will soon: what publishers send from now on waits for it."""

    def close_intake(self) -> None:
        """It gives no places: what publishers send is in notices()."""

    def admit(self, link: int, publisher_id: int, through: int, allowed: InterestTable | None = None) -> None:
        """The intake may take the publisher's messages after its number `through`, on this link and no other, on the
        topics that `allowed`, an interest table, has with subscriber 0; None: on all."""

    def dismiss(self, link: int) -> None:
        """What comes on the link is Python's to judge, until it is admitted again."""

    def take_out(self, now_ns: int) -> Taken | None:
        """What the intake has taken since the last time; None: nothing."""

    # What is sent

    def say(self, link: int, frames: Buffer, *, is_behind: bool = True) -> None:
        """Send these frames, behind what waits for the link already. LimitError if it does not take what was said.

        `is_behind` False: they have nothing to do with the packets that wait, and may come before some. (A conflating
        link goes on to conflate these.)"""

    def ready(self) -> list[int]:
        """The links for which something came to wait since the last call."""

    def take(self, link: int, size_max: int) -> bytes:
        """Whole frames that wait for the link, of at most `size_max` bytes if the first is not larger; b"" if none."""
