"""A ticker plant, multiplexers and consumers under every fault, and checkers that do notice."""

import pytest

from penstock.sim import EnginePlant, EnginePlantOptions, World, run_engine_seed

SEEDS = 200
SEEDS_PER_TEST = 20
SOAK_SEEDS = 4_000
SECONDS = 0.3


def run_seeds(seeds: range, seconds: float = SECONDS) -> None:
    for seed in seeds:
        run_engine_seed(seed, seconds=seconds)


@pytest.mark.spec("TP-2", "MUX-1", "CRIT-1", "CRIT-4", "ADPT-1", "METR-1", "METR-4")
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_each_class_keeps_its_promise(first: int) -> None:
    run_seeds(range(first, first + SEEDS_PER_TEST))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, 50))
def test_many_more_seeds(first: int) -> None:
    run_seeds(range(first, first + 50), seconds=2)


def test_a_seed_replays_exactly() -> None:
    assert run_engine_seed(3, seconds=0.3) == run_engine_seed(3, seconds=0.3)
    assert run_engine_seed(3, seconds=0.3).digest != run_engine_seed(4, seconds=0.3).digest


def test_the_seeds_reach_every_kind_of_trouble() -> None:
    summaries = [run_engine_seed(seed, seconds=SECONDS) for seed in range(60)]
    for name in (
        "updates_delivered", "updates_merged", "updates_metered", "updates_replayed", "refreshes", "receipts",
        "overruns", "crashes",
    ):  # fmt: skip
        assert sum(getattr(each, name) for each in summaries) > 5, name


def test_a_quiet_plant_loses_nothing() -> None:
    plant = EnginePlant(World(7), EnginePlantOptions())
    plant.start()
    plant.run(500_000_000)
    plant.finish()
    summary = plant.summary()
    assert (summary.receipts, summary.crashes, summary.overruns) == (0, 0, 0)
    assert summary.updates_delivered > 400
