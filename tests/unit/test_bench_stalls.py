"""The bench's measure of how long a client of a failed node received nothing."""

import pytest

from penstock.bench.failover.clients import Heard

BACK_AT = 11.0


def heard_at(*times: float) -> Heard:
    heard = Heard()
    heard._times = list(times)
    return heard


def test_a_stall_is_the_longest_silence_after_the_fault() -> None:
    assert heard_at(9.0, 10.01, 11.51, 11.52).stall(10.0, BACK_AT) == pytest.approx(1.5)
    assert heard_at(9.0, 12.0, 12.01).stall(10.0, BACK_AT) == pytest.approx(2.0)


def test_a_client_without_messages_since_the_recovery_is_still_stalled() -> None:
    assert heard_at(9.0, 10.01, 10.02).stall(10.0, BACK_AT) is None
    assert heard_at().stall(10.0, BACK_AT) is None
    assert heard_at(BACK_AT).stall(10.0, BACK_AT) is None


def test_receive_times_before_the_query_are_dropped() -> None:
    heard = heard_at(9.0, 12.0)
    heard.forget()
    assert len(heard) == 0
