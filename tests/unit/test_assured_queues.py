"""Endpoints and flows of a message router: limits, order, credit, redelivery, dead letters (REPL-12)."""

import pytest

from assured_kit import Router, message, queue, texts
from penstock.assured.config import EndpointConfig
from penstock.assured.core.router._records import WHY_DELIVERIES, WHY_EXPIRED, WHY_OVERFLOWED, WHY_REJECTED
from penstock.assured.core.router.events import Data, DiskRecovered, DiskTroubled, SendData, SendMessage
from penstock.assured.wire._layout import (
    DELIVERY_WHY_SHIFT,
    LIMIT_BYTES,
    LIMIT_MESSAGES,
    MESSAGE_WANTS_SYNC,
    OUTCOME_DISK,
    OUTCOME_FULL,
    OUTCOME_NO_ENDPOINT,
    OUTCOME_NOT_ENTITLED,
    OUTCOME_STORED,
    OUTCOME_UNMATCHED,
    SETTLE_REJECTED,
    SETTLE_RETURNED,
)
from penstock.assured.wire.control import (
    AlterEndpoint,
    CloseFlow,
    DeleteEndpoint,
    Done,
    EmptyEndpoint,
    Ended,
    EndpointNamed,
    FlowActive,
    FlowEnded,
    FlowOpened,
    OpenFlow,
    Refused,
)
from penstock.assured.wire.frames import decode_frames, encode_settle
from penstock.base.errors import ConfigurationError
from penstock.security.core.token import Grant


def filled(count: int, *endpoints: EndpointConfig, **settings: object) -> Router:
    """A router with a publisher (77) on link 1 that has published this many messages."""
    router = Router(*endpoints, **settings)
    router.link(1)
    handle = router.publisher(1)
    if count:
        router.publish(1, handle, 1, *[message(str(each)) for each in range(count)])
    return router


# Limits


def test_a_full_endpoint_refuses_messages_and_keeps_no_part_of_them() -> None:
    """REPL-12: by count."""
    router = filled(4, queue("a", "orders.>", messages_max=2), queue("b", "orders.>"))
    assert router.outcomes(1) == {1: 1, 2: 1, 3: OUTCOME_FULL, 4: OUTCOME_FULL}
    assert router.queued("b") == 2


def messages(router: Router) -> list[object]:
    return [each.message for each in router.said if isinstance(each, SendMessage)]


def named_endpoints(router: Router) -> list[EndpointNamed]:
    return [each for each in messages(router) if isinstance(each, EndpointNamed)]


def full_runs(router: Router) -> list[tuple[int, int, int, str]]:
    """First, last, limit and name of the endpoint, from the refusals sent to link 1 since the last call."""
    names = {each.endpoint: each.name for each in named_endpoints(router)}
    frames = [each.data for each in router.said if isinstance(each, SendData)]
    runs = [run for data in frames for frame in decode_frames(data) for run in getattr(frame, "runs", [])]
    return [(run.first, run.last, run.limit, names[run.endpoint]) for run in runs if run.what == OUTCOME_FULL]


def test_a_refusal_names_the_full_endpoint_and_the_limit_once() -> None:
    router = filled(1, queue("a", "orders.>", messages_max=1), queue("b", "trades.>", bytes_max=20))
    handle = router.publisher(1)
    long = message(30 * "x", "trades.x")
    router.publish(1, handle, 2, message(), message(), long, message())
    assert full_runs(router) == [(2, 3, LIMIT_MESSAGES, "a"), (4, 4, LIMIT_BYTES, "b"), (5, 5, LIMIT_MESSAGES, "a")]
    named = named_endpoints(router)
    assert sorted(each.name for each in named) == ["a", "b"]
    router.said.clear()
    router.publish(1, handle, 6, message())
    assert not named_endpoints(router), "the client knows this endpoint already"
    router.said.clear()
    router.ask(AlterEndpoint, 1, queue("a", "orders.>", messages_max=2))
    router.publish(1, handle, 7, message(), message())
    (again,) = named_endpoints(router)
    assert again.messages_max == 2


