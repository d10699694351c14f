"""How the bench judges that a client of a killed node heard nothing."""

import pytest

from penstock.bench.failover_nodes import UPDATES_PER_SECOND, Heard


def heard_at(*times: float) -> Heard:
    heard = Heard()
    heard._times = list(times)
    return heard


def test_a_stall_is_the_longest_silence_after_the_kill() -> None:
    assert heard_at(9.0, 10.01, 11.51, 11.52).stall(10.0) == pytest.approx(1.5)
    assert heard_at(9.0, 12.0, 12.01).stall(10.0) == pytest.approx(2.0)


def test_a_client_that_hears_nothing_any_more_is_stalled_still() -> None:
    assert heard_at(9.0, 10.01, 10.02).stall(10.0) is None
    assert heard_at().stall(10.0) is None
    assert heard_at(10.0 + 9 / UPDATES_PER_SECOND).stall(10.0) is None, "that was on its way"


def test_what_was_heard_before_is_forgotten() -> None:
    heard = heard_at(9.0, 12.0)
    heard.forget()
    assert len(heard) == 0
