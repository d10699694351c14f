"""Transactions of a message router are atomic (REPL-10)."""

from assured_kit import Router, message, queue, texts
from penstock.assured.core.router.events import Data, SendMessage
from penstock.assured.wire._layout import OUTCOME_STORED, OUTCOME_TRANSACTION
from penstock.assured.wire.control import CloseFlow, Done, Ended, Refused, Rollback
from penstock.assured.wire.frames import encode_publish


def prepared(count: int = 3, **settings: object) -> tuple[Router, int, int]:
    """A router with messages in a, which a transaction on link 1 consumes; the transaction publishes to b."""
    router = Router(queue("a", "orders.>"), queue("b", "trades.>", messages_max=5), **settings)
    router.link(1)
    handle = router.publisher(1)
    router.publish(1, handle, 1, *[message(str(each)) for each in range(count)])
    router.outcomes(1)
    return router, handle, router.flow(1, "a")


def test_a_transaction_is_committed_as_one() -> None:
    """REPL-10: published and consumed together; nothing is visible before the commit, all of it survives a crash."""
    router, handle, flow = prepared()
    got = router.delivered(1)
    router.begin(1, handle, 1)
    router.publish(1, handle, 4, message("t1", "trades.x"), message("t2", "trades.y"), transaction=1)
    router.settle(1, flow, got[0].id, got[1].id, transaction=1)
    assert (router.queued("a"), router.queued("b")) == (3, 0)
    assert router.outcomes(1) == {}
    before = router.journal.next_sequence
    assert router.commit(1, handle, 1) == Ended(0, "committed", OUTCOME_STORED)
    assert router.journal.next_sequence == before + 1
    assert router.outcomes(1) == {4: OUTCOME_STORED, 5: OUTCOME_STORED}
    assert (router.queued("a"), router.queued("b")) == (1, 2)
    after = router.restart()
    assert (after.queued("a"), after.queued("b")) == (1, 2)
    after.link(1)
    after.flow(1, "b")
    assert texts(after.delivered(1)) == ["t1", "t2"]
    handle = after.publisher(1)
    assert after.commit(1, handle, 1) == Ended(0, "committed")
    assert after.commit(1, handle, 2) == Ended(0, "rolled_back")


def test_a_rollback_drops_published_messages_and_redelivers_consumed_ones() -> None:
    """REPL-10."""
    router, handle, flow = prepared()
    got = router.delivered(1)
    router.begin(1, handle, 1)
    router.publish(1, handle, 4, message("t1", "trades.x"), transaction=1)
    router.settle(1, flow, got[0].id, transaction=1)
    router.settle(1, flow, got[1].id)
    router.ask(Rollback, 1, handle, 1)
    assert router.outcomes(1) == {4: OUTCOME_TRANSACTION}
    (again,) = router.delivered(1)
    assert (again.payload, again.flags) == (b"0", 1)
    assert (router.queued("a"), router.queued("b")) == (2, 0)


def test_a_lost_link_rolls_back() -> None:
    router, handle, flow = prepared()
    got = router.delivered(1)
    router.begin(1, handle, 1)
    router.settle(1, flow, *[each.id for each in got], transaction=1)
    router.drop(1)
    router.link(2)
    router.flow(2, "a")
    assert texts(router.delivered(2)) == ["0", "1", "2"]
    assert router.commit(2, router.publisher(2), 1) == Ended(0, "rolled_back")


def test_a_crash_before_the_record_is_complete_rolls_back() -> None:
    router, handle, flow = prepared()
    got = router.delivered(1)
    router.begin(1, handle, 1)
    router.publish(1, handle, 4, message("t1", "trades.x"), transaction=1)
    router.settle(1, flow, got[0].id, transaction=1)
    router.is_storing = False
    assert router.commit(1, handle, 1) is None  # the disk has not answered
    after = router.restart()
    assert (after.queued("a"), after.queued("b")) == (3, 0)
    after.link(1)
    assert after.commit(1, after.publisher(1), 1) == Ended(0, "rolled_back")