def test_a_refusal_names_a_full_dead_letter_endpoint() -> None:
    late = queue("late", messages_max=1, dead_to="")
    router = filled(3, queue("a", "orders.>", messages_max=1, when_full="dead", dead_to="late"), late)
    assert full_runs(router) == [(3, 3, LIMIT_MESSAGES, "late")]


def dead_letters(router: Router, link: int = 9) -> dict[str, tuple[int, str]]:
    """By text: the cause, and the endpoint that gave up the message."""
    router.link(link)
    router.said.clear()
    router.flow(link, "dead")
    names = {each.endpoint: each.name for each in named_endpoints(router)}
    found = {
        each.payload.decode(): (each.flags >> DELIVERY_WHY_SHIFT, names.get(each.given_up_by, ""))
        for each in router.delivered(link)
    }
    router.drop(link)
    return found


def test_a_dead_letter_names_the_cause_and_the_endpoint_that_gave_it_up() -> None:
    """REPL-12: also after a restart and after log cleaning."""
    endpoints = (
        queue("full", "full.>", messages_max=1, when_full="dead"),
        queue("old", "old.>", age_ms_max=1_000),
        queue("often", "often.>", deliveries_max=1),
        queue("rejected", "rejected.>"),
    )
    router = Router(*endpoints, section_bytes=65_536)
    router.link(1)
    handle = router.publisher(1)
    topics = ("full.x", "full.x", "old.x", "often.x", "rejected.x")
    router.publish(1, handle, 1, *[message(f"{each} {topic}", topic) for each, topic in enumerate(topics)])
    for endpoint, what in (("often", SETTLE_RETURNED), ("rejected", SETTLE_REJECTED)):
        flow = router.flow(1, endpoint)
        router.settle(1, flow, router.delivered(1)[0].id, what=what)
    router.advance(2_000)
    expected = {
        "1 full.x": (WHY_OVERFLOWED, "full"),
        "2 old.x": (WHY_EXPIRED, "old"),
        "3 often.x": (WHY_DELIVERIES, "often"),
        "4 rejected.x": (WHY_REJECTED, "rejected"),
    }
    assert dead_letters(router) == expected
    router = router.restart()
    assert dead_letters(router) == expected
    router.link(1)
    router.ask(EmptyEndpoint, 1, "full")
    handle = router.publisher(1)
    moved = router.core.tables.moved_total
    flow = router.flow(1, "rejected")
    for number in range(10, 400):
        router.publish(1, handle, number, message(1_000 * "x", "rejected.x"))
        router.settle(1, flow, *[each.id for each in router.delivered(1)])
    router.advance(1_000)
    assert router.core.tables.moved_total > moved, "rewritten in the log"
    assert dead_letters(router.restart()) == expected


def test_a_message_that_waited_for_space_in_a_dead_letter_endpoint_keeps_its_cause() -> None:
    """REPL-12: also if the message has expired in the meantime."""
    router = Router(queue("picky", "picky.>", age_ms_max=5_000), queue("dead", messages_max=1, dead_to=""))
    router.link(1)
    router.publish(1, router.publisher(1), 1, message("first", "picky.x"), message("second", "picky.x"))
    flow = router.flow(1, "picky")
    router.settle(1, flow, *[each.id for each in router.delivered(1)], what=SETTLE_REJECTED)
    assert dead_letters(router) == {"first": (WHY_REJECTED, "picky")}
    router.advance(10_000)
    router.link(2)
    flow = router.flow(2, "dead")
    router.settle(2, flow, router.delivered(2)[0].id)
    router.drop(2)
    assert dead_letters(router) == {"second": (WHY_REJECTED, "picky")}


def test_a_refused_transaction_names_the_full_endpoint() -> None:
    router = filled(1, queue("a", "orders.>", messages_max=1))
    handle = router.publisher(1)
    router.begin(1, handle, 1)
    router.publish(1, handle, 2, message(), transaction=1)
    assert router.commit(1, handle, 1) == Ended(0, "rolled_back", why="endpoint 'a' is full: 1 message (messages_max)")


