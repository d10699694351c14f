"""Endpoints that only one router of a pair has, or that have no copies (REPL-3, REPL-6): what they have is on one disk,
and that is said; and it is not dropped when the other router has the endpoint, too."""

from typing import Any

import pytest
from msgspec.structs import replace

from paired_kit import QUEUE, Router, connect, disconnect, exchange, switch
from penstock.assured.config import EndpointConfig, Want
from penstock.assured.core.pair.protocol import PAIR, Degrade, Lacking, PeerFrame, SwitchHere
from penstock.assured.core.router._cleaning import log_publishers
from penstock.assured.core.router._records import RECORD_TRANSACTION
from penstock.assured.core.router.events import Data, LinkOpened, RequestReceived
from penstock.assured.live.observation import lacking_of
from penstock.assured.wire.control import (
    AlterEndpoint,
    Begin,
    Commit,
    CreateEndpoint,
    DeleteEndpoint,
    Done,
    EmptyEndpoint,
    Ended,
    OpenFlow,
    OpenPublisher,
)
from penstock.assured.wire.frames import Published, encode_publish, encode_settle
from penstock.base.core import Tick

SOLO = EndpointConfig(name="solo", wants=(Want(topics=("s.>", "a.both")),), replication="synchronous")
STORED, ASYNC, SYNC, DEGRADED, KNOWN = 1, 2, 3, 4, 5


def held(router: Router) -> dict[str, int]:
    numbers = router.router.tables.endpoint_numbers
    return {each.name: numbers(each.number)["messages"] for each in router.router.endpoints}


def by_hand(**options: Any) -> tuple[Router, Router]:
    """Each router has its own endpoints; the second has no `solo`."""
    pair = {"mirror": "none", **options.pop("pair", {})}
    one, other = Router("a", QUEUE, SOLO, pair=pair, **options), Router("b", QUEUE, pair=pair, **options)
    connect(one, other)
    relinked(one, other)
    one.clients(10)
    exchange(one, other)
    assert one.pair.is_active
    return one, other


def linked_to(router: Router) -> int:
    """A new link: those that there were end when a router begins to stand by anew."""
    router.tell(LinkOpened(20, "client", is_operator=True))
    return 20


def relinked(one: Router, other: Router) -> None:
    """Where the two have found other endpoints for a message, they part once."""
    if one.pair.sending is None or other.pair.receiving is None:
        disconnect(one, other)
        connect(one, other)


def publish(router: Router, number: int, topic: bytes, *, transaction: int = 0, flags: int = 0) -> None:
    published = [Published(topic, b"payload", flags=flags)]
    router.tell(Data(10, encode_publish(1, number, published, transaction=transaction)))


def sent(one: Router, other: Router, number: int, topic: bytes, **options: int) -> int | None:
    publish(one, number, topic, **options)
    exchange(one, other)
    return one.outcomes.get(number)


@pytest.mark.parametrize("matching", ["secondary", "primary"])
def test_repl_3_what_goes_where_the_other_router_has_no_endpoint_is_degraded(matching: str) -> None:
    one, other = by_hand(pair={"matching": matching})
    assert sent(one, other, 1, b"a.x") == SYNC
    assert sent(one, other, 2, b"s.x") == DEGRADED
    assert sent(one, other, 3, b"a.both") == DEGRADED
    assert sent(one, other, 4, b"a.x") == SYNC
    assert one.pair.sending is not None  # no link was ended
    assert lacking_of(one.pair) == lacking_of(other.pair) == ("solo",)
    assert held(one) == {"dead": 0, "q": 3, "solo": 2}
    assert held(other) == {"dead": 0, "q": 3}


def test_repl_3_where_publishers_decide_it_is_degraded_or_stored() -> None:
    one, other = by_hand(replicate_by="publisher")
    assert sent(one, other, 1, b"s.x", flags=1) == DEGRADED
    assert sent(one, other, 2, b"s.x", flags=2) == STORED
    assert sent(one, other, 3, b"a.x", flags=1) == SYNC
    assert sent(one, other, 4, b"a.x", flags=2) == ASYNC


