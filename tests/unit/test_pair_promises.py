"""The promises of a pair across switches, restarts and lost links (REPL-7, REPL-8, REPL-10, REPL-13)."""

import pytest

from paired_kit import PUBLISHER, QUEUE, Router, connect, disconnect, exchange, pair_of_routers, switch
from penstock.assured.config import EndpointConfig, Want
from penstock.assured.core.pair.protocol import Degrade, PeerOpened, SwitchHere
from penstock.assured.core.router.events import Data, LinkOpened, RequestReceived
from penstock.assured.wire._layout import MESSAGE_RESENT, OUTCOME_DEGRADED, OUTCOME_SYNC
from penstock.assured.wire.control import Begin, Commit, CreateEndpoint, Ended, OpenPublisher, Refused
from penstock.assured.wire.frames import Published, encode_publish, encode_settle
from penstock.base.core import Tick


@pytest.mark.spec("REPL-10")
def test_a_synchronous_transaction_is_delivered_when_the_other_router_has_it_and_later_messages_wait() -> None:
    """Otherwise a switch would roll back messages that were consumed."""
    one, other = pair_of_routers()
    one.tell(RequestReceived(10, Begin(3, 1, 1)))
    one.publish(1, 2, transaction=1)
    one.tell(RequestReceived(10, Commit(4, 1, 1)))
    one.publish(3)
    assert (one.delivered, one.outcomes, 4 in one.answers) == ([], {}, False)
    exchange(one, other)
    assert one.answers[4] == Ended(0, "committed", OUTCOME_SYNC)
    assert one.delivered == [1, 2, 3]
    one.publish(4)
    assert one.delivered == [1, 2, 3, 4], "single messages are delivered in parallel"


@pytest.mark.spec("REPL-10")
def test_a_transaction_that_only_consumes_is_acknowledged_when_the_other_router_has_it() -> None:
    one, other = pair_of_routers()
    one.publish(1, 2)
    exchange(one, other)
    one.tell(RequestReceived(10, Begin(3, 1, 1)))
    one.tell(Data(10, encode_settle(1, [(one.ids[0], one.ids[1], 1)], transaction=1)))
    one.tell(RequestReceived(10, Commit(4, 1, 1)))
    assert 4 not in one.answers
    assert other.router.tables.message_count == 2
    exchange(one, other)
    assert one.answers[4] == Ended(0, "committed", OUTCOME_SYNC)
    assert other.router.tables.message_count == 0


@pytest.mark.spec("REPL-3")
def test_a_resent_synchronous_message_is_acknowledged_when_the_other_router_has_it() -> None:
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
def test_the_outcome_of_a_transaction_is_reported_by_the_successor_when_both_agree() -> None:
    one, other = pair_of_routers()
    one.tell(RequestReceived(10, Begin(3, 1, 1)))
    one.publish(1, 2, transaction=1)
    one.tell(RequestReceived(10, Commit(4, 1, 1)))
    exchange(one, other)
    switch(one, other)
    other.clients(10)
    disconnect(one, other)
    other.tell(RequestReceived(10, Commit(5, 1, 1)))
    other.tell(RequestReceived(10, Commit(6, 1, 2)))
    assert not {5, 6} & other.answers.keys(), "the other router could take over with another outcome"
    connect(one, other)
    assert other.answers[5] == Ended(0, "committed", OUTCOME_SYNC)
    assert other.answers[6] == Ended(0, "rolled_back")


@pytest.mark.spec("REPL-10")
def test_a_transaction_outcome_missing_at_the_successor_is_learned_during_catch_up() -> None:
    one, other = pair_of_routers()
    disconnect(one, other)
    one.tell(Degrade(is_ordered=True))
    one.tell(RequestReceived(10, Begin(3, 1, 1)))
    one.publish(1, 2, transaction=1)
    one.tell(RequestReceived(10, Commit(4, 1, 1)))
    assert one.answers[4] == Ended(0, "committed", OUTCOME_DEGRADED)
    one.tell(Degrade(is_ordered=False))
    connect(one, other)
    switch(one, other)
    other.clients(10)
    other.tell(RequestReceived(10, Commit(5, 1, 1)))
    exchange(one, other)
    assert other.answers[5] == Ended(0, "committed", OUTCOME_SYNC)


@pytest.mark.spec("REPL-7")
def test_outcomes_that_only_the_replaced_router_knew_are_not_kept_when_it_returns() -> None:
    """The message was never acknowledged, and is dropped: a resend must not be reported as stored."""
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
def test_messages_acknowledged_as_degraded_stay_with_a_forcibly_replaced_router_also_after_restarts() -> None:
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


