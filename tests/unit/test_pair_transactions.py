"""A transaction is done on both routers of a pair or on neither, whatever it contains (REPL-10)."""

import struct
from typing import Any

import numpy
import pytest

from paired_kit import PUBLISHER, Router, connect, disconnect, exchange, switch
from penstock.assured.config import EndpointConfig, Want
from penstock.assured.core.pair._receiving import apply_records
from penstock.assured.core.pair.protocol import PeerFrame, SwitchHere
from penstock.assured.core.router._records import DESTINATION_SIZE, MESSAGE_HEAD_SIZE, RECORD_MESSAGE
from penstock.assured.core.router.events import Data, LinkOpened, RequestReceived
from penstock.assured.wire._layout import (
    KIND_RECORDS,
    MESSAGE_WANTS_ASYNC,
    MESSAGE_WANTS_SYNC,
    OUTCOME_ASYNC,
    OUTCOME_STORED,
    OUTCOME_SYNC,
    SETTLE_ACKNOWLEDGED,
    SETTLE_REJECTED,
)
from penstock.assured.wire.control import Begin, Commit, Ended, OpenFlow, OpenPublisher
from penstock.assured.wire.frames import Deliver, Delivered, Published, encode_publish, encode_settle
from penstock.base.errors import RemoteProtocolError

LINK = 10
OTHER = 88
NONE = 0
TREATMENTS = [NONE, MESSAGE_WANTS_ASYNC, MESSAGE_WANTS_SYNC]


def queue(name: str, topic: str, **options: Any) -> EndpointConfig:
    return EndpointConfig(name=name, wants=(Want(topics=(topic,)),), **options)


class Clients:
    """One transactor, who consumes from `in` and publishes to `out`."""

    def __init__(self, router: Router) -> None:
        self.router = router
        router.tell(LinkOpened(LINK, "client"))
        for request, publisher in ((1, PUBLISHER), (2, OTHER)):
            router.tell(RequestReceived(LINK, OpenPublisher(request, publisher)))
        self.flows = {}
        for request, name in enumerate(("in", "out", "dead"), 3):
            router.tell(RequestReceived(LINK, OpenFlow(request, name, 1_000)))
            self.flows[name] = router.answers[request].handle

    def publish(self, first: int, *flags: int, topic: bytes = b"in.x", transaction: int = 0) -> None:
        messages = [Published(topic, b"payload", flags=each) for each in flags]
        handle = 2 if transaction else 1
        self.router.tell(Data(LINK, encode_publish(handle, first, messages, transaction=transaction)))

    def delivered(self, name: str) -> list[Delivered]:
        frames = [each for each in self.router.sent if isinstance(each, Deliver) and each.flow == self.flows[name]]
        return [message for frame in frames for message in frame.messages]

    def numbers(self, name: str) -> list[int]:
        return [each.number for each in self.delivered(name)]

    def transact(self, *flags: int, what: int = SETTLE_ACKNOWLEDGED) -> None:
        """Consumes everything, publishes these messages, and requests the commit."""
        self.router.tell(RequestReceived(LINK, Begin(20, 2, 1)))
        for each in self.delivered("in"):
            self.router.tell(Data(LINK, encode_settle(self.flows["in"], [(each.id, each.id, what)], transaction=1)))
        if flags:
            self.publish(1, *flags, topic=b"out.x", transaction=1)
        self.router.tell(RequestReceived(LINK, Commit(21, 2, 1)))

    @property
    def ended(self) -> Ended | None:
        return self.router.answers.get(21)


def pair_of_routers(*endpoints: EndpointConfig, **options: Any) -> tuple[Router, Router]:
    endpoints = endpoints or (queue("in", "in.>"), queue("out", "out.>"))
    options = options or {"replicate_by": "publisher"}
    one, other = Router("a", *endpoints, **options), Router("b", **options)
    connect(one, other)
    return one, other


def said(router: Router) -> PeerFrame:
    """The first answer, and the messages that the other router lacks."""
    return PeerFrame(1, router.frames.pop(0))


def count_of(router: Router, name: str) -> int:
    endpoint = router.router.endpoints.get(name)
    assert endpoint is not None
    return router.router.tables.endpoint_numbers(endpoint.number)["messages"]


