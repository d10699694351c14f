"""A single message router: publish, store, queue, deliver, acknowledge, delete (REPL-1)."""

from assured_kit import Router, message, queue, texts
from penstock.assured.core.router.events import Became, Data
from penstock.assured.wire._layout import (
    OUTCOME_BAD_TOPIC,
    OUTCOME_KNOWN,
    OUTCOME_STORED,
    OUTCOME_TOO_LARGE,
    OUTCOME_UNMATCHED,
)
from penstock.assured.wire.control import OpenPublisher, Refused


def test_a_message_goes_from_a_publisher_to_a_consumer_and_is_deleted() -> None:
    """REPL-1: stored, queued to every endpoint that matches, acknowledged, delivered, settled, gone."""
    router = Router(queue("a", "orders.>"), queue("b", "orders.*"), queue("c", "trades.>"))
    router.link(1)
    handle = router.publisher(1)
    router.publish(1, handle, 1, message("one"), message("two"))
    assert router.outcomes(1) == {1: OUTCOME_STORED, 2: OUTCOME_STORED}
    assert [router.queued(name) for name in "abc"] == [2, 2, 0]
    router.link(2)
    a, b = router.flow(2, "a"), router.flow(2, "b")
    got = router.delivered(2)
    assert texts(got) == ["one", "two", "one", "two"]
    assert {each.flags for each in got} == {0}
    assert [(each.publisher, each.number) for each in got[:2]] == [(77, 1), (77, 2)]
    router.settle(2, a, *[each.id for each in got[:2]])
    assert router.core.tables.message_count == 2
    router.settle(2, b, *[each.id for each in got[2:]])
    assert router.core.tables.message_count == 0


def test_nothing_is_acknowledged_or_delivered_before_it_is_on_the_disk() -> None:
    """REPL-1."""
    router = Router(queue("a", "orders.>"))
    router.link(1)
    handle = router.publisher(1)
    router.flow(1, "a")
    router.is_storing = False
    router.publish(1, handle, 1, message("one"))
    assert router.outcomes(1) == {}
    assert router.delivered(1) == []
    router.store()
    assert router.outcomes(1) == {1: OUTCOME_STORED}
    assert texts(router.delivered(1)) == ["one"]


def test_acknowledged_messages_survive_a_crash_and_are_flagged_as_redelivered() -> None:
    """REPL-1: after kill -9, acknowledged messages are there; they may have been delivered, and are flagged
    (REPL-7)."""
    router = Router(queue("a", "orders.>"))
    router.link(1)
    handle = router.publisher(1)
    flow = router.flow(1, "a", 2)
    router.publish(1, handle, 1, *[message(str(each)) for each in range(5)])
    first, _ = router.delivered(1)
    router.settle(1, flow, first.id)
    router.is_storing = False
    router.publish(1, handle, 6, message("lost"))
    after = router.restart()
    after.link(1)
    after.flow(1, "a")
    got = after.delivered(1)
    assert texts(got) == ["1", "2", "3", "4"]
    assert {each.flags for each in got} == {1}
    handle = after.publisher(1)
    after.publish(1, handle, 5, message("4"), message("lost"))
    assert after.outcomes(1) == {5: OUTCOME_KNOWN, 6: OUTCOME_STORED}
    assert texts(after.delivered(1)) == ["lost"]


def test_a_resend_is_acknowledged_and_not_stored_twice() -> None:
    """REPL-7: a publisher that lost its link sends the messages without an outcome again."""
    router = Router(queue("a", "orders.>"))
    router.link(1)
    handle = router.publisher(1)
    router.is_storing = False
    router.publish(1, handle, 1, message("one"), message("two"))
    router.drop(1)
    router.link(2)
    handle = router.publisher(2)
    router.publish(2, handle, 1, message("one"), message("two"), message("three"))
    assert router.outcomes(2) == {}  # the first ones are being written to the disk
    router.store()
    assert router.outcomes(2) == {1: 1, 2: 1, 3: 1}
    router.is_storing = True
    router.publish(2, handle, 2, message("two"))
    assert router.outcomes(2) == {2: OUTCOME_KNOWN}
    assert router.queued("a") == 3


def test_messages_that_cannot_be_stored_are_refused() -> None:
    router = Router(queue("a", "orders.>"), message_bytes_max=10)
    router.link(1)
    handle = router.publisher(1)
    router.publish(1, handle, 1, message("12345678901"), message("x", "or ders"), message("x", "trades"), message())
    assert router.outcomes(1) == {1: OUTCOME_TOO_LARGE, 2: OUTCOME_BAD_TOPIC, 3: OUTCOME_UNMATCHED, 4: OUTCOME_STORED}


def test_invalid_frames_end_the_link() -> None:
    router = Router(queue("a", "orders.>"))
    for number, data in enumerate((b"\1", b"\4\0\0\0\1abc", b"\1\0\0\0\x09", bytes(12)), start=1):
        router.link(number)
        router.tell(Data(number, data))
        ended = router.ended(number)
        assert ended is not None
        assert ended.code == "malformed"


def test_an_epoch_is_started_once_and_ids_continue() -> None:
    router = Router(queue("a", "orders.>"))
    assert any(isinstance(each, Became) for each in router.said)
    router.link(1)
    handle = router.publisher(1)
    flow = router.flow(1, "a")
    router.publish(1, handle, 1, message())
    (got,) = router.delivered(1)
    assert got.id == 1 << 40 | 1
    router.settle(1, flow, got.id)
    after = router.restart()
    after.link(1)
    after.flow(1, "a")
    after.publish(1, after.publisher(1), 2, message())
    assert [each.id for each in after.delivered(1)] == [1 << 40 | 2]


def test_a_publisher_belongs_to_its_client_after_a_restart_and_after_cleaning() -> None:
    router = Router(queue("a", "orders.>"), section_bytes=4_096)
    router.link(1, "alice")
    handle, flow = router.publisher(1), router.flow(1, "a")
    for number in range(1, 200):
        router.publish(1, handle, number, message("x" * 200))
        router.settle(1, flow, *[each.id for each in router.delivered(1)])
    assert min(router.journal.records) > 1
    after = router.restart()
    after.link(1, "mallory")
    after.link(2, "alice")
    assert isinstance(after.ask(OpenPublisher, 1, 77), Refused)
    assert after.publisher(2)


def test_a_publisher_belongs_to_its_client() -> None:
    """Messages of another client would use up its numbers."""
    router = Router(queue("a", "orders.>"))
    router.link(1, "alice")
    handle = router.publisher(1)
    router.publish(1, handle, 1, message("1"))
    router.link(2, "mallory")
    answer = router.ask(OpenPublisher, 2, 77)
    assert isinstance(answer, Refused)
    assert answer.code == "not_entitled"
    router.publish(1, handle, 2, message("2"))  # the publisher is open where it was
    assert router.outcomes(1) == {1: OUTCOME_STORED, 2: OUTCOME_STORED}
    router.drop(1)
    assert isinstance(router.ask(OpenPublisher, 2, 77), Refused)
    router.link(3, "alice")
    assert router.publisher(3) == handle
