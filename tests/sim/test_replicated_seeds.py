"""Two message routers under crashes, partitions and switches; checkers that do notice (REPL-2 to 10, REPL-14)."""

from typing import Any

import pytest

from penstock.assured import pair, receiving
from penstock.assured.degrading import Degrading
from penstock.assured.pair import Pair
from penstock.assured.receiving import Receiving
from penstock.assured.sending import Sending
from penstock.base.errors import SimulationError
from penstock.sim.replicated import run_replicated_seed

SEEDS = 16
SEEDS_PER_TEST = 4
SOAK_SEEDS = 1_000
SABOTAGE_SEEDS = 40


def run_seeds(seeds: range, seconds: float = 2.0) -> None:
    for seed in seeds:
        run_replicated_seed(seed, seconds=seconds)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_what_was_acknowledged_as_synchronous_survives_every_switch(first: int) -> None:
    run_seeds(range(first, first + SEEDS_PER_TEST))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, 20))
def test_many_more_seeds(first: int) -> None:
    run_seeds(range(first, first + 20), seconds=6)


def test_a_seed_replays_exactly() -> None:
    assert run_replicated_seed(5, seconds=1) == run_replicated_seed(5, seconds=1)


# Each of these breaks one promise in the product; the checkers must see it from outside.


def acknowledge_before_the_other_router_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "OUTCOME_DEGRADED", pair.OUTCOME_SYNC)
    monkeypatch.setattr(Degrading, "activate", lambda self, now_ns: setattr(self, "mode", "degraded"))


def acknowledge_what_is_only_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Receiving.records

    def broken(self: Receiving, data: bytes) -> None:
        original(self, data)
        self._answers[-1] = (0, self._answers[-1][1])

    monkeypatch.setattr(Receiving, "records", broken)


def degrade_without_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """And tell publishers that it is synchronous."""
    original = Degrading.look

    def broken(self: Degrading, sending: Sending | None, now_ns: int) -> bool | None:
        told = original(self, sending, now_ns)
        if self.mode == "degrading":
            self.mode = "degraded"
        return told

    monkeypatch.setattr(Degrading, "look", broken)
    monkeypatch.setattr(pair, "OUTCOME_DEGRADED", pair.OUTCOME_SYNC)


def go_on_without_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pair, "_stand_by", lambda self, now_ns, why: None)


def ask_for_nothing_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    original = receiving.ids_frame

    def broken(kind: int, number: int, ids: Any, *, is_last: bool = False) -> bytes:
        return original(kind, number, ids[:0], is_last=is_last)

    monkeypatch.setattr(receiving, "ids_frame", broken)


SABOTAGE = [
    acknowledge_before_the_other_router_has_it,
    acknowledge_what_is_only_sent,
    degrade_without_a_note,
    go_on_without_the_lease,
    ask_for_nothing_that_is_missing,
]


@pytest.mark.parametrize("sabotage", SABOTAGE, ids=lambda each: each.__name__)
def test_a_broken_pair_is_noticed(sabotage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    with pytest.raises(SimulationError, match="ReplicatedChecker"):
        run_seeds(range(SABOTAGE_SEEDS))