def test_repl_3_the_publisher_of_a_message_that_comes_again_is_not_told_that_it_is_at_both() -> None:
    one, other = by_hand()
    sent(one, other, 1, b"s.x")
    one.sent.clear()
    assert sent(one, other, 1, b"s.x") == KNOWN
    switch(one, other)
    other.tell(RequestReceived(linked_to(other), OpenPublisher(1, 777)))
    other.tell(Data(20, encode_publish(1, 1, [Published(b"s.x", b"payload")])))
    exchange(one, other)
    assert other.outcomes == {1: KNOWN}


def test_repl_8_where_nothing_is_to_be_degraded_its_publisher_alone_waits_for_the_endpoint() -> None:
    one, other = by_hand(pair={"degrade": "never"})
    assert sent(one, other, 1, b"s.x") is None
    assert sent(one, other, 2, b"a.x") == SYNC
    one.tell(RequestReceived(10, Begin(5, 1, 1)))
    publish(one, 3, b"s.x", transaction=1)
    one.tell(RequestReceived(10, Commit(6, 1, 1)))
    exchange(one, other)
    assert 6 not in one.answers
    assert sent(one, other, 4, b"a.x") == SYNC
    other.tell(RequestReceived(linked_to(other), CreateEndpoint(9, SOLO)))
    exchange(one, other)
    relinked(one, other)
    assert one.outcomes[1] == SYNC
    assert one.answers[6] == Ended(0, "committed", SYNC)
    assert held(one) == held(other) == {"dead": 0, "q": 2, "solo": 2}


def test_repl_8_an_order_to_degrade_lets_it_go() -> None:
    one, other = by_hand(pair={"degrade": "never"})
    assert sent(one, other, 1, b"s.x") is None
    one.tell(Degrade(True))
    exchange(one, other)
    assert one.outcomes[1] == DEGRADED


def test_repl_10_a_transaction_is_degraded_that_publishes_there() -> None:
    one, other = by_hand()
    one.tell(RequestReceived(10, Begin(5, 1, 1)))
    publish(one, 1, b"a.x", transaction=1)
    publish(one, 2, b"s.x", transaction=1)
    one.tell(RequestReceived(10, Commit(6, 1, 1)))
    exchange(one, other)
    assert one.answers[6] == Ended(0, "committed", DEGRADED)
    one.tell(RequestReceived(10, Begin(7, 1, 2)))
    publish(one, 3, b"a.x", transaction=2)
    one.tell(RequestReceived(10, Commit(8, 1, 2)))
    exchange(one, other)
    assert one.answers[8] == Ended(0, "committed", SYNC)


def test_repl_6_when_the_other_router_has_the_endpoint_it_gets_what_there_is() -> None:
    one, other = by_hand()
    sent(one, other, 1, b"s.x")
    sent(one, other, 2, b"a.both")
    other.tell(RequestReceived(linked_to(other), CreateEndpoint(9, SOLO)))
    assert other.answers[9] == Done(0)
    exchange(one, other)
    relinked(one, other)
    assert lacking_of(one.pair) == lacking_of(other.pair) == ()
    assert held(one) == held(other) == {"dead": 0, "q": 1, "solo": 2}
    assert sent(one, other, 3, b"s.x") == SYNC
    switch(one, other)
    assert held(one) == held(other) == {"dead": 0, "q": 1, "solo": 3}


@pytest.mark.parametrize("matching", ["secondary", "primary"])
@pytest.mark.parametrize("is_made_anew", [False, True])
@pytest.mark.parametrize("frames", range(1, 16))
def test_repl_3_an_endpoint_that_is_made_while_the_two_compare_is_at_both(
    frames: int, is_made_anew: bool, matching: str
) -> None:
    one, other = by_hand(pair={"matching": matching})
    if is_made_anew:
        other.tell(RequestReceived(linked_to(other), CreateEndpoint(9, SOLO)))
        exchange(one, other)
        relinked(one, other)
    sent(one, other, 1, b"s.x")
    disconnect(one, other)
    connect(one, other, frames)
    if is_made_anew:
        other.tell(RequestReceived(linked_to(other), DeleteEndpoint(8, "solo", False)))
    other.tell(RequestReceived(linked_to(other), CreateEndpoint(7, SOLO)))
    assert other.answers[7] == Done(0)
    exchange(one, other)
    relinked(one, other)
    assert lacking_of(one.pair) == lacking_of(other.pair) == ()
    assert held(one) == held(other) == {"dead": 0, "q": 0, "solo": 1}
    publish(one, 2, b"s.x")
    exchange(one, other)
    assert one.pair.sending is not None  # no link was ended: the two are of one mind
    assert one.outcomes[2] == SYNC
    assert held(one) == held(other) == {"dead": 0, "q": 0, "solo": 2}