def test_logged_messages_without_an_endpoint_are_reported_as_unmatched_once_they_are_on_the_disk() -> None:
    router = filled(0, queue("a", "trades.>"), retain_s=3_600, replicate_by="publisher")
    handle = router.publisher(1)
    router.is_storing = False
    router.publish(1, handle, 1, message(), message("t", "trades.x"), message(flags=MESSAGE_WANTS_SYNC))
    assert router.outcomes(1) == {}
    router.store()
    assert router.outcomes(1) == {1: OUTCOME_UNMATCHED, 2: OUTCOME_STORED, 3: OUTCOME_UNMATCHED}
    tables = router.core.tables
    assert (tables.accepted_total, tables.acknowledged_total, tables.unmatched_total) == (1, 1, 2)


def test_a_limit_by_bytes_counts_topics_and_payloads() -> None:
    """REPL-12: by bytes."""
    router = filled(3, queue("a", "orders.>", bytes_max=25))
    assert router.outcomes(1) == {1: 1, 2: 1, 3: OUTCOME_FULL}


def test_messages_beyond_a_limit_go_to_the_dead_letter_endpoint_if_configured() -> None:
    """REPL-12: if the dead-letter endpoint is full as well, the message is refused, never dropped."""
    dead = queue("late", messages_max=1, dead_to="")
    router = filled(4, queue("a", "orders.>", messages_max=2, when_full="dead", dead_to="late"), dead)
    assert router.outcomes(1) == {1: 1, 2: 1, 3: 1, 4: OUTCOME_FULL}
    assert (router.queued("a"), router.queued("late")) == (2, 1)
    after = router.restart()
    assert (after.queued("a"), after.queued("late")) == (2, 1)


def test_an_expired_message_goes_to_the_dead_letter_endpoint() -> None:
    """REPL-12: by age: the time to live of a message, and the maximum age of an endpoint."""
    router = Router(queue("a", "orders.>"), queue("b", "orders.>", age_ms_max=5_000))
    router.link(1)
    handle = router.publisher(1)
    router.publish(1, handle, 1, message("short", ttl_ms=1_000), message("long"))
    router.advance(999)
    assert (router.queued("a"), router.queued("b"), router.queued("dead")) == (2, 2, 0)
    router.advance(200)
    assert (router.queued("a"), router.queued("b"), router.queued("dead")) == (1, 1, 1)
    router.advance(5_000)
    assert (router.queued("a"), router.queued("b"), router.queued("dead")) == (1, 0, 2)
    router.flow(1, "dead")
    assert sorted(texts(router.delivered(1))) == ["long", "short"]
    after = router.restart()
    assert (after.queued("a"), after.queued("b"), after.queued("dead")) == (1, 0, 2)


def test_an_expired_message_is_not_delivered_even_before_the_expiry_tick() -> None:
    router = Router(queue("a", "orders.>", dead_to=""))
    router.link(1)
    handle = router.publisher(1)
    router.publish(1, handle, 1, message("short", ttl_ms=10), message("long"))
    router.now_ns += 11_000_000
    router.flow(1, "a")
    assert texts(router.delivered(1)) == ["long"]
    assert router.core.tables.discarded_total == 1  # without a dead-letter endpoint: discarded, and counted


def test_a_message_waits_for_space_in_a_full_dead_letter_endpoint() -> None:
    """REPL-12: nothing is dropped silently."""
    router = Router(queue("late", messages_max=1, dead_to=""), queue("a", "orders.>", dead_to="late"))
    router.link(1)
    handle = router.publisher(1)
    router.publish(1, handle, 1, message("1", ttl_ms=10), message("2", ttl_ms=10))
    router.advance(200)
    assert (router.queued("a"), router.queued("late")) == (1, 1)
    flow = router.flow(1, "late")
    router.flow(1, "a")
    (first,) = router.delivered(1)
    router.settle(1, flow, first.id)
    router.advance(200)
    router.advance(200)
    (second,) = router.delivered(1)
    assert {first.payload, second.payload} == {b"1", b"2"}
    assert router.queued("a") == 0


