"""What holds at both routers of a pair over switches, restarts and lost links (REPL-7, REPL-8, REPL-10, REPL-13)."""

from typing import Any

import pytest

from assured_kit import MemoryJournal
from penstock.assured._layout import MESSAGE_RESENT, OUTCOME_DEGRADED, OUTCOME_SYNC
from penstock.assured.config import EndpointConfig, RouterConfig, Want
from penstock.assured.core import MessageRouter
from penstock.assured.events import (
    Answer,
    Append,
    Begin,
    Beginning,
    Commit,
    CreateEndpoint,
    Data,
    Ended,
    LinkOpened,
    OpenFlow,
    OpenPublisher,
    ReadRecords,
    RecordsRead,
    Refused,
    RemoveBefore,
    Replay,
    SendData,
    Start,
    Stored,
)
from penstock.assured.frames import Acknowledge, Deliver, Published, decode_frames, encode_publish, encode_settle
from penstock.assured.pair import Pair
from penstock.assured.pairing import Degrade, PairConfig, PeerClosed, PeerFrame, PeerOpened, PeerSend, SwitchHere
from penstock.base.core import Tick
from penstock.net.framing import FrameDecoder
from penstock.sim import SeededRandomness

QUEUE = EndpointConfig(name="q", wants=(Want(topics=("a.>",)),), replication="synchronous")
PUBLISHER = 777


class Router:
    """One of a pair, with a journal in memory that is always on the disk."""

    def __init__(self, name: str, *endpoints: EndpointConfig, journal: MemoryJournal | None = None) -> None:
        self.name = name
        self.endpoints = endpoints
        self.journal = journal or MemoryJournal()
        randomness = SeededRandomness(1, name)
        self.router = MessageRouter(RouterConfig(name=name, endpoints=endpoints, retain_s=60), randomness)
        self.pair = Pair(self.router, PairConfig(routers=("a", "b")), randomness)
        self.frames: list[bytes] = []
        self.sent: list[Any] = []
        self.answers: dict[int, Any] = {}
        self._decoder = FrameDecoder(2**24)
        if self.journal.records:
            self.pair.handle(Replay(*self.journal.batch(sorted(self.journal.records))), 0)
        self.tell(Start(self.journal.next_sequence, 0))

    def restart(self) -> "Router":
        return Router(self.name, *self.endpoints, journal=self.journal)

    def tell(self, event: Any) -> None:
        events = [event]
        while events:
            for each in self.pair.handle(events.pop(0), 0):
                events += self._carried_out(each)

    def _carried_out(self, each: Any) -> list[Any]:
        match each:
            case Append():
                self.journal.append(each)
                return [Stored(each.through)]
            case ReadRecords():
                found = self._found(each)
                return [RecordsRead(each.request, *self.journal.batch(found), min(self.journal.records))]
            case RemoveBefore(sequence):
                self.journal.remove_before(sequence)
            case PeerSend(_, data):
                self.frames += self._decoder.feed(data)
            case SendData(_, data):
                self.sent += decode_frames(data)
            case Answer(_, request, answer):
                self.answers[request] = answer
        return []

    def _found(self, read: ReadRecords) -> list[int]:
        if len(read.sequences):
            return [int(each) for each in read.sequences if int(each) in self.journal.records]
        return [each for each in sorted(self.journal.records) if each > read.after]

    def clients(self, link: int) -> None:
        self.tell(LinkOpened(link, "client", is_operator=True))
        self.tell(OpenPublisher(link, 1, PUBLISHER))
        self.tell(OpenFlow(link, 2, "q", 100))

    def publish(self, first: int, count: int = 1, *, transaction: int = 0, flags: int = 0) -> None:
        published = [Published(b"a.x", b"payload", flags=flags) for _ in range(count)]
        self.tell(Data(10, encode_publish(1, first, published, transaction=transaction)))

    @property
    def outcomes(self) -> dict[int, int]:
        runs = [run for each in self.sent if isinstance(each, Acknowledge) for run in each.runs]
        return {number: outcome for first, last, outcome in runs for number in range(first, last + 1)}

    @property
    def delivered(self) -> list[int]:
        frames = [each for each in self.sent if isinstance(each, Deliver)]
        return [message.number for frame in frames for message in frame.messages]

    @property
    def ids(self) -> list[int]:
        frames = [each for each in self.sent if isinstance(each, Deliver)]
        return [message.id for frame in frames for message in frame.messages]