def test_repl_6_an_endpoint_that_is_deleted_at_the_other_router_is_lacking_from_then_on() -> None:
    one, other = by_hand()
    other.tell(RequestReceived(linked_to(other), CreateEndpoint(9, SOLO)))
    exchange(one, other)
    assert sent(one, other, 1, b"s.x") == SYNC
    other.tell(RequestReceived(linked_to(other), DeleteEndpoint(8, "solo", False)))
    exchange(one, other)
    relinked(one, other)
    assert lacking_of(one.pair) == lacking_of(other.pair) == ("solo",)
    publish(one, 2, b"s.x")
    exchange(one, other)
    relinked(one, other)
    assert one.outcomes[2] == DEGRADED
    other.tell(RequestReceived(linked_to(other), CreateEndpoint(7, SOLO)))
    exchange(one, other)
    relinked(one, other)
    assert held(one) == held(other) == {"dead": 0, "q": 0, "solo": 2}


def test_an_endpoint_that_comes_later_is_lacking_before_anything_of_it_is_acknowledged() -> None:
    one, other = by_hand()
    one.tell(RequestReceived(10, CreateEndpoint(9, replace(SOLO, name="late", wants=(Want(topics=("late.>",)),)))))
    publish(one, 1, b"late.x")
    exchange(one, other)
    relinked(one, other)
    assert one.outcomes[1] == DEGRADED
    assert lacking_of(one.pair) == ("late", "solo")
    one.tell(RequestReceived(10, DeleteEndpoint(8, "late", False)))
    exchange(one, other)
    relinked(one, other)
    assert lacking_of(one.pair) == lacking_of(other.pair) == ("solo",)


def test_repl_6_a_planned_switch_says_what_stays_behind_and_it_is_there_afterwards() -> None:
    local = EndpointConfig(name="local", wants=(Want(topics=("local.>",)),))
    one, other = by_hand()
    for each in (one, other):
        each.tell(RequestReceived(linked_to(each), CreateEndpoint(9, local)))
    exchange(one, other)
    relinked(one, other)
    for number, topic in enumerate((b"s.x", b"a.both", b"s.y", b"local.x", b"a.x"), 1):
        sent(one, other, number, topic)
    relinked(one, other)
    switch(one, other)
    assert other.pair.planned_switch.left_there == {"solo": 3, "local": 1}
    switch(other, one)
    assert one.pair.planned_switch.left_there == {}
    assert held(one) == {"dead": 0, "q": 2, "solo": 3, "local": 1}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_a_router_has_alone_stays_when_the_other_one_gets_the_endpoint(is_restarted: bool) -> None:
    """It was acknowledged as degraded: it is stranded, and comes when its router is active again."""
    one, other = by_hand()
    for number, topic in enumerate((b"s.x", b"a.both", b"a.x"), 1):
        sent(one, other, number, topic)
    switch(one, other)
    if is_restarted:
        disconnect(one, other)
        one = one.restart()
        connect(one, other)
    other.tell(RequestReceived(linked_to(other), CreateEndpoint(9, SOLO)))
    exchange(one, other)
    disconnect(one, other)
    connect(one, other)
    assert held(one) == {"dead": 0, "q": 2, "solo": 2}
    switch(other, one)
    assert held(one) == held(other) == {"dead": 0, "q": 2, "solo": 2}
    # at both from now on: what one of them settles is gone at the other, also after a broken link
    switch(one, other)
    assert not any(each.definition.own_through for each in one.router.endpoints)
    disconnect(one, other)
    other.tell(RequestReceived(linked_to(other), EmptyEndpoint(8, "solo")))
    connect(one, other)
    assert held(one) == held(other) == {"dead": 0, "q": 2, "solo": 0}


