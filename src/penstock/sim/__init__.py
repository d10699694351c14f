"""A deterministic simulator: whole plants of protocol cores in one thread, in virtual time, from one seed.

The seed decides everything: the plant's options, the order of simultaneous events, the losses of the network, the
crashes of nodes and the losses of their disks. The cores are the production ones; only the drivers are simulated.
Checkers observe from outside, without access to the state of a core. A run that breaks a promise prints its seed and
replays exactly.

The modules here serve all scenarios; each scenario has a folder. Production code never imports this package; your tests
may. Read world.py first, then middleware/plant.py for a whole plant.
"""

from typing import Any

from penstock.sim.assured.plant import AssuredPlant, AssuredSummary, run_assured_seed
from penstock.sim.checker import Checker
from penstock.sim.disk import Disk, DiskFaults
from penstock.sim.engine.options import EnginePlantOptions, EngineSummary
from penstock.sim.engine.plant import EnginePlant, run_engine_seed
from penstock.sim.feed.plant import FeedPlant, FeedPlantOptions, FeedSummary, run_feed_seed
from penstock.sim.filter.plant import FilterPlant, FilterPlantOptions, FilterSummary, run_filter_seed
from penstock.sim.journal.plant import JournalPlant, JournalSummary, run_journal_seed
from penstock.sim.lease.plant import LeasePlant, LeaseSummary, run_lease_seed
from penstock.sim.middleware.checkers import StreamChecker
from penstock.sim.middleware.plant import MiddlewarePlant, PlantOptions, Summary, run_seed
from penstock.sim.network import LinkFaults, Network
from penstock.sim.node import Node
from penstock.sim.plant import Plant, PlantSummary
from penstock.sim.randomness import SeededRandomness
from penstock.sim.replicated.plant import ReplicatedPlant, ReplicatedSummary, run_replicated_seed
from penstock.sim.seed_run import SeedRun
from penstock.sim.tree.estimate import TreeEstimate, estimate_tree
from penstock.sim.tree.plant import TreePlant, TreePlantOptions, TreeSummary, run_tree_seed
from penstock.sim.world import World

__all__ = [
    "SCENARIOS",
    "AssuredPlant",
    "AssuredSummary",
    "Checker",
    "Disk",
    "DiskFaults",
    "EnginePlant",
    "EnginePlantOptions",
    "EngineSummary",
    "FeedPlant",
    "FeedPlantOptions",
    "FeedSummary",
    "FilterPlant",
    "FilterPlantOptions",
    "FilterSummary",
    "JournalPlant",
    "JournalSummary",
    "LeasePlant",
    "LeaseSummary",
    "LinkFaults",
    "MiddlewarePlant",
    "Network",
    "Node",
    "PlantOptions",
    "Plant",
    "PlantSummary",
    "ReplicatedPlant",
    "ReplicatedSummary",
    "SeedRun",
    "SeededRandomness",
    "StreamChecker",
    "Summary",
    "TreeEstimate",
    "TreePlant",
    "TreePlantOptions",
    "TreeSummary",
    "World",
    "estimate_tree",
    "run_assured_seed",
    "run_engine_seed",
    "run_feed_seed",
    "run_filter_seed",
    "run_journal_seed",
    "run_lease_seed",
    "run_replicated_seed",
    "run_seed",
    "run_tree_seed",
]

SCENARIOS: dict[str, SeedRun[Any]] = {
    each.scenario: each
    for each in (
        run_seed,
        run_journal_seed,
        run_feed_seed,
        run_filter_seed,
        run_engine_seed,
        run_tree_seed,
        run_lease_seed,
        run_assured_seed,
        run_replicated_seed,
    )
}
"""All scenarios, by the name that `penstock sim --scenario` takes."""
