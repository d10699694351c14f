"""Consumers of a message router whose grant has a delay (AUTH-5)."""

import pytest

from assured_kit import WALL_NS, Router, message, queue, texts
from penstock.assured.core.router.events import Become
from penstock.assured.wire._layout import SETTLE_RETURNED
from penstock.assured.wire.control import EmptyEndpoint, OpenFlow, Refused
from penstock.security.core.token import Grant

MINUTE_MS = 60_000
DELAYED = (Grant("queue.>", "receive", 900),)
LIVE = (Grant("queue.>", "receive", 0),)

pytestmark = pytest.mark.spec("AUTH-5")


def scene(*grants: Grant, **settings: object) -> tuple[Router, int]:
    """A router with one endpoint, and the handle of a publisher on link 1; link 2 is a consumer with these grants."""
    router = Router(queue("a", "orders.>", **settings))
    router.link(1)
    handle = router.publisher(1)
    router.link(2, "delayed", grants=grants)
    return router, handle


def due_in_ms(router: Router) -> float | None:
    deadline_ns = router.core.next_deadline_ns()
    return None if deadline_ns is None else (deadline_ns - router.now_ns) / 1e6


def test_a_message_is_delivered_at_the_age_that_the_grant_sets() -> None:
    router, handle = scene(*DELAYED)
    router.flow(2, "a")
    router.publish(1, handle, 1, message("first"))
    router.advance(5 * MINUTE_MS)
    router.publish(1, handle, 2, message("second"))
    assert router.delivered(2) == []
    assert due_in_ms(router) == 10 * MINUTE_MS
    router.advance(10 * MINUTE_MS - 1)
    assert router.delivered(2) == []
    router.advance(1)
    assert texts(router.delivered(2)) == ["first"]
    assert due_in_ms(router) == 5 * MINUTE_MS
    router.advance(5 * MINUTE_MS)
    assert texts(router.delivered(2)) == ["second"]
    assert due_in_ms(router) is None


def test_messages_queued_before_the_flow_was_opened_are_not_delivered_early() -> None:
    router, handle = scene(*DELAYED)
    router.publish(1, handle, 1, message("old"))
    router.advance(20 * MINUTE_MS)
    router.publish(1, handle, 2, message("young"))
    router.flow(2, "a")
    assert texts(router.delivered(2)) == ["old"]


def test_the_shortest_delay_of_several_grants_is_used_and_a_denial_refuses() -> None:
    router, handle = scene(*DELAYED, Grant("queue.a", "receive", 60))
    router.flow(2, "a")
    router.publish(1, handle, 1, message("x"))
    router.advance(MINUTE_MS)
    assert texts(router.delivered(2)) == ["x"]
    router.link(3, "denied", grants=(*DELAYED, Grant("!queue.a", "receive")))
    answer = router.ask(OpenFlow, 3, "a", 1)
    assert isinstance(answer, Refused)
    assert answer.code == "not_entitled"


def test_an_old_message_of_low_priority_does_not_wait_for_a_new_one_of_high_priority() -> None:
    """A delayed consumer sees the queue as it was: the new message is not in it yet."""
    router, handle = scene(*DELAYED)
    router.flow(2, "a")
    router.publish(1, handle, 1, message("low", priority=1))
    router.advance(10 * MINUTE_MS)
    router.publish(1, handle, 2, message("high", priority=9))
    router.advance(5 * MINUTE_MS)
    assert texts(router.delivered(2)) == ["low"]
    assert due_in_ms(router) == 10 * MINUTE_MS
    router.advance(10 * MINUTE_MS)
    assert texts(router.delivered(2)) == ["high"]


def test_a_shared_endpoint_gives_new_messages_to_live_consumers_only() -> None:
    router, handle = scene(*DELAYED)
    router.flow(2, "a")
    router.link(3, "live", grants=LIVE)
    live = router.flow(3, "a", credit=2)
    router.publish(1, handle, 1, *[message(str(each)) for each in range(4)])
    assert texts(router.delivered(3)) == ["0", "1"]
    assert router.delivered(2) == []
    router.advance(15 * MINUTE_MS)
    assert texts(router.delivered(2)) == ["2", "3"]
    router.publish(1, handle, 5, message("4"))
    router.credit(3, live, 3)
    assert texts(router.delivered(3)) == ["4"]


