"""A pair with automatic switches, in which one router lacks endpoints (REPL-8, REPL-14): an automatic switch does not
give up messages that only the active router has."""

from typing import Any

import pytest
from msgspec.structs import replace

from leased_kit import LeasedPair
from paired_kit import exchange
from penstock.assured.config import EndpointConfig, Want
from penstock.assured.core.pair.protocol import SwitchHere
from penstock.assured.core.router.events import Data, LinkOpened, RequestReceived
from penstock.assured.live.observation import copying_of
from penstock.assured.wire.control import Begin, Commit, CreateEndpoint, DeleteEndpoint, EmptyEndpoint, Ended
from penstock.assured.wire.frames import Published, encode_publish

SOLO = EndpointConfig(name="solo", wants=(Want(topics=("s.>",)),), replication="synchronous")
STORED, SYNC, DEGRADED = 1, 3, 4

pytestmark = pytest.mark.spec("REPL-8")


def by_hand(*first: EndpointConfig, **pair: Any) -> LeasedPair:
    return LeasedPair(*(first or (SOLO,)), mirror="none", matching="primary", **pair)


def publish(leased: LeasedPair, number: int, topic: bytes, *, transaction: int = 0) -> None:
    leased.one.tell(Data(10, encode_publish(1, number, [Published(topic, b"payload")], transaction=transaction)))


def sent(leased: LeasedPair, number: int, topic: bytes) -> int | None:
    publish(leased, number, topic)
    leased.settle()
    return leased.one.outcomes.get(number)


def operate(leased: LeasedPair) -> int:
    """A new link to the standby."""
    leased.other.tell(LinkOpened(20, "client", is_operator=True))
    return 20


def is_switched_when_the_active_one_dies(leased: LeasedPair) -> bool:
    leased.kill(leased.one)
    leased.run(6_000)
    return leased.other.pair.is_active


def test_messages_without_an_endpoint_on_the_other_router_wait_for_a_recorded_degradation() -> None:
    leased = by_hand()
    publish(leased, 1, b"s.x")
    publish(leased, 2, b"a.x")
    exchange(leased.one, leased.other)
    assert leased.one.outcomes == {2: SYNC}
    assert leased.witness.memory.degraded == ""
    leased.settle()
    assert leased.one.outcomes == {1: DEGRADED, 2: SYNC}
    assert leased.witness.memory.degraded == "a"
    assert [copying_of(each.pair) for each in leased.routers] == ["degraded", "degraded"]
    assert sent(leased, 3, b"a.x") == SYNC
    assert sent(leased, 4, b"s.x") == DEGRADED


def test_no_automatic_switch_while_one_router_has_messages_without_an_endpoint_on_the_other() -> None:
    leased = by_hand()
    assert sent(leased, 1, b"s.x") == DEGRADED
    assert not is_switched_when_the_active_one_dies(leased)
    leased.one = leased.one.restart()
    leased.down.clear()
    leased.connect()
    leased.run(6_000)
    assert leased.one.pair.is_active
    assert leased.one.pair.sending is not None
    assert leased.one.pair.sending.is_whole
    assert leased.one.pair.degradation.mode == "synchronous"
    assert leased.witness.memory.degraded == "a", "it still has messages that the other one lacks"


def test_an_empty_missing_endpoint_prevents_no_switch() -> None:
    leased = by_hand()
    assert sent(leased, 1, b"a.x") == SYNC
    assert [copying_of(each.pair) for each in leased.routers] == ["in step", "in step"]
    assert is_switched_when_the_active_one_dies(leased)


def test_asynchronous_messages_prevent_no_switch() -> None:
    leased = by_hand(replace(SOLO, replication="asynchronous"))
    assert sent(leased, 1, b"s.x") == STORED
    leased.run(3_000)
    assert leased.witness.memory.degraded == ""
    assert is_switched_when_the_active_one_dies(leased)


def test_a_transaction_that_publishes_there_is_recorded_first() -> None:
    leased = by_hand()
    leased.one.tell(RequestReceived(10, Begin(5, 1, 1)))
    publish(leased, 1, b"s.x", transaction=1)
    leased.one.tell(RequestReceived(10, Commit(6, 1, 1)))
    exchange(leased.one, leased.other)
    assert 6 not in leased.one.answers
    leased.settle()
    assert leased.one.answers[6] == Ended(0, "committed", DEGRADED)
    assert leased.witness.memory.degraded == "a"


def test_when_both_routers_have_the_endpoint_the_pair_switches_again() -> None:
    leased = by_hand()
    assert sent(leased, 1, b"s.x") == DEGRADED
    leased.other.tell(RequestReceived(operate(leased), CreateEndpoint(9, SOLO)))
    leased.run(3_000)
    assert leased.witness.memory.degraded == ""
    assert [copying_of(each.pair) for each in leased.routers] == ["in step", "in step"]
    assert sent(leased, 2, b"s.x") == SYNC
    assert is_switched_when_the_active_one_dies(leased)
    assert leased.other.router.tables.message_count == 2


def test_when_its_messages_were_consumed_the_pair_switches_again() -> None:
    leased = by_hand()
    assert sent(leased, 1, b"s.x") == DEGRADED
    leased.run(3_000)
    assert leased.witness.memory.degraded == "a"
    leased.one.tell(RequestReceived(10, EmptyEndpoint(9, "solo")))
    leased.run(3_000)
    assert leased.witness.memory.degraded == ""
    assert is_switched_when_the_active_one_dies(leased)


def test_repl_7_synchronous_messages_are_not_given_up_automatically_when_their_copies_were_deleted() -> None:
    leased = LeasedPair(SOLO, second=(SOLO,), mirror="none", matching="primary")
    assert sent(leased, 1, b"s.x") == SYNC
    leased.other.tell(RequestReceived(operate(leased), DeleteEndpoint(9, "solo", False)))
    leased.run(3_000)
    assert leased.witness.memory.degraded == "a"
    assert not is_switched_when_the_active_one_dies(leased)


@pytest.mark.parametrize("degrade", ["after", "never"])
def test_repl_7_a_planned_switch_leaves_them_behind_and_reports_it(degrade: str) -> None:
    leased = by_hand(degrade=degrade)
    assert sent(leased, 1, b"s.x") == (DEGRADED if degrade == "after" else None)
    leased.other.tell(SwitchHere())
    leased.run(1_000)
    assert [each.pair.is_active for each in leased.routers] == [False, True]
    assert leased.other.pair.planned_switch.left_there == {"solo": 1}
    assert leased.witness.memory.degraded == ""
    leased.one.tell(SwitchHere())
    leased.run(1_000)
    assert leased.one.pair.is_active
    assert leased.one.router.tables.message_count == 1


def test_a_cancelled_planned_switch_is_recorded_again() -> None:
    leased = by_hand()
    assert sent(leased, 1, b"s.x") == DEGRADED
    leased.other.is_storing = False  # so that the other router never has everything
    publish(leased, 2, b"a.x")
    leased.other.tell(SwitchHere())
    leased.settle()
    assert leased.witness.memory.degraded == ""
    leased.run(8_000)
    assert leased.one.pair.is_active
    assert "stands_by" in leased.one.notes, "it had stopped for the switch"
    assert leased.witness.memory.degraded == "a"