@pytest.mark.spec("REPL-8")
def test_a_pair_is_synchronous_again_when_both_routers_have_the_degraded_messages() -> None:
    """Not while they are under way: the other router could take over without them."""
    one, other = pair_of_routers()
    one.tell(Degrade(is_ordered=True))
    one.publish(1)
    one.tell(Degrade(is_ordered=False))
    one.publish(2)
    assert (one.outcomes, one.pair.degradation.mode) == ({1: OUTCOME_DEGRADED}, "degraded")
    assert one.router.log.is_degraded
    exchange(one, other)
    assert (one.outcomes, one.pair.degradation.mode) == ({1: OUTCOME_DEGRADED, 2: OUTCOME_SYNC}, "synchronous")
    assert not one.router.log.is_degraded


@pytest.mark.spec("REPL-7")
def test_the_active_router_continues_also_after_two_restarts() -> None:
    one, other = pair_of_routers()
    one.publish(1)
    one = one.restart().restart()
    other = other.restart()
    connect(one, other)
    assert (one.pair.is_active, other.pair.is_active) == (True, False)
    assert one.pair.epoch > 1


@pytest.mark.spec("REPL-8")
def test_a_router_that_catches_up_must_not_take_over_and_its_log_records_that() -> None:
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


@pytest.mark.spec("REPL-7")
def test_a_transaction_that_consumed_messages_unknown_to_the_standby_is_acknowledged_after_both_settled() -> None:
    """The standby learns that the message is gone; if the transaction were undone, neither router would have it."""
    one, other = pair_of_routers()
    disconnect(one, other)
    one.publish(1, 3)
    one.tell(RequestReceived(10, Begin(3, 1, 1)))
    one.tell(Data(10, encode_settle(1, [(one.ids[0], one.ids[0], 1)], transaction=1)))
    one.tell(RequestReceived(10, Commit(4, 1, 1)))
    connect(one, other, 0)
    while not one.outcomes:
        assert 4 not in one.answers
        exchange(one, other, 1)
    assert one.outcomes == {1: OUTCOME_SYNC, 2: OUTCOME_SYNC, 3: OUTCOME_SYNC}
    assert one.answers[4] == Ended(0, "committed", OUTCOME_SYNC)
    disconnect(one, other)
    other.tell(SwitchHere(is_forced=True))
    connect(one, other)
    assert one.router.tables.message_count == other.router.tables.message_count == 2


@pytest.mark.spec("REPL-13")
def test_messages_that_an_endpoint_gets_from_the_log_reach_the_other_router_at_once() -> None:
    one, other = pair_of_routers()
    one.publish(1, 3)
    exchange(one, other)
    one.tell(Data(10, encode_settle(1, [(one.ids[0], one.ids[2], 1)])))
    exchange(one, other)
    assert other.router.tables.message_count == 0
    late = EndpointConfig(name="late", wants=(Want(topics=("a.>",)),), replication="synchronous")
    one.tell(RequestReceived(10, CreateEndpoint(5, late, 1)))
    one.tell(Tick())
    exchange(one, other)
    assert (one.router.tables.message_count, other.router.tables.message_count) == (3, 3)


@pytest.mark.spec("REPL-6")
def test_the_other_router_knows_the_client_of_a_publisher() -> None:
    """At once, and during catch-up."""
    one, other = pair_of_routers()
    switch(one, other)
    other.tell(LinkOpened(11, "mallory"))
    other.tell(RequestReceived(11, OpenPublisher(5, PUBLISHER)))
    assert isinstance(other.answers[5], Refused)
    fresh = Router("a", QUEUE)
    connect(fresh, other)
    switch(other, fresh)
    fresh.tell(LinkOpened(11, "mallory"))
    fresh.tell(RequestReceived(11, OpenPublisher(5, PUBLISHER)))
    assert isinstance(fresh.answers[5], Refused)


@pytest.mark.spec("REPL-10")
def test_the_largest_transaction_fits_a_frame() -> None:
    one, other = pair_of_routers()
    one.tell(RequestReceived(10, Begin(3, 1, 1)))
    large = [Published(b"a.x", bytes(1_000_000)) for _ in range(4)]
    one.tell(Data(10, encode_publish(1, 1, large, transaction=1)))
    one.tell(RequestReceived(10, Commit(4, 1, 1)))
    exchange(one, other)
    assert one.answers[4] == Ended(0, "committed", OUTCOME_SYNC)
    assert other.router.tables.message_count == 4