@pytest.mark.spec("REPL-10")
@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_messages_consumed_in_a_transaction_are_redelivered_when_the_successor_never_had_it(
    treatment: int, is_restarted: bool
) -> None:
    """Also the messages that only the replaced router had, which are delivered when that router is active again."""
    one, other = pair_of_routers()
    clients = Clients(one)
    clients.publish(1, treatment)
    exchange(one, other)
    disconnect(one, other)
    clients.transact(MESSAGE_WANTS_SYNC, NONE)
    assert (clients.numbers("in"), clients.ended) == ([1], None)
    other.tell(SwitchHere(is_forced=True))
    if is_restarted:
        one = one.restart()
    connect(one, other)
    if is_restarted:
        one = one.restart()
        connect(one, other)
    assert (count_of(one, "in"), count_of(one, "out")) == (1, 0)
    switch(other, one)
    one.sent.clear()
    clients = Clients(one)
    assert (clients.numbers("in"), clients.numbers("out")) == ([1], [])


@pytest.mark.spec("REPL-10")
@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_messages_consumed_in_a_transaction_are_gone_when_the_successor_has_it(
    treatment: int, is_restarted: bool
) -> None:
    """Although the replaced router never learned that the successor has the transaction."""
    one, other = pair_of_routers()
    clients = Clients(one)
    clients.publish(1, treatment)
    exchange(one, other)
    clients.transact(MESSAGE_WANTS_SYNC, NONE)
    while one.frames:
        other.tell(said(one))
    disconnect(one, other)
    assert clients.ended is None
    other.tell(SwitchHere(is_forced=True))
    assert (count_of(other, "in"), count_of(other, "out")) == (0, 2)
    if is_restarted:
        one = one.restart()
    connect(one, other)
    assert (count_of(one, "in"), count_of(one, "out")) == (0, 2)
    switch(other, one)
    one.sent.clear()
    clients = Clients(one)
    assert (clients.numbers("in"), clients.numbers("out")) == ([], [1, 2])


@pytest.mark.spec("REPL-10")
@pytest.mark.parametrize(
    ("consumed", "published", "outcome"),
    [
        (NONE, [NONE], OUTCOME_STORED),
        (NONE, [MESSAGE_WANTS_ASYNC, NONE], OUTCOME_ASYNC),
        (NONE, [MESSAGE_WANTS_SYNC, MESSAGE_WANTS_ASYNC, NONE], OUTCOME_SYNC),
        (MESSAGE_WANTS_ASYNC, [NONE], OUTCOME_SYNC),
        (MESSAGE_WANTS_SYNC, [NONE], OUTCOME_SYNC),
        (MESSAGE_WANTS_ASYNC, [], OUTCOME_SYNC),
    ],
)
def test_all_parts_of_a_transaction_are_replicated_alike(consumed: int, published: list[int], outcome: int) -> None:
    """In the strongest mode of its parts; synchronously if the other router has the consumed messages."""
    one, other = pair_of_routers()
    clients = Clients(one)
    clients.publish(1, consumed)
    exchange(one, other)
    clients.transact(*published)
    is_awaited = outcome == OUTCOME_SYNC
    assert (clients.ended is None) == is_awaited
    assert count_of(one, "in") == is_awaited
    exchange(one, other)
    assert clients.ended == Ended(0, "committed", outcome)
    copies = len(published) if outcome != OUTCOME_STORED else 0
    assert (count_of(one, "in"), count_of(one, "out")) == (0, len(published))
    assert (count_of(other, "in"), count_of(other, "out")) == (0, copies)
    assert one.restart().router.tables.message_count == len(published)


@pytest.mark.spec("REPL-10")
def test_uncopied_messages_reach_the_other_router_before_their_transaction() -> None:
    """If that router takes over between the two, the message is there, and not consumed."""
    one, other = pair_of_routers()
    clients = Clients(one)
    exchange(one, other)
    clients.publish(1, MESSAGE_WANTS_SYNC)
    clients.transact(NONE)
    other.tell(said(one))
    assert (count_of(other, "in"), count_of(other, "out")) == (1, 0)
    exchange(one, other)
    assert (count_of(other, "in"), count_of(other, "out")) == (0, 1)