def test_a_message_is_given_up_after_the_maximum_number_of_deliveries() -> None:
    """REPL-12: redelivery limits."""
    router = filled(1, queue("a", "orders.>", deliveries_max=3))
    flow = router.flow(1, "a")
    for expected in range(3):
        (got,) = router.delivered(1)
        assert (got.deliveries, got.flags) == (expected, 1 if expected else 0)
        router.settle(1, flow, got.id, what=SETTLE_RETURNED)
    assert router.delivered(1) == []
    assert (router.queued("a"), router.queued("dead")) == (0, 1)


def test_delivery_counts_continue_after_a_restart() -> None:
    """REPL-12: a message that crashes its consumers is given up, also if the router restarts in between."""
    router = filled(1, queue("a", "orders.>", deliveries_max=3))
    for expected in range(3):
        router.flow(1, "a")
        (got,) = router.delivered(1)
        assert got.deliveries == expected
        router.drop(1)
        router = router.restart()
        router.link(1)
    assert (router.queued("a"), router.queued("dead")) == (0, 1)


def test_unread_messages_do_not_count_as_delivered() -> None:
    """REPL-12: a message that was under way to consumers but never read keeps its delivery count."""
    router = filled(4, queue("a", "orders.>", deliveries_max=2))
    for times in range(3):
        flow = router.flow(1, "a")
        assert [(each.deliveries, each.flags) for each in router.delivered(1)] == 4 * [(0, 1 if times else 0)]
        router.ask(CloseFlow, 1, flow, 0)
    flow = router.flow(1, "a")
    read, *unread = router.delivered(1)
    router.settle(1, flow, unread[0].id)
    router.ask(CloseFlow, 1, flow, 2)
    router.flow(1, "a")
    assert [(each.id, each.deliveries, each.flags) for each in router.delivered(1)] == [
        (read.id, 1, 1), (unread[1].id, 0, 1), (unread[2].id, 0, 1)
    ]  # fmt: skip
    router.drop(1)
    assert (router.queued("a"), router.queued("dead")) == (2, 1)
    after = router.restart()
    after.link(1)
    after.flow(1, "a")
    assert [each.deliveries for each in after.delivered(1)] == [1, 1]


def test_a_client_cannot_report_more_messages_as_read_than_were_sent() -> None:
    router = filled(2, queue("a", "orders.>", deliveries_max=2))
    flow = router.flow(1, "a")
    router.delivered(1)
    router.ask(CloseFlow, 1, flow, 2**64 - 1)
    router.flow(1, "a")
    assert [each.deliveries for each in router.delivered(1)] == [1, 1]


def test_a_rejected_message_is_dead_lettered_at_once() -> None:
    router = filled(1, queue("a", "orders.>"))
    flow = router.flow(1, "a")
    (got,) = router.delivered(1)
    router.settle(1, flow, got.id, what=SETTLE_REJECTED)
    assert (router.queued("a"), router.queued("dead")) == (0, 1)
    after = router.restart()
    assert (after.queued("a"), after.queued("dead")) == (0, 1)


def test_higher_priorities_are_delivered_first_and_in_order() -> None:
    """REPL-12: message priority."""
    router = Router(queue("a", "orders.>"))
    router.link(1)
    handle = router.publisher(1)
    priorities = (4, 9, 0, 4, 9, 7)
    router.publish(1, handle, 1, *[message(f"{each}", priority=each) for each in priorities])
    router.flow(1, "a")
    got = router.delivered(1)
    assert texts(got) == ["9", "9", "7", "4", "4", "0"]
    assert [each.number for each in got] == [2, 5, 6, 1, 4, 3]


def test_unmatched_messages_are_refused_by_configuration() -> None:
    router = filled(1, queue("a", "trades.>"), unmatched="refuse")
    assert router.outcomes(1) == {1: OUTCOME_NO_ENDPOINT}


def test_a_queue_accepts_messages_under_its_own_name() -> None:
    router = Router(queue("a"))
    router.link(1)
    router.publish(1, router.publisher(1), 1, message("x", "queue.a"))
    assert router.queued("a") == 1


# Flows


def test_messages_arrive_in_order_within_the_credit() -> None:
    router = filled(10, queue("a", "orders.>"))
    flow = router.flow(1, "a", 3)
    assert texts(router.delivered(1)) == ["0", "1", "2"]
    router.credit(1, flow, 5)
    assert texts(router.delivered(1)) == ["3", "4"]
    router.credit(1, flow, 4)
    assert router.delivered(1) == []


