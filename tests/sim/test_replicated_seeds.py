"""Two message routers under crashes, partitions and switches; checkers that do notice (REPL-2 to 10, REPL-14)."""

from typing import Any

import pytest

from penstock.assured.pair import Pair
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


def go_on_without_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pair, "_stand_by", lambda self, now_ns, why: None)


SABOTAGE = [go_on_without_the_lease]


@pytest.mark.parametrize("sabotage", SABOTAGE, ids=lambda each: each.__name__)
def test_a_broken_pair_is_noticed(sabotage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    with pytest.raises(SimulationError, match="ReplicatedChecker"):
        run_seeds(range(SABOTAGE_SEEDS))