@pytest.mark.spec("REPL-10", "REPL-12")
@pytest.mark.parametrize("is_copied", [False, True])
def test_messages_rejected_in_a_transaction_are_given_up_with_it(is_copied: bool) -> None:
    one, other = pair_of_routers()
    clients = Clients(one)
    clients.publish(1, MESSAGE_WANTS_SYNC, NONE)
    exchange(one, other)
    clients.transact(MESSAGE_WANTS_SYNC, what=SETTLE_REJECTED)
    assert clients.numbers("dead") == []
    if is_copied:
        exchange(one, other)
        assert clients.numbers("dead") == [1, 2]
        assert (count_of(other, "in"), count_of(other, "dead")) == (0, 1)
        return
    disconnect(one, other)
    other.tell(SwitchHere(is_forced=True))
    one = one.restart()
    connect(one, other)
    assert (count_of(one, "in"), count_of(one, "dead"), count_of(one, "out")) == (2, 0, 0)


@pytest.mark.spec("REPL-10", "REPL-3")
@pytest.mark.parametrize("lost", ["before the commit", "before the other router has it", "before it says so"])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_messages_rejected_in_a_transaction_are_never_on_one_router_only(lost: str, is_restarted: bool) -> None:
    """Although the link is lost before both have executed it: at all times the message is in one of the two queues."""
    one, other = pair_of_routers()
    clients = Clients(one)
    clients.publish(1, MESSAGE_WANTS_SYNC, MESSAGE_WANTS_SYNC)
    exchange(one, other)
    if lost == "before the commit":
        disconnect(one, other)
    clients.transact(MESSAGE_WANTS_SYNC, what=SETTLE_REJECTED)
    while one.frames and lost == "before it says so":
        other.tell(said(one))
    assert clients.ended is None
    disconnect(one, other)
    if is_restarted:
        one = one.restart()
    connect(one, other, 0)
    while one.frames or other.frames:
        exchange(one, other, 1)
        assert count_of(other, "in") + count_of(other, "dead") == 2
    for each in (one, other):
        assert (count_of(each, "in"), count_of(each, "dead"), count_of(each, "out")) == (0, 2, 1)
    switch(one, other)
    clients = Clients(other)
    assert (clients.numbers("in"), clients.numbers("dead"), clients.numbers("out")) == ([], [1, 2], [1])


@pytest.mark.spec("REPL-10", "REPL-3")
@pytest.mark.parametrize("dead_to", ["dead", ""])
def test_a_message_that_two_endpoints_reject_in_a_transaction_is_given_up_once(dead_to: str) -> None:
    """Also when it is reported on a new link; and not at all if there is no dead-letter endpoint."""
    one, other = pair_of_routers(
        queue("in", "in.>", dead_to=dead_to), queue("also", "in.>", dead_to=dead_to), queue("out", "out.>")
    )
    clients = Clients(one)
    one.tell(RequestReceived(LINK, OpenFlow(6, "also", 1_000)))
    clients.publish(1, MESSAGE_WANTS_SYNC)
    exchange(one, other)
    one.tell(RequestReceived(LINK, Begin(20, 2, 1)))
    message = clients.delivered("in")[0].id
    for flow in (clients.flows["in"], one.answers[6].handle):
        one.tell(Data(LINK, encode_settle(flow, [(message, message, SETTLE_REJECTED)], transaction=1)))
    one.tell(RequestReceived(LINK, Commit(21, 2, 1)))
    disconnect(one, other)
    connect(one, other)
    assert clients.ended == Ended(0, "committed", OUTCOME_SYNC)
    for each in (one, other, other.restart()):
        assert [count_of(each, name) for name in ("in", "also", "dead")] == [0, 0, 1 if dead_to else 0]