LOCAL = replace(SOLO, name="local", wants=(Want(topics=("a.>",)),), replication="none")


def mirrored() -> tuple[Router, Router]:
    """What `local` has of synchronous messages is at the first router only."""
    one, other = Router("a", QUEUE, LOCAL), Router("b")
    connect(one, other)
    one.clients(10)
    one.publish(1, 3)
    exchange(one, other)
    assert one.outcomes == {1: SYNC, 2: SYNC, 3: SYNC}
    assert (held(one)["local"], held(other)["local"]) == (3, 0)
    return one, other


@pytest.mark.parametrize("is_linked", [True, False])
def test_what_a_router_has_alone_stays_when_the_endpoint_is_made_a_replicated_one(is_linked: bool) -> None:
    one, other = mirrored()
    switch(one, other)
    if not is_linked:
        disconnect(one, other)
    other.tell(RequestReceived(linked_to(other), AlterEndpoint(9, replace(LOCAL, replication="synchronous"))))
    assert other.answers[9] == Done(0)
    if not is_linked:
        one = one.restart()
        connect(one, other)
    exchange(one, other)
    assert (held(one)["local"], held(other)["local"]) == (3, 0)
    one = one.restart()
    connect(one, other)
    assert (held(one)["local"], held(other)["local"]) == (3, 0)
    switch(other, one)
    assert held(one) == held(other) == {"dead": 0, "q": 3, "local": 3}
    switch(one, other)
    other.tell(RequestReceived(linked_to(other), EmptyEndpoint(8, "local")))
    exchange(one, other)
    assert held(one) == held(other) == {"dead": 0, "q": 3, "local": 0}


def test_what_is_made_replicated_and_has_not_reached_the_other_router_stays_when_that_takes_over() -> None:
    one, other = mirrored()
    disconnect(one, other)
    one.tell(RequestReceived(10, AlterEndpoint(9, replace(LOCAL, replication="synchronous"))))
    other.tell(SwitchHere(is_forced=True))
    one = one.restart()
    connect(one, other)
    other.tell(RequestReceived(linked_to(other), AlterEndpoint(9, replace(LOCAL, replication="synchronous"))))
    exchange(one, other)
    assert held(one)["local"] == 3


def test_what_a_router_has_alone_stays_when_its_message_comes_again_for_another_endpoint() -> None:
    one, other = mirrored()
    switch(one, other)
    other.tell(RequestReceived(linked_to(other), AlterEndpoint(9, replace(LOCAL, replication="synchronous"))))
    other.tell(RequestReceived(20, AlterEndpoint(8, replace(QUEUE, dead_to="local"))))
    exchange(one, other)
    other.tell(RequestReceived(20, OpenFlow(7, "q", 100)))
    disconnect(one, other)
    other.tell(Data(20, encode_settle(1, [(other.ids[0], other.ids[1], 3)])))
    connect(one, other)
    assert held(other) == {"dead": 0, "q": 1, "local": 2}
    assert held(one) == {"dead": 0, "q": 1, "local": 3}
    switch(other, one)
    assert held(one) == held(other) == {"dead": 0, "q": 1, "local": 3}


def test_what_only_one_router_has_by_now_stays_whoever_took_it_first() -> None:
    """The other one dropped its copies when the endpoint was made one without; it had taken the messages itself."""
    one, other = Router("a", QUEUE, replace(LOCAL, replication="synchronous")), Router("b")
    connect(one, other)
    one.clients(10)
    one.publish(1, 3)
    exchange(one, other)
    switch(one, other)
    other.tell(RequestReceived(linked_to(other), AlterEndpoint(9, LOCAL)))
    exchange(one, other)
    assert (held(one)["local"], held(other)["local"]) == (0, 3)
    switch(other, one)
    one.tell(RequestReceived(linked_to(one), AlterEndpoint(9, replace(LOCAL, replication="synchronous"))))
    exchange(one, other)
    assert (held(one)["local"], held(other)["local"]) == (0, 3)
    switch(one, other)
    assert held(one) == held(other) == {"dead": 0, "q": 3, "local": 3}