def test_an_exclusive_endpoint_waits_for_its_active_consumer() -> None:
    router, handle = scene(*DELAYED, consumers="exclusive")
    router.flow(2, "a")
    router.link(3, "live", grants=LIVE)
    router.flow(3, "a")
    router.publish(1, handle, 1, message("x"))
    assert router.delivered(2) == router.delivered(3) == []
    router.drop(2)
    assert texts(router.delivered(3)) == ["x"]


def test_a_released_message_is_redelivered_at_once_and_counts_one_delivery() -> None:
    """Its age counts from the time of storage, its deliveries from the first delivery."""
    router, handle = scene(*DELAYED, deliveries_max=2)
    flow = router.flow(2, "a")
    router.publish(1, handle, 1, message("x"))
    router.advance(15 * MINUTE_MS)
    (first,) = router.delivered(2)
    assert (first.deliveries, first.published_ns) == (0, WALL_NS)
    router.settle(2, flow, first.id, what=SETTLE_RETURNED)
    (again,) = router.delivered(2)
    assert (again.deliveries, again.id) == (1, first.id)


def test_messages_published_in_a_transaction_are_delayed_and_a_delayed_message_is_settled_in_one() -> None:
    router, handle = scene(*DELAYED)
    flow = router.flow(2, "a")
    router.begin(1, handle, 1)
    router.publish(1, handle, 1, message("x"), transaction=1)
    router.advance(MINUTE_MS / 2)
    router.commit(1, handle, 1)
    router.advance(14 * MINUTE_MS)
    assert router.delivered(2) == []
    router.advance(MINUTE_MS)
    (delivered,) = router.delivered(2)
    own = router.publisher(2, 78)
    router.begin(2, own, 1)
    router.settle(2, flow, delivered.id, transaction=1)
    router.commit(2, own, 1)
    assert router.queued("a") == 0


def test_a_delay_survives_a_restart() -> None:
    router, handle = scene(*DELAYED)
    router.publish(1, handle, 1, message("x"))
    router = router.restart()  # the clock of the kit starts again: no time has passed
    router.link(2, "delayed", grants=DELAYED)
    router.flow(2, "a")
    router.advance(15 * MINUTE_MS - 1)
    assert router.delivered(2) == []
    router.advance(1)
    assert texts(router.delivered(2)) == ["x"]


def test_old_messages_are_read_from_the_journal_although_newer_ones_are_in_the_cache() -> None:
    router = Router(queue("a", "orders.>"), cache_bytes=65_536, message_bytes_max=4_096)
    router.link(1)
    handle = router.publisher(1)
    old = [f"{each:04d}" + 1_000 * "x" for each in range(200)]
    router.publish(1, handle, 1, *[message(each, priority=1) for each in old])
    router.advance(15 * MINUTE_MS)
    router.publish(1, handle, 201, *[message(1_000 * "y", priority=9) for _ in range(200)])
    router.link(2, "delayed", grants=DELAYED)
    router.flow(2, "a")
    assert texts(router.delivered(2)) == old


def test_nothing_is_due_after_the_endpoint_is_emptied_or_deleted() -> None:
    router, handle = scene(*DELAYED)
    router.flow(2, "a")
    router.publish(1, handle, 1, message("x"))
    assert due_in_ms(router) == 15 * MINUTE_MS
    router.ask(EmptyEndpoint, 1, "a")
    router.advance(15 * MINUTE_MS)
    assert router.delivered(2) == []
    assert due_in_ms(router) is None


def test_a_delay_beyond_the_range_of_the_clock_never_ends() -> None:
    router, handle = scene(Grant("queue.a", "receive", 2**62))
    router.flow(2, "a")
    router.publish(1, handle, 1, message("x"))
    router.advance(10_000_000 * MINUTE_MS)
    assert router.delivered(2) == []


def test_messages_that_expire_during_the_delay_are_dropped_or_dead_lettered() -> None:
    router, handle = scene(*DELAYED, age_ms_max=MINUTE_MS)
    router.flow(2, "a")
    router.publish(1, handle, 1, message("x"))
    router.advance(15 * MINUTE_MS)
    router.advance(1_000)
    assert router.delivered(2) == []
    assert router.queued("dead") == 1


def test_a_standby_router_has_no_deadline_of_delayed_consumers() -> None:
    router, handle = scene(*DELAYED)
    router.flow(2, "a")
    router.publish(1, handle, 1, message("x"))
    router.tell(Become("standby", 2))
    router.advance(20 * MINUTE_MS)
    assert due_in_ms(router) is None