def exchange(one: Router, other: Router, frames_max: int = 1_000) -> None:
    """Until neither has anything more to say, or so many frames were said."""
    while (one.frames or other.frames) and frames_max:
        for here, there in ((one, other), (other, one)):
            while here.frames and frames_max:
                frames_max -= 1
                there.tell(PeerFrame(1, here.frames.pop(0)))


def connect(one: Router, other: Router, frames_max: int = 1_000) -> None:
    for each in (one, other):
        each.frames.clear()
        each.tell(PeerOpened(1))
    exchange(one, other, frames_max)


def disconnect(one: Router, other: Router) -> None:
    for each in (one, other):
        each.frames.clear()
        each.tell(PeerClosed(1))


def pair_of_routers() -> tuple[Router, Router]:
    one, other = Router("a", QUEUE), Router("b")
    connect(one, other)
    one.clients(10)
    exchange(one, other)
    assert one.pair.is_active
    return one, other


def switch(one: Router, other: Router) -> None:
    """In order."""
    other.tell(SwitchHere())
    exchange(one, other)
    assert (one.pair.is_active, other.pair.is_active) == (False, True)


@pytest.mark.spec("REPL-10")
def test_a_synchronous_transaction_is_delivered_when_the_other_router_has_it_and_what_follows_stays_behind() -> None:
    """A switch before would roll back what somebody has consumed."""
    one, other = pair_of_routers()
    one.tell(Begin(10, 3, 1, 1))
    one.publish(1, 2, transaction=1)
    one.tell(Commit(10, 4, 1, 1))
    one.publish(3)
    assert (one.delivered, one.outcomes, 4 in one.answers) == ([], {}, False)
    exchange(one, other)
    assert one.answers[4] == Ended("committed", OUTCOME_SYNC)
    assert one.delivered == [1, 2, 3]
    one.publish(4)
    assert one.delivered == [1, 2, 3, 4], "single messages are delivered in parallel"


@pytest.mark.spec("REPL-10")
def test_a_transaction_that_only_consumes_is_answered_when_the_other_router_has_it() -> None:
    one, other = pair_of_routers()
    one.publish(1, 2)
    exchange(one, other)
    one.tell(Begin(10, 3, 1, 1))
    one.tell(Data(10, encode_settle(1, [(one.ids[0], one.ids[1], 1)], transaction=1)))
    one.tell(Commit(10, 4, 1, 1))
    assert 4 not in one.answers
    assert other.router.tables.message_count == 2
    exchange(one, other)
    assert one.answers[4] == Ended("committed", OUTCOME_SYNC)
    assert other.router.tables.message_count == 0


@pytest.mark.spec("REPL-3")
def test_a_synchronous_message_that_comes_again_is_acknowledged_when_the_other_router_has_it() -> None:
    one, other = pair_of_routers()
    one.publish(1)
    exchange(one, other)
    switch(one, other)
    disconnect(one, other)
    other.clients(10)
    other.publish(1, flags=MESSAGE_RESENT)
    assert (other.outcomes, other.delivered) == ({}, [1])
    connect(one, other)
    assert other.outcomes == {1: OUTCOME_SYNC}
    other.publish(1, flags=MESSAGE_RESENT)
    assert other.outcomes == {1: OUTCOME_SYNC}


@pytest.mark.spec("REPL-10")
def test_how_a_transaction_ended_is_told_by_the_successor_when_both_agree() -> None:
    one, other = pair_of_routers()
    one.tell(Begin(10, 3, 1, 1))
    one.publish(1, 2, transaction=1)
    one.tell(Commit(10, 4, 1, 1))
    exchange(one, other)
    switch(one, other)
    other.clients(10)
    disconnect(one, other)
    other.tell(Commit(10, 5, 1, 1))
    other.tell(Commit(10, 6, 1, 2))
    assert not {5, 6} & other.answers.keys(), "the other router could take over, and have it otherwise"
    connect(one, other)
    assert other.answers[5] == Ended("committed", OUTCOME_SYNC)
    assert other.answers[6] == Ended("rolled_back")


@pytest.mark.spec("REPL-10")
def test_what_the_successor_was_not_told_of_a_transaction_it_learns_when_it_catches_up() -> None:
    one, other = pair_of_routers()
    disconnect(one, other)
    one.tell(Degrade(is_ordered=True))
    one.tell(Begin(10, 3, 1, 1))
    one.publish(1, 2, transaction=1)
    one.tell(Commit(10, 4, 1, 1))
    assert one.answers[4] == Ended("committed", OUTCOME_DEGRADED)
    one.tell(Degrade(is_ordered=False))
    connect(one, other)
    switch(one, other)
    other.clients(10)
    other.tell(Commit(10, 5, 1, 1))
    exchange(one, other)
    assert other.answers[5] == Ended("committed", OUTCOME_SYNC)