def test_repl_5_copies_of_what_was_altered_to_and_fro_are_dropped_as_others_when_they_are_settled() -> None:
    one, other = mirrored()
    one.tell(RequestReceived(10, AlterEndpoint(9, replace(LOCAL, replication="synchronous"))))
    exchange(one, other)
    one.tell(RequestReceived(10, AlterEndpoint(8, LOCAL)))
    exchange(one, other)
    one.tell(RequestReceived(10, AlterEndpoint(7, replace(LOCAL, replication="synchronous"))))
    exchange(one, other)
    assert held(one) == held(other) == {"dead": 0, "q": 3, "local": 3}
    disconnect(one, other)
    one.tell(RequestReceived(10, EmptyEndpoint(6, "local")))
    connect(one, other)
    assert held(one) == held(other) == {"dead": 0, "q": 3, "local": 0}


def test_repl_5_copies_beside_what_a_router_has_alone_are_dropped_as_others() -> None:
    one, other = mirrored()
    switch(one, other)
    number = 3
    for endpoint in (replace(LOCAL, replication="synchronous"), LOCAL):
        other.tell(RequestReceived(linked_to(other), OpenPublisher(5, 777)))
        number += 1
        other.tell(Data(20, encode_publish(other.answers[5].handle, number, [Published(b"a.x", b"payload")])))
        exchange(one, other)
        other.tell(RequestReceived(20, AlterEndpoint(9, endpoint)))
        exchange(one, other)
    assert held(other)["local"] == 2
    assert held(one)["local"] == 3  # which only this router ever had
    switch(other, one)
    assert held(one)["local"] == 3


@pytest.mark.parametrize("matching", ["secondary", "primary"])
def test_repl_5_an_endpoint_that_has_no_copies_at_the_other_router_is_lacking_there(matching: str) -> None:
    """Nobody would tell it what was settled meanwhile: that would come again after a switch."""
    pair = {"mirror": "none", "matching": matching}
    one, other = Router("a", QUEUE, SOLO, pair=pair), Router("b", QUEUE, replace(SOLO, replication="none"), pair=pair)
    connect(one, other)
    relinked(one, other)
    one.clients(10)
    assert sent(one, other, 1, b"s.x") == DEGRADED
    assert sent(one, other, 2, b"a.both") == DEGRADED
    assert sent(one, other, 3, b"a.x") == SYNC
    assert lacking_of(one.pair) == lacking_of(other.pair) == ("solo",)
    disconnect(one, other)
    connect(one, other)
    assert held(one) == {"dead": 0, "q": 2, "solo": 2}
    assert held(other) == {"dead": 0, "q": 2, "solo": 0}
    other.tell(RequestReceived(linked_to(other), AlterEndpoint(9, SOLO)))
    exchange(one, other)
    relinked(one, other)
    assert lacking_of(one.pair) == lacking_of(other.pair) == ()
    assert held(one) == held(other) == {"dead": 0, "q": 2, "solo": 2}
    assert sent(one, other, 4, b"s.x") == SYNC
    one.tell(RequestReceived(10, EmptyEndpoint(8, "solo")))
    exchange(one, other)
    assert held(one) == held(other) == {"dead": 0, "q": 2, "solo": 0}
    other.tell(RequestReceived(linked_to(other), AlterEndpoint(7, replace(SOLO, replication="none"))))
    exchange(one, other)
    relinked(one, other)
    publish(one, 5, b"s.x")
    exchange(one, other)
    relinked(one, other)
    assert one.outcomes[5] == DEGRADED
    assert held(other)["solo"] == 0


def test_repl_3_an_endpoint_that_is_not_to_be_replicated_is_not_lacking() -> None:
    local = replace(SOLO, replication="none")
    one, other = Router("a", QUEUE, local, pair={"mirror": "none"}), Router("b", QUEUE, pair={"mirror": "none"})
    connect(one, other)
    one.clients(10)
    assert sent(one, other, 1, b"a.both") == SYNC
    assert lacking_of(one.pair) == lacking_of(other.pair) == ()
    switch(one, other)
    switch(other, one)
    assert held(one) == {"dead": 0, "q": 1, "solo": 1}