def test_a_transaction_that_does_not_fit_is_rolled_back_as_a_whole() -> None:
    router, handle, flow = prepared()
    got = router.delivered(1)
    router.begin(1, handle, 1)
    router.settle(1, flow, got[0].id, transaction=1)
    router.publish(1, handle, 4, *[message(str(each), "trades.x") for each in range(6)], transaction=1)
    answer = router.commit(1, handle, 1)
    assert isinstance(answer, Ended)
    assert answer.outcome == "rolled_back"
    assert set(router.outcomes(1).values()) == {OUTCOME_TRANSACTION}
    assert (router.queued("a"), router.queued("b"), router.core.tables.message_count) == (3, 0, 3)
    router.publish(1, handle, 10, message("next", "trades.x"))
    assert router.outcomes(1) == {10: OUTCOME_STORED}


def test_a_repeated_commit_waits_while_the_record_is_written() -> None:
    router, handle, _ = prepared()
    router.begin(1, handle, 1)
    router.publish(1, handle, 4, message("t", "trades.x"), transaction=1)
    router.is_storing = False
    router.commit(1, handle, 1)
    router.drop(1)
    router.link(2)
    again = router.publisher(2)
    assert router.commit(2, again, 1) is None
    said = len(router.said)
    router.store()
    sent = [each for each in router.said[said:] if isinstance(each, SendMessage) and each.link == 2]
    assert [each.message for each in sent] == [Ended(router.request, "committed", OUTCOME_STORED)]


def test_invalid_transactions_are_refused() -> None:
    router, handle, flow = prepared(transaction_messages_max=2, transactions_max=1)
    got = router.delivered(1)
    router.begin(1, handle, 5)
    assert isinstance(router.begin(1, handle, 6), Refused)
    other = router.publisher(1, 78)
    assert isinstance(router.begin(1, other, 7), Refused)
    router.publish(1, handle, 9, message(), transaction=4)
    assert router.outcomes(1) == {9: OUTCOME_TRANSACTION}
    router.publish(1, handle, 10, message(), message(), message(), transaction=5)
    assert getattr(router.commit(1, handle, 5), "why", "").startswith("it has more than ")
    router.begin(1, handle, 6)
    router.settle(1, flow, got[0].id, transaction=6)
    router.ask(CloseFlow, 1, flow)
    assert "flow" in getattr(router.commit(1, handle, 6), "why", "")
    assert router.queued("a") == 3


def test_a_transaction_that_takes_too_long_is_rolled_back() -> None:
    router, handle, flow = prepared(transaction_ms_max=100)
    got = router.delivered(1)
    router.begin(1, handle, 1)
    router.settle(1, flow, got[0].id, transaction=1)
    assert router.core.next_deadline_ns() == 100_000_000
    router.advance(100)
    assert texts(router.delivered(1)) == ["0"]
    assert "long" in getattr(router.commit(1, handle, 1), "why", "")


def test_a_commit_with_the_handle_of_another_publisher_ends_nothing() -> None:
    router, handle, _ = prepared()
    other = router.publisher(1, 78)
    router.begin(1, handle, 1)
    router.publish(1, handle, 4, message("t", "trades.x"), transaction=1)
    assert router.commit(1, other, 1) == Ended(0, "rolled_back")
    assert router.commit(1, handle, 1) == Ended(0, "committed", OUTCOME_STORED)


def test_a_transaction_that_took_too_long_frees_its_slot() -> None:
    router, handle, _ = prepared(transactions_max=1, transaction_ms_max=100)
    other = router.publisher(1, 78)
    router.begin(1, handle, 1)
    assert isinstance(router.begin(1, other, 2), Refused)
    router.advance(100)
    assert isinstance(router.begin(1, other, 2), Done)


def test_a_transaction_keeps_only_its_own_messages_in_memory() -> None:
    router, handle, flow = prepared()
    router.delivered(1)
    router.begin(1, handle, 1)
    large = encode_publish(handle, 4, [message("x" * 100_000)])
    small = encode_publish(handle, 5, [message("t", "trades.x")], transaction=1)
    router.tell(Data(1, large + small))
    router.settle(1, flow, 2**40 - 1, transaction=1)  # not a message of the flow
    (transaction,) = router.core.transactions._open.values()
    assert len(transaction.batches[0].data) < 1_000
    assert not transaction.held
    assert router.commit(1, handle, 1) == Ended(0, "committed", OUTCOME_STORED)
    assert router.queued("b") == 1
