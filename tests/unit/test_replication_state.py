"""The state that an active router keeps for the other router of its pair."""

import numpy

from penstock.assured.core.router._replication_state import ReplicationState


def consume(state: ReplicationState, transaction: int, *ids: int) -> None:
    count = len(ids)
    whats, targets = numpy.ones(count, numpy.uint8), numpy.zeros(count, numpy.uint32)
    state.add_consumed(transaction, 7, numpy.array(ids, numpy.uint64), whats, targets)


def test_consumption_by_transactions_is_taken_up_to_an_id_and_once() -> None:
    state = ReplicationState()
    for transaction in (10, 20, 30):
        consume(state, transaction, transaction - 2, transaction - 1)
    assert [each[0] for each in state.take_consumed(20)] == [10, 20]
    assert state.take_consumed(20) == []
    ((transaction, endpoint, ids, *_),) = state.consumed
    assert (transaction, endpoint, ids.tolist()) == (30, 7, [28, 29])


def test_a_missing_endpoint_is_reported_once() -> None:
    state = ReplicationState()
    assert not state.take_absent_met()
    state.note_absent_met()
    assert state.has_met_absent
    assert state.take_absent_met()
    assert not state.take_absent_met()


def test_a_broken_stream_sends_nothing() -> None:
    state = ReplicationState()
    state.break_stream()
    assert (state.is_stream_broken, state.is_streaming, state.backlog) == (True, False, 0)
