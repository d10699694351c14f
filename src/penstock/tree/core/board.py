"""What the parts of a distribution agent share: who it is and where, its streams, its children, and how it speaks.

It decides nothing. agent.py hands events to the parts; each part changes what is its own here.
"""

from collections.abc import Iterable

import msgspec

from penstock.base.counters import Cause, Counters
from penstock.base.errors import LimitError, LocalProtocolError
from penstock.net.core.framing import encode_frame
from penstock.tree.config import TreeConfig
from penstock.tree.core.accounts import Ledger
from penstock.tree.core.control import MESSAGE_SIZE_MAX, TREE, Message, Position, StreamInfo, Want
from penstock.tree.core.events import Became, Close, Informed, Instruction, Party
from penstock.tree.core.infostream import Conflated, Info, Infostream
from penstock.tree.core.kernel._fanout import Fanout
from penstock.tree.core.kernel._frame import encode_block
from penstock.tree.core.legs import Conditions, Feed


class ChildLeg(msgspec.Struct):
    """A child's subscription."""

    link: int
    number: int
    stream: int
    asked: tuple[Want, ...]
    wants: tuple[Want, ...]
    """What of it is granted now."""
    begin: Position
    """Where it asked to begin, until it is held."""
    through: int = 0
    """The child has, or is being sent, everything of the leg up to here, if it is not live."""
    is_held: bool = False
    is_live: bool = False
    fetch_bytes: int = 0
    """Of the portion that it waits for; 0: none."""
    is_coming: bool = False
    """Whether that is being read, or brought."""


class Child(msgspec.Struct):
    """A party below this agent."""

    link: int
    party: Party
    legs: dict[int, ChildLeg] = {}
    denied: tuple[str, ...] = ()
    """Patterns, each with its !."""
    conflated: int = 0
    """What it was told of."""
    percent: int = 0
    percent_told: int = 0
    """What its siblings were last told."""
    bytes_in: int = 0
    heard_ns: int = 0
    is_dialled: bool = False
    """Whether it is a peer to which this agent opened the link."""

    @property
    def is_agent(self) -> bool:
        return self.party.role in ("agent", "standby", "peer")


class Stream:
    """A stream as this agent knows it."""

    whole = Want((">",))
    """All of it: also what it has of topics that are its no longer."""

    def __init__(self, info: StreamInfo) -> None:
        self.info = info
        self.feed = Feed()

    @property
    def number(self) -> int:
        return self.info.number

    @property
    def term(self) -> int:
        return self.info.begins[-1][0] if self.info.begins else 0

    def term_after(self, sequence: int) -> int:
        """Of the message that comes next: what is of an older one is not to be taken any more."""
        return next((term for term, after in reversed(self.info.begins) if after <= sequence), 0)

    def end_of(self, term: int) -> int | None:
        """After which sequence a newer term than this begins; None if it is the newest, or not known."""
        return next((after for each, after in self.info.begins if each > term), None)


class Board:
    def __init__(self, config: TreeConfig, fanout: Fanout, conditions: Conditions, counters: Counters) -> None:
        self.config = config
        self.fanout = fanout
        self.conditions = conditions
        self.counters = counters
        self.infostream = Infostream(config.name)
        self.ledger = Ledger()
        self.now_ns = 0
        self.out: list[Instruction] = []
        self.term = 0
        self.parent = ""
        self.path: tuple[str, ...] = (config.name,)
        self.is_rooted = False
        self.why_alone = ""
        """Why the last one that was tried did not become the parent."""
        self.role: str = config.role
        """What it is now: root, standby, agent, or fenced (a root that was replaced)."""
        self.token = ""
        """By which an administration server lets agents above know this one."""
        self.place = ""
        """Where children connect to this agent."""
        self.root_place = ""
        self.standby_place = ""
        self.percent = 0
        self.streams: dict[int, Stream] = {}
        self.numbers: dict[str, int] = {}
        self.children: dict[int, Child] = {}
        self.refilled = False
        """Whether something was done that may have made new notices."""
        self._shown: Became | None = None

    # Streams

    def stream_of(self, name: str) -> Stream | None:
        number = self.numbers.get(name)
        return None if number is None else self.streams[number]

    def last(self, stream: int) -> int:
        return self.fanout.stream(stream).last

    def advance(self, stream: int, last: int) -> None:
        """Everything that is wanted of the stream up to here is there."""
        if self.role != "standby":
            self.fanout.advance(stream, last)

    # Speaking

    def say(self, link: int, *messages: Message) -> None:
        """A link to which something cannot be said has ended."""
        try:
            frames = b"".join(encode_frame(TREE.encode(message, MESSAGE_SIZE_MAX)) for message in messages)
        except LocalProtocolError as error:
            self.close(link, "limit", str(error))
        else:
            self.send(link, frames)

    def send(self, link: int, frames: bytes, *, is_behind: bool = True) -> None:
        """Frames behind what waits for the link already, unless they have nothing to do with that; a link that takes no
        more has ended."""
        try:
            self.fanout.say(link, frames, is_behind=is_behind)
        except LimitError as error:
            self.close(link, "slow", str(error))
        except LocalProtocolError:
            self.counters.add("messages_skipped", cause=Cause.CLOSED)  # what it said came later than its end

    def inform(self, info: Info, links: Iterable[int] | None = None) -> None:
        """Say something on the infostream, to all children or to some."""
        to = list(self.children) if links is None else list(links)
        self.ledger.said(info, to)
        if not to:
            return
        frame = encode_block(self.infostream.encode(info, self.term))
        for link in to:
            self.send(link, frame, is_behind=not isinstance(info, Conflated))
        party = self.children[to[0]].party.name if links is not None and to[0] in self.children else ""
        self.out.append(Informed("said", 0 if links is None else to[0], party, info))

    def close(self, link: int, cause: str, reason: str = "") -> None:
        """Nothing more is taken from the link; the driver ends it when what was said is sent."""
        self.fanout.stop(link)
        self.out.append(Close(link, cause, reason))

    def show(self) -> None:
        """Tell the driver what this agent is now, if that is new."""
        role = self.role if self.role in ("root", "standby", "fenced") else "agent"
        now = Became(role, self.is_rooted, self.parent, self.path, self.term)  # type: ignore[arg-type]
        if now != self._shown:
            self._shown = now
            self.out.append(now)