@pytest.mark.spec("REPL-7")
def test_what_only_the_replaced_router_knew_is_not_known_when_it_comes_again() -> None:
    """It was never acknowledged, and is dropped: whoever sends it again must not be told that it is there."""
    one, other = pair_of_routers()
    disconnect(one, other)
    one.publish(1)
    assert one.outcomes == {}
    other.tell(SwitchHere(is_forced=True))
    connect(one, other)
    assert (one.pair.is_active, one.router.tables.message_count) == (False, 0)
    switch(other, one)
    one.sent.clear()
    one.clients(10)
    one.publish(1, flags=MESSAGE_RESENT)
    exchange(one, other)
    assert (one.outcomes, one.delivered) == ({1: OUTCOME_SYNC}, [1])
    assert other.router.tables.message_count == 1


@pytest.mark.spec("REPL-8")
def test_what_was_acknowledged_as_degraded_stays_with_a_router_that_was_replaced_by_force_also_after_restarts() -> None:
    one, other = pair_of_routers()
    disconnect(one, other)
    one.tell(Degrade(is_ordered=True))
    one.publish(1)
    assert one.outcomes == {1: OUTCOME_DEGRADED}
    one = one.restart()
    other.tell(SwitchHere(is_forced=True))
    other = other.restart()
    other.tell(SwitchHere(is_forced=True))
    for _ in range(2):
        connect(one, other)
        assert (one.router.tables.message_count, other.router.tables.message_count) == (1, 0)
        one = one.restart()
    connect(one, other)
    switch(other, one)
    one.clients(10)
    assert one.delivered == [1]


@pytest.mark.spec("REPL-7")
def test_the_router_that_was_active_goes_on_also_after_two_restarts() -> None:
    one, other = pair_of_routers()
    one.publish(1)
    one = one.restart().restart()
    other = other.restart()
    connect(one, other)
    assert (one.pair.is_active, other.pair.is_active) == (True, False)
    assert one.pair.epoch > 1


@pytest.mark.spec("REPL-8")
def test_a_router_that_catches_up_is_not_to_take_over_and_its_log_knows_it() -> None:
    one, other = pair_of_routers()
    disconnect(one, other)
    one.publish(1, 3)
    for each in (one, other):
        each.tell(PeerOpened(1))
    for _ in range(20):
        exchange(one, other, 1)
        if other.router.log.is_partial:
            break
    assert other.router.log.is_partial
    other = other.restart()
    assert other.router.log.is_partial
    connect(one, other)
    assert not other.router.log.is_partial
    assert not other.restart().router.log.is_partial


@pytest.mark.spec("REPL-13")
def test_what_an_endpoint_gets_out_of_the_log_reaches_the_other_router_at_once() -> None:
    one, other = pair_of_routers()
    one.publish(1, 3)
    exchange(one, other)
    one.tell(Data(10, encode_settle(1, [(one.ids[0], one.ids[2], 1)])))
    exchange(one, other)
    assert other.router.tables.message_count == 0
    late = EndpointConfig(name="late", wants=(Want(topics=("a.>",)),), replication="synchronous")
    one.tell(CreateEndpoint(10, 5, late, Beginning(message_id=1)))
    one.tell(Tick())
    exchange(one, other)
    assert (one.router.tables.message_count, other.router.tables.message_count) == (3, 3)


@pytest.mark.spec("REPL-6")
def test_whose_a_publisher_is_the_other_router_knows() -> None:
    """At once, and when it catches up."""
    one, other = pair_of_routers()
    switch(one, other)
    other.tell(LinkOpened(11, "mallory"))
    other.tell(OpenPublisher(11, 5, PUBLISHER))
    assert isinstance(other.answers[5], Refused)
    fresh = Router("a", QUEUE)
    connect(fresh, other)
    switch(other, fresh)
    fresh.tell(LinkOpened(11, "mallory"))
    fresh.tell(OpenPublisher(11, 5, PUBLISHER))
    assert isinstance(fresh.answers[5], Refused)


@pytest.mark.spec("REPL-10")
def test_the_largest_transaction_fits_a_frame() -> None:
    one, other = pair_of_routers()
    one.tell(Begin(10, 3, 1, 1))
    large = [Published(b"a.x", bytes(1_000_000)) for _ in range(4)]
    one.tell(Data(10, encode_publish(1, 1, large, transaction=1)))
    one.tell(Commit(10, 4, 1, 1))
    exchange(one, other)
    assert one.answers[4] == Ended("committed", OUTCOME_SYNC)
    assert other.router.tables.message_count == 4
