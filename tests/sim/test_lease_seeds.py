"""The lease of two routers under crashes, partitions and differing clocks; a checker that must detect broken promises
(REPL-14)."""

from typing import Any

import pytest

import penstock.sim.lease.nodes as leasenodes
from penstock.assured.core.lease.keeper import LeaseKeeper
from penstock.assured.core.lease.protocol import Ask, Granted, LeaseConfig, Memory
from penstock.assured.core.lease.voter import LeaseVoter
from penstock.base.errors import SimulationError
from penstock.sim.lease.plant import run_lease_seed

SEEDS = 100
SEEDS_PER_TEST = 50
SOAK_SEEDS = 6_000
SABOTAGE_SEEDS = 400


def run_seeds(seeds: range, seconds: float = 8.0) -> None:
    for seed in seeds:
        run_lease_seed(seed, seconds=seconds)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_two_routers_never_hold_the_lease(first: int) -> None:
    run_seeds(range(first, first + SEEDS_PER_TEST))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, 100))
def test_many_more_seeds(first: int) -> None:
    run_seeds(range(first, first + 100), seconds=30)


def test_a_seed_replays_exactly() -> None:
    assert run_lease_seed(5, seconds=5) == run_lease_seed(5, seconds=5)
    assert run_lease_seed(5, seconds=5).digest != run_lease_seed(6, seconds=5).digest


def test_the_seeds_cover_every_kind_of_fault() -> None:
    summaries = [run_lease_seed(seed, seconds=8) for seed in range(20)]
    for name in ("epochs", "switches", "crashes", "partitions", "stalls", "clocks_set", "releases", "forced", "notes"):
        assert sum(getattr(each, name) for each in summaries) > 0, name


# Each sabotage breaks one promise of the product; the checker must detect the sabotage from outside.


def grant_at_once_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LeaseVoter.__init__

    def broken(self: LeaseVoter, config: LeaseConfig, memory: Memory, now_ns: int) -> None:
        original(self, config, memory, now_ns)
        self._bound_until_ns = now_ns

    monkeypatch.setattr(LeaseVoter, "__init__", broken)


def forget_everything_in_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vote is given before it is on the disk, and is never written."""

    def broken(self: leasenodes.MemoryDisk, memory: Memory, done: Any) -> None:
        done()

    monkeypatch.setattr(leasenodes.MemoryDisk, "keep", broken)


def hold_from_when_it_was_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LeaseKeeper._granted

    def broken(self: LeaseKeeper, voter: str, granted: Granted, now_ns: int) -> Any:
        claim = self._claim
        if claim is not None and granted.round in claim.rounds:
            claim.rounds[granted.round] = now_ns
        return original(self, voter, granted, now_ns)

    monkeypatch.setattr(LeaseKeeper, "_granted", broken)


def hold_as_long_as_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseConfig, "holding_ns", LeaseConfig.promise_ns)


def vote_for_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseVoter, "bound_until_ns", lambda self, candidate: 0)


def be_content_with_one_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LeaseKeeper._extend

    def broken(self: LeaseKeeper, claim: Any, now_ns: int) -> Any:
        claim.granted_ns[self._others[0]] = claim.granted_ns[self._name]
        return original(self, claim, now_ns)

    monkeypatch.setattr(LeaseKeeper, "_extend", broken)


def disregard_who_is_degraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseVoter, "is_barred", lambda self, candidate: False)


def note_degraded_at_this_router_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseKeeper, "_is_noted", lambda self, claim: claim.noted.get(self._name, (0, False))[1])


def use_an_epoch_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LeaseVoter._objection

    def broken(self: LeaseVoter, candidate: str, ask: Ask, now_ns: int) -> Any:
        reason = original(self, candidate, ask, now_ns)
        return None if reason == "epoch" and now_ns >= self.bound_until_ns(candidate) else reason

    monkeypatch.setattr(LeaseVoter, "_objection", broken)


SABOTAGE = [
    grant_at_once_after_a_restart,
    forget_everything_in_a_restart,
    hold_from_when_it_was_granted,
    hold_as_long_as_promised,
    vote_for_whoever_asks,
    be_content_with_one_vote,
    disregard_who_is_degraded,
    note_degraded_at_this_router_only,
    use_an_epoch_twice,
]


@pytest.mark.parametrize("sabotage", SABOTAGE, ids=lambda each: each.__name__)
def test_a_broken_lease_is_detected(sabotage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    with pytest.raises(SimulationError, match="LeaseChecker"):
        run_seeds(range(SABOTAGE_SEEDS))
