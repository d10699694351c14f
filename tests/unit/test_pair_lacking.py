"""Endpoints that only one router of a pair has, or that have no copies (REPL-3, REPL-6): their messages are on one
disk, which is reported; they are kept when the other router defines the endpoint, too."""

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
    """Each router has its own endpoints; the second one has no `solo`."""
    pair = {"mirror": "none", **options.pop("pair", {})}
    one, other = Router("a", QUEUE, SOLO, pair=pair, **options), Router("b", QUEUE, pair=pair, **options)
    connect(one, other)
    relinked(one, other)
    one.clients(10)
    exchange(one, other)
    assert one.pair.is_active
    return one, other


def linked_to(router: Router) -> int:
    """A new link: existing links end when a router becomes standby again."""
    router.tell(LinkOpened(20, "client", is_operator=True))
    return 20


def relinked(one: Router, other: Router) -> None:
    """Reconnect once if the routers have matched a message to different endpoints."""
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
def test_repl_3_messages_for_an_endpoint_that_the_other_router_lacks_are_degraded(matching: str) -> None:
    one, other = by_hand(pair={"matching": matching})
    assert sent(one, other, 1, b"a.x") == SYNC
    assert sent(one, other, 2, b"s.x") == DEGRADED
    assert sent(one, other, 3, b"a.both") == DEGRADED
    assert sent(one, other, 4, b"a.x") == SYNC
    assert one.pair.sending is not None  # no link was closed
    assert lacking_of(one.pair) == lacking_of(other.pair) == ("solo",)
    assert held(one) == {"dead": 0, "q": 3, "solo": 2}
    assert held(other) == {"dead": 0, "q": 3}


def test_repl_3_where_publishers_decide_the_messages_are_degraded_or_stored() -> None:
    one, other = by_hand(replicate_by="publisher")
    assert sent(one, other, 1, b"s.x", flags=1) == DEGRADED
    assert sent(one, other, 2, b"s.x", flags=2) == STORED
    assert sent(one, other, 3, b"a.x", flags=1) == SYNC
    assert sent(one, other, 4, b"a.x", flags=2) == ASYNC


def test_repl_3_a_resend_of_such_a_message_is_not_acknowledged_as_synchronous() -> None:
    one, other = by_hand()
    sent(one, other, 1, b"s.x")
    one.sent.clear()
    assert sent(one, other, 1, b"s.x") == KNOWN
    switch(one, other)
    other.tell(RequestReceived(linked_to(other), OpenPublisher(1, 777)))
    other.tell(Data(20, encode_publish(1, 1, [Published(b"s.x", b"payload")])))
    exchange(one, other)
    assert other.outcomes == {1: KNOWN}


def test_repl_8_without_degradation_only_the_publisher_to_that_endpoint_waits() -> None:
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


def test_repl_8_an_order_to_degrade_ends_the_wait() -> None:
    one, other = by_hand(pair={"degrade": "never"})
    assert sent(one, other, 1, b"s.x") is None
    one.tell(Degrade(True))
    exchange(one, other)
    assert one.outcomes[1] == DEGRADED


def test_repl_10_a_transaction_that_publishes_there_is_degraded() -> None:
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


