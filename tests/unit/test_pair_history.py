"""A pair of routers and messages that are only in the log: transactions larger than the cache (REPL-10), decisions on
rejected messages, and endpoints that begin in the past (REPL-13)."""

import pytest
from msgspec.structs import replace

from paired_kit import QUEUE, Router, connect, disconnect, exchange, switch
from penstock.assured.config import EndpointConfig, Want
from penstock.assured.core.pair.protocol import PeerFrame, SwitchHere
from penstock.assured.core.router.events import Data, LinkOpened, ReadRecords, RequestReceived
from penstock.assured.wire.control import AlterEndpoint, Begin, Commit, CreateEndpoint, DeleteEndpoint, Ended, OpenFlow
from penstock.assured.wire.frames import Deliver, Published, encode_publish, encode_settle
from penstock.base.core import Tick

KIB = 1_024
SYNC = 3
REDELIVERED, REPLAYED = 1, 2
REJECTED = 3
SMALL = {"cache_bytes": 64 * KIB, "message_bytes_max": 8 * KIB, "transaction_bytes_max": 514 * KIB}
FIRST = EndpointConfig(name="first", dead_to="", replication="synchronous")
SECOND = EndpointConfig(name="second", dead_to="", replication="synchronous")
LATE = EndpointConfig(name="late", wants=(Want(topics=("a.>",)),), replication="synchronous")


def held(router: Router) -> dict[str, int]:
    numbers = router.router.tables.endpoint_numbers
    return {each.name: numbers(each.number)["messages"] for each in router.router.endpoints if each.name != "dead"}


def transaction(router: Router, number: int, *payloads: bytes, first: int = 1, topics: tuple[bytes, ...] = ()) -> None:
    router.tell(RequestReceived(10, Begin(20, 1, number)))
    for index, payload in enumerate(payloads):
        published = [Published(topics[index] if topics else b"a.x", payload)]
        router.tell(Data(10, encode_publish(1, first + index, published, transaction=number)))
    router.tell(RequestReceived(10, Commit(21, 1, number)))


# Larger than the cache


@pytest.mark.parametrize("transactions", ["stream", "at_commit"])
def test_repl_10_a_transaction_larger_than_the_cache_reaches_the_other_router(transactions: str) -> None:
    pair = {"transactions": transactions}
    one, other = Router("a", QUEUE, pair=pair, **SMALL), Router("b", pair=pair, **SMALL)
    connect(one, other)
    one.clients(10)
    payloads = [bytes([each]) * 4 * KIB for each in range(60)]
    one.publish(1)
    transaction(one, 1, *payloads, first=2)
    one.publish(100)
    exchange(one, other)
    assert one.answers[21] == Ended(0, "committed", SYNC)
    assert one.outcomes[100] == SYNC
    assert held(one) == held(other) == {"q": 62}
    switch(one, other)
    other.tell(LinkOpened(11, "client"))
    other.tell(RequestReceived(11, OpenFlow(1, "q", 100)))
    assert other.payloads[1:-1] == payloads


class Forgetful(Router):
    """As if the records to read had been removed by cleaning."""

    is_forgetful = False

    def _found(self, read: ReadRecords) -> list[int]:
        return [] if self.is_forgetful else super()._found(read)


def test_repl_10_a_transaction_whose_record_was_cleaned_is_sent_as_single_messages() -> None:
    one, other = Forgetful("a", QUEUE, **SMALL), Router("b", **SMALL)
    connect(one, other)
    one.clients(10)
    one.is_forgetful = True
    transaction(one, 1, *(bytes(4 * KIB) for _ in range(60)))
    assert one.pair.sending is None  # the link was closed
    one.is_forgetful = False
    disconnect(one, other)
    connect(one, other)
    assert held(one) == held(other) == {"q": 60}
    assert one.answers[21] == Ended(0, "committed", SYNC)


# Destination of rejected messages