def test_unsettled_messages_are_bounded() -> None:
    router = filled(10, queue("a", "orders.>"), unsettled_max=4)
    flow = router.flow(1, "a", 1_000)
    got = router.delivered(1)
    assert len(got) == 4
    router.settle(1, flow, got[1].id)
    assert texts(router.delivered(1)) == ["4"]


def test_shared_consumers_take_turns_and_released_messages_go_to_the_other_consumer_in_order() -> None:
    router = filled(6, queue("a", "orders.>"))
    router.link(2)
    router.flow(1, "a", 0)
    other = router.flow(2, "a", 0)
    router.credit(1, 1, 100)
    router.settle(1, 1, 1 << 40 | 1)
    router.delivered(1)
    router.drop(1)
    router.credit(2, other, 100)
    got = router.delivered(2)
    assert texts(got) == ["1", "2", "3", "4", "5"]
    assert all(each.flags == 1 for each in got)


def test_shared_consumers_with_credit_get_equal_shares() -> None:
    router = Router(queue("a", "orders.>"))
    router.link(1)
    router.link(2)
    router.flow(1, "a")
    router.flow(2, "a")
    router.publish(1, router.publisher(1), 1, *[message(str(each)) for each in range(10)])
    assert (len(router.delivered(1)), len(router.delivered(2))) == (5, 5)


def test_an_exclusive_endpoint_has_one_consumer_and_the_others_stand_by() -> None:
    router = filled(4, queue("a", "orders.>", consumers="exclusive"))
    router.link(2)
    flow = router.flow(1, "a")
    answer = router.ask(OpenFlow, 2, "a", 100)
    assert isinstance(answer, FlowOpened)
    assert not answer.is_active
    got = router.delivered(1)
    assert len(got) == 4
    assert router.delivered(2) == []
    router.settle(1, flow, got[0].id)
    router.ask(CloseFlow, 1, flow)
    assert SendMessage(2, FlowActive(answer.handle)) in router.said
    assert texts(router.delivered(2)) == ["1", "2", "3"]


def test_runs_settle_messages_in_flight_on_the_flow_and_no_others() -> None:
    router = filled(6, queue("a", "orders.>"))
    router.link(2)
    one, two = router.flow(1, "a", 3), router.flow(2, "a", 3)
    assert (len(router.delivered(1)), len(router.delivered(2))) == (3, 3)
    router.tell(Data(1, encode_settle(one, [(1, 2**64 - 1, 1)])))
    assert router.queued("a") == 3
    router.tell(Data(2, encode_settle(two, [(1 << 40, 1 << 41, 1)])))
    assert router.queued("a") == 0
    after = router.restart()
    assert after.queued("a") == 0


def test_settling_on_a_closed_flow_does_nothing() -> None:
    router = filled(1, queue("a", "orders.>"))
    flow = router.flow(1, "a")
    (got,) = router.delivered(1)
    router.ask(CloseFlow, 1, flow)
    router.settle(1, flow, got.id)
    assert router.queued("a") == 1
    assert router.ended(1) is None


# Create, alter, empty and delete endpoints


def test_endpoints_are_created_altered_emptied_and_deleted_and_survive_restarts() -> None:
    router = filled(0)
    a = queue("a", "orders.>")
    assert router.create(a) == Done(0)
    assert router.create(a) == Done(0)
    assert isinstance(router.create(queue("a", "trades.>")), Refused)
    router.publish(1, router.publisher(1), 1, message(), message())
    assert router.ask(AlterEndpoint, 1, queue("a", "trades.>", messages_max=1)) == Done(0)
    router = router.restart()
    assert router.queued("a") == 2
    router.link(1)
    router.publish(1, router.publisher(1), 3, message(), message("y", "trades.x"))
    assert router.outcomes(1) == {3: 6, 4: OUTCOME_FULL}
    assert router.ask(EmptyEndpoint, 1, "a") == Done(0)
    assert router.queued("a") == 0
    flow = router.flow(1, "a")
    answer = router.ask(DeleteEndpoint, 1, "a")
    assert isinstance(answer, Refused)
    assert answer.code == "endpoint_in_use"
    assert router.ask(DeleteEndpoint, 1, "a", True) == Done(0)
    assert FlowEnded(flow, "unknown_endpoint", "a was deleted") in messages(router)
    router = router.restart()
    assert router.core.endpoints.get("a") is None
    assert router.core.tables.message_count == 0


