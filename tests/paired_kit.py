"""Two routers of a pair by hand, with journals in memory: the test decides when a router gets the other's messages."""

from typing import Any

from msgspec.structs import replace

from assured_kit import MemoryJournal
from penstock.assured.config import EndpointConfig, RouterConfig, Want
from penstock.assured.core.lease.protocol import Memory
from penstock.assured.core.pair.pair import Pair
from penstock.assured.core.pair.protocol import (
    PairConfig,
    PeerClosed,
    PeerEnd,
    PeerFrame,
    PeerOpened,
    PeerSend,
    SwitchHere,
)
from penstock.assured.core.router.endpoints import Models
from penstock.assured.core.router.events import (
    Append,
    Data,
    LinkOpened,
    Noted,
    ReadRecords,
    RecordsRead,
    RemoveBefore,
    Replay,
    RequestReceived,
    SendData,
    SendMessage,
    Start,
    Stored,
)
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.wire.control import OpenFlow, OpenPublisher
from penstock.assured.wire.frames import Acknowledge, Deliver, Published, decode_frames, encode_publish
from penstock.base.core import Tick
from penstock.net.core.framing import FrameDecoder
from penstock.sim import SeededRandomness

QUEUE = EndpointConfig(name="q", wants=(Want(topics=("a.>",)),), replication="synchronous")
PUBLISHER = 777


class Router:
    """A router of a pair, with a clock and a journal in memory whose writes are durable at once unless the disk is
    stopped."""

    now_ns = 0
    is_storing = True
    link = 1
    """Its number for the link to the other router."""

    def __init__(
        self,
        name: str,
        *endpoints: EndpointConfig,
        journal: MemoryJournal | None = None,
        pair: dict[str, Any] | None = None,
        models: Models | None = None,
        memory: Memory | None = None,
        **options: Any,
    ) -> None:
        self.name = name
        self.endpoints = endpoints
        self.models = models
        self.pair_options = pair or {}
        self.options = {"retain_s": 60, **options}
        self.journal = journal or MemoryJournal()
        randomness = SeededRandomness(1, name)
        self.router = MessageRouter(RouterConfig(name=name, endpoints=endpoints, **self.options), randomness, models)
        self.pair = Pair(self.router, PairConfig(routers=("a", "b"), **self.pair_options), randomness, memory)
        self.frames: list[bytes] = []
        self.sent: list[Any] = []
        self.answers: dict[int, Any] = {}
        """Answers by the number of the request; each with request number 0."""
        self.notes: list[str] = []
        self.ended: list[str] = []
        self._decoder = FrameDecoder(2**24)
        if self.journal.records:
            self.pair.handle(Replay(*self.journal.batch(sorted(self.journal.records))), 0)
        self.tell(Start(self.journal.next_sequence, 0))

    def restart(self) -> "Router":
        return Router(
            self.name,
            *self.endpoints,
            journal=self.journal,
            pair=self.pair_options,
            models=self.models,
            **self.options,
        )

    def wait(self, nanoseconds: int) -> None:
        self.now_ns += nanoseconds
        self.tell(Tick())

    def tell(self, event: Any) -> None:
        if isinstance(event, PeerOpened):
            self.link = event.link
        events = [event]
        while events:
            for each in self.pair.handle(events.pop(0), self.now_ns):
                events += self._carried_out(each)

    def _carried_out(self, each: Any) -> list[Any]:
        match each:
            case Append():
                self.journal.append(each)
                return [Stored(each.through)] if self.is_storing else []
            case ReadRecords():
                found = self._found(each)
                return [RecordsRead(each.request, *self.journal.batch(found), min(self.journal.records))]
            case RemoveBefore(sequence):
                self.journal.remove_before(sequence)
            case PeerSend(_, data):
                self.frames += self._decoder.feed(data)
            case PeerEnd(_, why):
                self.ended.append(why)
            case SendData(_, data):
                self.sent += decode_frames(data)
            case Noted(what):
                self.notes.append(what)
            case SendMessage(_, message) if number := getattr(message, "number", 0):
                self.answers[number] = replace(message, number=0)
        return []

    def _found(self, read: ReadRecords) -> list[int]:
        if len(read.sequences):
            return [int(each) for each in read.sequences if int(each) in self.journal.records]
        return [each for each in sorted(self.journal.records) if each > read.after]

    def clients(self, link: int) -> None:
        self.tell(LinkOpened(link, "client", is_operator=True))
        self.tell(RequestReceived(link, OpenPublisher(1, PUBLISHER)))
        self.tell(RequestReceived(link, OpenFlow(2, "q", 100)))

    def publish(self, first: int, count: int = 1, *, transaction: int = 0, flags: int = 0) -> None:
        published = [Published(b"a.x", b"payload", flags=flags) for _ in range(count)]
        self.tell(Data(10, encode_publish(1, first, published, transaction=transaction)))

    @property
    def runs(self) -> list[tuple[int, int, int]]:
        """The acknowledged runs, as (first, last, outcome)."""
        return [tuple(run[:3]) for each in self.sent if isinstance(each, Acknowledge) for run in each.runs]

    @property
    def outcomes(self) -> dict[int, int]:
        return {number: outcome for first, last, outcome in self.runs for number in range(first, last + 1)}

    @property
    def delivered(self) -> list[int]:
        frames = [each for each in self.sent if isinstance(each, Deliver)]
        return [message.number for frame in frames for message in frame.messages]

    @property
    def payloads(self) -> list[bytes]:
        frames = [each for each in self.sent if isinstance(each, Deliver)]
        return [message.payload for frame in frames for message in frame.messages]

    @property
    def ids(self) -> list[int]:
        frames = [each for each in self.sent if isinstance(each, Deliver)]
        return [message.id for frame in frames for message in frame.messages]


def let_go(router: Router) -> bool:
    """Let the gathering time of the router pass; return True if it has frames to send then."""
    if router.pair.sending is None or router.pair.sending.gathered_ns is None:
        return False
    router.now_ns = router.pair.sending.gathered_ns
    router.tell(Tick())
    return bool(router.frames)


def exchange(one: Router, other: Router, frames_max: int = 1_000) -> None:
    """Exchange frames until neither router has any left, or after `frames_max` frames."""
    while (one.frames or other.frames or let_go(one) or let_go(other)) and frames_max:
        for here, there in ((one, other), (other, one)):
            while here.frames and frames_max:
                frames_max -= 1
                there.tell(PeerFrame(there.link, here.frames.pop(0)))


def connect(one: Router, other: Router, frames_max: int = 1_000, *, link: int = 1) -> None:
    for each in (one, other):
        each.frames.clear()
        each.tell(PeerOpened(link))
    exchange(one, other, frames_max)


def disconnect(one: Router, other: Router) -> None:
    for each in (one, other):
        each.frames.clear()
        each.tell(PeerClosed(each.link))


def pair_of_routers() -> tuple[Router, Router]:
    one, other = Router("a", QUEUE), Router("b")
    connect(one, other)
    one.clients(10)
    exchange(one, other)
    assert one.pair.is_active
    return one, other


def switch(one: Router, other: Router) -> None:
    """Do a planned switch."""
    other.tell(SwitchHere())
    exchange(one, other)
    assert (one.pair.is_active, other.pair.is_active) == (False, True)