@pytest.mark.parametrize("how", ["linked", "relinked", "restarted"])
def test_repl_10_a_reject_in_a_transaction_goes_to_the_destination_at_the_commit(how: str) -> None:
    consumed = replace(QUEUE, dead_to="first")
    one, other = Router("a", FIRST, SECOND, consumed), Router("b", FIRST, SECOND)
    connect(one, other)
    one.clients(10)
    one.publish(1, 2)
    exchange(one, other)
    one.tell(RequestReceived(10, Begin(20, 1, 1)))
    one.tell(Data(10, encode_settle(1, [(one.ids[0], one.ids[1], REJECTED)], transaction=1)))
    if how != "linked":
        disconnect(one, other)
    one.tell(RequestReceived(10, Commit(21, 1, 1)))
    one.tell(RequestReceived(10, AlterEndpoint(9, replace(consumed, dead_to="second"))))
    if how == "restarted":
        one = one.restart()
    if how != "linked":
        connect(one, other)
    exchange(one, other)
    assert held(one) == held(other) == {"first": 2, "second": 0, "q": 0}
    switch(one, other)
    assert held(one) == held(other) == {"first": 2, "second": 0, "q": 0}


def test_a_reject_to_a_removed_endpoint_goes_to_the_existing_one() -> None:
    consumed = replace(QUEUE, dead_to="first")
    one, other = Router("a", FIRST, SECOND, consumed), Router("b", FIRST, SECOND)
    connect(one, other)
    one.clients(10)
    one.publish(1, 2)
    exchange(one, other)
    one.tell(RequestReceived(10, Begin(20, 1, 1)))
    one.tell(Data(10, encode_settle(1, [(one.ids[0], one.ids[1], REJECTED)], transaction=1)))
    disconnect(one, other)
    one.tell(RequestReceived(10, Commit(21, 1, 1)))
    one.tell(RequestReceived(10, AlterEndpoint(9, replace(consumed, dead_to="second"))))
    one.tell(RequestReceived(10, DeleteEndpoint(8, "first", False)))
    connect(one, other)
    exchange(one, other)
    assert held(one)["second"] == held(other)["second"] == 2


# Endpoints that begin in the past


def flags_delivered(router: Router, link: int, name: str) -> list[int]:
    router.tell(LinkOpened(link, "client"))
    router.tell(RequestReceived(link, OpenFlow(30, name, 100)))
    flow = router.answers[30].handle
    router.tell(Tick())
    return [
        each.flags
        for frame in router.sent
        if isinstance(frame, Deliver) and frame.flow == flow
        for each in frame.messages
    ]


def test_repl_13_messages_filled_by_a_successor_may_have_been_delivered_before() -> None:
    one, other = Router("a", QUEUE), Router("b")
    connect(one, other)
    one.clients(10)
    one.publish(1, 3)
    one.tell(Data(10, encode_settle(1, [(one.ids[0], one.ids[2], 1)])))
    exchange(one, other)
    one.tell(RequestReceived(10, CreateEndpoint(8, LATE, 1)))
    other.tell(PeerFrame(1, one.frames[0]))  # the definition of the endpoint; the other router gets no more of it
    assert flags_delivered(one, 11, "late") == [REPLAYED] * 3
    disconnect(one, other)
    other.tell(SwitchHere(is_forced=True))
    assert flags_delivered(other, 12, "late") == [REPLAYED | REDELIVERED] * 3


def test_repl_13_messages_undone_by_a_switch_are_not_found_in_the_log() -> None:
    one, other = Router("a", QUEUE), Router("b")
    connect(one, other)
    one.clients(10)
    one.publish(1, 2)
    exchange(one, other)
    disconnect(one, other)
    transaction(one, 1, b"undone", b"undone", b"unmatched", first=3, topics=(b"a.x", b"a.y", b"nobody.wants"))
    one.publish(6)
    assert set(one.outcomes) == {1, 2}
    other.tell(SwitchHere(is_forced=True))
    connect(one, other)
    assert held(one) == held(other) == {"q": 2}
    one = one.restart()
    connect(one, other)
    switch(other, one)
    one.tell(LinkOpened(11, "client", is_operator=True))
    one.tell(RequestReceived(11, CreateEndpoint(8, replace(LATE, wants=(Want(topics=(">",)),)), 1)))
    exchange(one, other)
    assert held(one) == held(other) == {"q": 2, "late": 2}