def test_a_dead_letter_endpoint_in_use_is_not_deleted_and_cannot_form_a_cycle() -> None:
    router = filled(0, queue("a", "orders.>"))
    answer = router.ask(DeleteEndpoint, 1, "dead", True)
    assert isinstance(answer, Refused)
    assert isinstance(router.ask(AlterEndpoint, 1, EndpointConfig(name="dead", dead_to="a")), Refused)
    assert isinstance(router.create(queue("b", dead_to="nowhere")), Refused)
    with pytest.raises(ConfigurationError):
        queue("c", dead_to="c")


def test_deleting_an_endpoint_releases_messages_that_wait_for_the_disk() -> None:
    router = filled(0, queue("a", "orders.>"))
    router.is_storing = False
    router.publish(1, router.publisher(1), 1, message())
    router.ask(DeleteEndpoint, 1, "a")
    router.store()
    assert router.core.tables.message_count == 0
    assert router.outcomes(1) == {1: OUTCOME_STORED}


# Rights, and the disk


def test_rights_by_tokens() -> None:
    router = Router(queue("a", "orders.>"))
    router.link(1, grants=(Grant("orders.eu.>", "send"), Grant("queue.a", "receive")))
    router.publish(1, router.publisher(1), 1, message("x", "orders.eu.1"), message("x", "orders.us.1"))
    assert router.outcomes(1) == {1: OUTCOME_STORED, 2: OUTCOME_NOT_ENTITLED}
    router.flow(1, "a")
    refused = router.ask(OpenFlow, 1, "dead", 1)
    assert isinstance(refused, Refused)
    assert refused.code == "not_entitled"
    assert isinstance(router.create(queue("b")), Refused)


def test_a_full_disk_refuses_messages_and_loses_none() -> None:
    """A failed or full disk: the router stops acknowledging, and reports it (REPL-1)."""
    router = filled(2, queue("a", "orders.>"))
    flow = router.flow(1, "a")
    got = router.delivered(1)
    router.outcomes(1)
    router.tell(DiskTroubled("no space"))
    handle = router.publisher(1)
    router.publish(1, handle, 3, message())
    assert router.outcomes(1) == {3: OUTCOME_DISK}
    appended = router.journal.next_sequence
    router.settle(1, flow, got[0].id)
    assert router.journal.next_sequence == appended
    assert router.core.trouble == "no space"
    router.tell(DiskRecovered())
    assert router.journal.next_sequence == appended + 1
    router.publish(1, handle, 3, message())
    assert router.outcomes(1) == {3: OUTCOME_STORED}
    after = router.restart()
    assert after.queued("a") == 2


def test_the_reserve_on_a_full_disk_is_enough_for_settlements_and_log_cleaning() -> None:
    """REPL-12: so consumers free space; no new message is accepted until then."""
    router = filled(200, queue("a", "orders.>"), section_bytes=4_096)
    flow = router.flow(1, "a", credit=200)
    got = router.delivered(1)
    router.tell(DiskTroubled("no space", is_relieved=True))
    handle = router.publisher(1)
    router.outcomes(1)
    router.publish(1, handle, 201, message())
    assert router.outcomes(1) == {201: OUTCOME_DISK}
    before, appended = min(router.journal.records), router.journal.next_sequence
    for each in got[:-1]:
        router.settle(1, flow, each.id)
    assert router.journal.next_sequence > appended
    assert min(router.journal.records) > before, "every settled message is removed, even a single one"
    router.tell(DiskTroubled("no space"))
    appended = router.journal.next_sequence
    router.settle(1, flow, got[-1].id)
    assert router.journal.next_sequence == appended, "no space is left"
    router.tell(DiskRecovered())
    assert router.restart().queued("a") == 0