def test_lacking_endpoints_that_there_are_not_are_passed_over() -> None:
    one, other = by_hand()
    assert one.pair.sending is not None
    stream = one.pair.sending.stream
    one.tell(PeerFrame(1, PAIR.encode(Lacking(stream, [0, 7_000, 2**32 - 1]), 2**20)))
    assert lacking_of(one.pair) == ()
    exchange(one, other)
    relinked(one, other)
    assert lacking_of(one.pair) == ("solo",)


def committed_at_one() -> tuple[Router, Router]:
    """A transaction has published to `solo`, too, which only the first router has."""
    one, other = by_hand()
    one.tell(RequestReceived(10, Begin(5, 1, 1)))
    publish(one, 1, b"a.x", transaction=1)
    publish(one, 2, b"s.x", transaction=1)
    one.tell(RequestReceived(10, Commit(6, 1, 1)))
    exchange(one, other)
    assert one.answers[6] == Ended(0, "committed", DEGRADED)
    return one, other


def asked_again(router: Router, there: Router) -> Ended:
    """How the first transaction ended, by a client that has a new link."""
    router.tell(LinkOpened(30, "client", is_operator=True))
    router.tell(RequestReceived(30, OpenPublisher(31, 777)))
    assert router.answers[31].transaction == 1
    router.answers.pop(32, None)
    router.tell(RequestReceived(30, Commit(32, router.answers[31].handle, 1)))
    exchange(router, there)
    answer: Ended = router.answers[32]
    return answer


@pytest.mark.parametrize("is_logged_anew", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_repl_10_a_commit_that_is_asked_for_again_is_degraded_while_some_of_it_is_at_one_router(
    is_restarted: bool, is_logged_anew: bool
) -> None:
    one, other = committed_at_one()
    if is_logged_anew:
        log_publishers(one.router.tables, one.router.tables.log.next_sequence)
        one.tell(Tick())
        for sequence in [number for number, (_, each) in one.journal.records.items() if each[0] == RECORD_TRANSACTION]:
            del one.journal.records[sequence]
    if is_restarted:
        disconnect(one, other)
        one = one.restart()
        connect(one, other)
    assert asked_again(one, other) == Ended(0, "committed", DEGRADED)
    other.tell(RequestReceived(linked_to(other), CreateEndpoint(9, SOLO)))
    exchange(one, other)
    relinked(one, other)
    assert asked_again(one, other) == Ended(0, "committed", SYNC)


@pytest.mark.parametrize("is_linked_anew", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_repl_10_a_successor_that_has_not_got_all_of_a_transaction_does_not_say_that_it_is_at_both(
    is_restarted: bool, is_linked_anew: bool
) -> None:
    one, other = committed_at_one()
    if is_linked_anew:
        disconnect(one, other)
        connect(one, other)
    switch(one, other)
    if is_restarted:
        disconnect(one, other)
        other = other.restart()
        connect(one, other)
    assert asked_again(other, one) == Ended(0, "committed", DEGRADED)


def test_repl_10_a_successor_that_only_heard_of_a_transaction_does_not_say_that_it_is_at_both() -> None:
    one, other = by_hand()
    disconnect(one, other)
    one.tell(Degrade(True))
    one.tell(RequestReceived(10, Begin(5, 1, 1)))
    publish(one, 1, b"a.x", transaction=1)
    publish(one, 2, b"s.x", transaction=1)
    one.tell(RequestReceived(10, Commit(6, 1, 1)))
    assert one.answers[6] == Ended(0, "committed", DEGRADED)
    one.tell(Degrade(False))
    connect(one, other)
    switch(one, other)
    assert asked_again(other, one) == Ended(0, "committed", DEGRADED)


def test_repl_10_a_commit_is_known_to_be_at_both_after_a_switch() -> None:
    one, other = by_hand()
    one.tell(RequestReceived(10, Begin(5, 1, 1)))
    publish(one, 1, b"a.x", transaction=1)
    one.tell(RequestReceived(10, Commit(6, 1, 1)))
    exchange(one, other)
    assert one.answers[6] == Ended(0, "committed", SYNC)
    disconnect(one, other)
    connect(one, other)
    switch(one, other)
    assert asked_again(other, one) == Ended(0, "committed", SYNC)