def test_repl_6_when_the_other_router_defines_the_endpoint_it_gets_the_messages() -> None:
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
def test_repl_3_an_endpoint_defined_during_the_comparison_is_on_both(
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
    assert one.pair.sending is not None  # no link was closed: the two agree
    assert one.outcomes[2] == SYNC
    assert held(one) == held(other) == {"dead": 0, "q": 0, "solo": 2}


def test_repl_6_an_endpoint_deleted_on_the_other_router_counts_as_missing_from_then_on() -> None:
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


def test_an_endpoint_defined_later_counts_as_missing_before_its_messages_are_acknowledged() -> None:
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


def test_repl_6_a_planned_switch_names_the_messages_left_behind_and_they_are_there_afterwards() -> None:
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
def test_messages_on_one_router_stay_when_the_other_one_defines_the_endpoint(is_restarted: bool) -> None:
    """They were acknowledged as degraded: they are stranded, and are delivered when their router is active again."""
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
    # from now on both have it: a settlement on one router removes it from the other, also after a lost link
    switch(one, other)
    assert not any(each.definition.own_through for each in one.router.endpoints)
    disconnect(one, other)
    other.tell(RequestReceived(linked_to(other), EmptyEndpoint(8, "solo")))
    connect(one, other)
    assert held(one) == held(other) == {"dead": 0, "q": 2, "solo": 0}


LOCAL = replace(SOLO, name="local", wants=(Want(topics=("a.>",)),), replication="none")


def mirrored() -> tuple[Router, Router]:
    """The synchronous messages of `local` are only on the first router."""
    one, other = Router("a", QUEUE, LOCAL), Router("b")
    connect(one, other)
    one.clients(10)
    one.publish(1, 3)
    exchange(one, other)
    assert one.outcomes == {1: SYNC, 2: SYNC, 3: SYNC}
    assert (held(one)["local"], held(other)["local"]) == (3, 0)
    return one, other


@pytest.mark.parametrize("is_linked", [True, False])
def test_messages_on_one_router_stay_when_the_endpoint_becomes_replicated(is_linked: bool) -> None:
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


def test_messages_of_a_newly_replicated_endpoint_that_were_not_copied_yet_stay_after_a_takeover() -> None:
    one, other = mirrored()
    disconnect(one, other)
    one.tell(RequestReceived(10, AlterEndpoint(9, replace(LOCAL, replication="synchronous"))))
    other.tell(SwitchHere(is_forced=True))
    one = one.restart()
    connect(one, other)
    other.tell(RequestReceived(linked_to(other), AlterEndpoint(9, replace(LOCAL, replication="synchronous"))))
    exchange(one, other)
    assert held(one)["local"] == 3


def test_a_message_on_one_router_stays_when_it_is_sent_again_for_another_endpoint() -> None:
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


def test_messages_that_only_one_router_still_has_stay_whichever_router_accepted_them_first() -> None:
    """The other router dropped its copies when the endpoint lost replication; it had accepted the messages itself."""
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


def test_repl_5_copies_of_an_endpoint_altered_back_and_forth_are_dropped_when_they_are_settled() -> None:
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


def test_repl_5_copies_beside_unreplicated_messages_are_dropped_when_they_are_settled() -> None:
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
    assert held(one)["local"] == 3  # only this router ever had it
    switch(other, one)
    assert held(one)["local"] == 3


@pytest.mark.parametrize("matching", ["secondary", "primary"])
def test_repl_5_an_endpoint_without_copies_on_the_other_router_counts_as_missing_there(matching: str) -> None:
    """Otherwise the other router would not learn of settlements, and would redeliver after a switch."""
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


def test_repl_3_an_unreplicated_endpoint_does_not_count_as_missing() -> None:
    local = replace(SOLO, replication="none")
    one, other = Router("a", QUEUE, local, pair={"mirror": "none"}), Router("b", QUEUE, pair={"mirror": "none"})
    connect(one, other)
    one.clients(10)
    assert sent(one, other, 1, b"a.both") == SYNC
    assert lacking_of(one.pair) == lacking_of(other.pair) == ()
    switch(one, other)
    switch(other, one)
    assert held(one) == {"dead": 0, "q": 1, "solo": 1}


def test_unknown_endpoints_in_the_list_of_missing_ones_are_skipped() -> None:
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
    """The outcome of the first transaction, for a client with a new link."""
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
def test_repl_10_a_repeated_commit_is_degraded_while_part_of_it_is_on_one_router(
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
def test_repl_10_a_successor_without_all_of_a_transaction_does_not_report_it_as_synchronous(
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


def test_repl_10_a_successor_with_only_the_outcome_of_a_transaction_does_not_report_it_as_synchronous() -> None:
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


def test_repl_10_a_commit_is_reported_as_synchronous_after_a_switch() -> None:
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
