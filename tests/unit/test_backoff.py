"""Pauses between connection attempts and between the restarts of a node, in virtual time."""

import pytest

from penstock.base.backoff import Backoff, BackoffPolicy, pause_ns
from penstock.base.clock import NS_PER_MS
from penstock.base.errors import ConnectionLostError, RefusedError, UnreachableError
from penstock.node.restarts import FAILING_DEATHS, RESTART_SECONDS, STEADY_SECONDS, Restarts
from penstock.sim.randomness import SeededRandomness


class NoChance:
    def below(self, limit: int) -> int:
        return 0


class MostChance:
    def below(self, limit: int) -> int:
        return limit - 1


def pauses_ms(backoff: Backoff, count: int, *, is_absent: bool) -> list[int]:
    return [backoff.next_ns(is_absent=is_absent) // NS_PER_MS for _ in range(count)]


def test_pauses_grow_up_to_a_maximum_that_is_small_for_connection_refused() -> None:
    assert pauses_ms(Backoff(NoChance()), 6, is_absent=True) == [50, 100, 200, 400, 500, 500]
    assert pauses_ms(Backoff(NoChance()), 8, is_absent=False) == [50, 100, 200, 400, 800, 1_600, 2_000, 2_000]


def test_success_or_another_kind_of_failure_resets_the_pauses() -> None:
    backoff = Backoff(NoChance())
    pauses_ms(backoff, 20, is_absent=True)
    backoff.succeeded()
    assert pauses_ms(backoff, 2, is_absent=True) == [50, 100]
    pauses_ms(backoff, 20, is_absent=True)
    assert pauses_ms(backoff, 2, is_absent=False) == [50, 100], "the server listens again: one refusal, not 22"


@pytest.mark.parametrize("is_absent", [True, False])
def test_constant_pauses_neither_grow_nor_vary(is_absent: bool) -> None:
    assert pauses_ms(Backoff(MostChance(), BackoffPolicy.constant(70)), 3, is_absent=is_absent) == [70, 70, 70]


def test_the_random_share_of_a_pause_is_bounded() -> None:
    policy = BackoffPolicy(base_ms=100, jitter=0.5, max_ms=1_000)
    assert pause_ns(policy, 1, NoChance()) == 100 * NS_PER_MS
    assert pause_ns(policy, 1, MostChance()) == pytest.approx(50 * NS_PER_MS, rel=1e-6)
    randomness = SeededRandomness(1)
    found = {pause_ns(policy, 4, randomness) for _ in range(50)}
    assert len(found) > 40
    assert min(found) >= 400 * NS_PER_MS
    assert max(found) <= 800 * NS_PER_MS


def test_a_maximum_below_the_first_pause_and_many_failures_are_valid() -> None:
    policy = BackoffPolicy(base_ms=100, max_ms=10)
    assert pause_ns(policy, 1, NoChance()) == 10 * NS_PER_MS
    assert pause_ns(BackoffPolicy(), 10**9, NoChance()) == 2_000 * NS_PER_MS


def test_an_error_tells_whether_the_port_is_open() -> None:
    backoff = Backoff(NoChance())
    for _ in range(10):
        backoff.next_seconds(UnreachableError("refused"))
    assert backoff.next_seconds(UnreachableError("refused")) == 0.5
    for error in (ConnectionLostError("cut"), RefusedError("no", peer_code="limit"), None):
        for _ in range(10):
            backoff.next_seconds(error)
        assert backoff.next_seconds(error) == 2.0


# Restarts


def test_a_stable_node_that_dies_is_restarted_at_once_however_often() -> None:
    restarts, now = Restarts(), 0.0
    for _ in range(20):
        restarts.started()
        restarts.ready(now)
        now += STEADY_SECONDS
        assert restarts.died(now) == now + RESTART_SECONDS[0]


def test_a_node_that_does_not_stay_up_is_restarted_with_growing_pauses() -> None:
    restarts = Restarts()
    pauses = []
    for now in range(0, 100 * (len(RESTART_SECONDS) + 2), 100):
        restarts.started()
        restarts.ready(now)
        again = restarts.died(now + 1.0)
        assert again is not None
        pauses.append(again - now - 1.0)
    assert pauses == pytest.approx([*RESTART_SECONDS, RESTART_SECONDS[-1], RESTART_SECONDS[-1]])


def test_a_node_that_dies_every_six_seconds_is_restarted_more_slowly_and_is_failing() -> None:
    restarts, now, pauses = Restarts(), 0.0, []
    for deaths in range(1, len(RESTART_SECONDS) + 1):
        restarts.started()
        restarts.ready(now)
        assert not restarts.became_steady(now + 6.0)
        again = restarts.died(now + 6.0)
        assert again is not None
        assert restarts.is_failing is (deaths >= FAILING_DEATHS)
        pauses.append(again - now - 6.0)
        now = again
    assert pauses == pytest.approx(RESTART_SECONDS)
    assert "died 9 times without being ready for 60 s, restarted after 60 s" in restarts.describe()
    restarts.started()
    assert not restarts.became_steady(now + STEADY_SECONDS), "the node is not ready"
    restarts.ready(now)
    assert restarts.is_failing
    assert restarts.became_steady(now + STEADY_SECONDS)
    assert not restarts.is_failing
    assert not restarts.became_steady(now + 2 * STEADY_SECONDS), "reported once"


def test_ordered_kills_do_not_count_as_failures() -> None:
    restarts = Restarts()
    for now in range(0, 100, 10):
        restarts.started()
        restarts.ready(now)
        assert restarts.died(now + 1.0, is_ordered=True) == now + 1.0 + RESTART_SECONDS[0]
    assert restarts.deaths == 0


def test_a_node_that_dies_during_its_restart_is_restarted_once_more() -> None:
    restarts = Restarts()
    restarts.started()
    restarts.ready(0.0)
    assert restarts.died(100.0) is not None
    restarts.started()
    assert restarts.died(100.5) == pytest.approx(100.5 + RESTART_SECONDS[1])


def test_a_node_that_never_started_is_not_restarted() -> None:
    restarts = Restarts()
    restarts.started()
    assert restarts.died(1.0) is None