@pytest.mark.spec("REPL-10", "REPL-4")
@pytest.mark.parametrize("is_copied", [False, True])
def test_messages_to_an_endpoint_without_copies_stay_or_vanish_with_their_transaction(is_copied: bool) -> None:
    one, other = pair_of_routers(
        queue("in", "in.>", replication="synchronous"), queue("out", "out.>"), replicate_by="endpoint"
    )
    clients = Clients(one)
    clients.publish(1, NONE)
    exchange(one, other)
    if not is_copied:
        disconnect(one, other)
    clients.transact(NONE)
    if is_copied:
        exchange(one, other)
        disconnect(one, other)
    other.tell(SwitchHere(is_forced=True))
    one = one.restart()
    connect(one, other)
    assert (count_of(one, "in"), count_of(one, "out")) == (not is_copied, is_copied)
    assert (count_of(other, "in"), count_of(other, "out")) == (not is_copied, 0)


@pytest.mark.spec("REPL-7", "REPL-4")
def test_a_returning_router_keeps_the_messages_of_its_endpoints_without_copies() -> None:
    one, other = pair_of_routers(
        queue("in", "in.>", replication="synchronous"),
        queue("out", "out.>"),
        queue("also", "in.>"),
        replicate_by="endpoint",
    )
    clients = Clients(one)
    clients.publish(1, NONE)
    exchange(one, other)
    disconnect(one, other)
    other.tell(SwitchHere(is_forced=True))
    connect(one, other)
    assert (count_of(one, "in"), count_of(one, "also")) == (1, 1)
    assert (count_of(other, "in"), count_of(other, "also")) == (1, 0)


def message_to_nobody(message: int, destinations: int) -> bytes:
    """A RECORDS frame with this message, for unknown endpoints."""
    size = MESSAGE_HEAD_SIZE + destinations * DESTINATION_SIZE
    head = struct.pack(
        "<BBBBIIHHQQQqqHHI", RECORD_MESSAGE, 0, 0, 2, size, 0, 0, destinations, message, 1, 1, 0, 0, 0, 0, 0
    )
    return struct.pack("<BBHIQ", KIND_RECORDS, 0, 0, 1, 1) + head + bytes(destinations * DESTINATION_SIZE)


@pytest.mark.spec("REPL-7", "REPL-4")
def test_a_message_to_more_endpoints_than_a_record_holds_is_refused_before_it_is_logged() -> None:
    """Endpoints that only this router has count, too: otherwise a restart would find an invalid record."""
    router, _ = pair_of_routers(queue("also", "in.>"), replicate_by="endpoint")
    router.tell(LinkOpened(LINK, "client"))
    router.tell(RequestReceived(LINK, OpenPublisher(1, PUBLISHER)))
    tables = router.router.tables
    message, numbers = tables.next_id, numpy.zeros(1, numpy.uint32)
    router.tell(Data(LINK, encode_publish(1, 1, [Published(b"in.x", b"payload")])))
    assert count_of(router, "also") == 1
    logged = tables.log.next_sequence
    with pytest.raises(RemoteProtocolError, match="65535 endpoints"):
        apply_records(tables, message_to_nobody(message, 65_535), numbers)
    assert tables.log.next_sequence == logged
    apply_records(tables, message_to_nobody(message, 65_534), numbers)
    assert (tables.log.next_sequence, count_of(router, "also")) == (logged + 1, 1)


@pytest.mark.spec("REPL-10")
def test_cleaning_the_log_keeps_the_state_of_a_transaction_that_the_other_router_lacks() -> None:
    one, other = pair_of_routers(replicate_by="publisher", retain_s=0, section_bytes=4_096)
    clients = Clients(one)
    clients.publish(1, NONE)
    disconnect(one, other)
    clients.transact(MESSAGE_WANTS_SYNC)
    first = min(one.journal.records)
    for number in range(2, 400):
        clients.publish(number, NONE)
        newest = clients.delivered("in")[-1].id
        one.tell(Data(LINK, encode_settle(clients.flows["in"], [(newest, newest, SETTLE_ACKNOWLEDGED)])))
    assert min(one.journal.records) > first + 100
    assert (clients.ended, count_of(one, "in")) == (None, 1)
    one = one.restart()
    assert (count_of(one, "in"), count_of(one, "out")) == (1, 1)
    other.tell(SwitchHere(is_forced=True))
    connect(one, other)
    assert (count_of(one, "in"), count_of(one, "out")) == (1, 0)
    switch(other, one)
    one.sent.clear()
    assert Clients(one).numbers("in") == [1]
