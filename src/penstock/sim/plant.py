"""The base of every scenario: a plant of nodes in a simulated world, its faults and its checkers.

A scenario has a class of options that `draw` takes from a seed, a class of figures for the summary, and a plant that
builds the nodes from the options. docs/simulator.md shows a whole scenario ("Write a scenario").
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import msgspec

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.sim.checker import Checker
from penstock.sim.fault_schedule import FaultSchedule
from penstock.sim.node import Node
from penstock.sim.randomness import SeededRandomness
from penstock.sim.world import World


class PlantSummary(msgspec.Struct, kw_only=True):
    """Figures of a run; a scenario adds its own."""

    seed: int
    virtual_seconds: float
    events: int
    digest: str
    """A hash of every event: equal digests, equal runs."""


class DrawnOptions(Protocol):
    """Base of the options of a plant."""

    @staticmethod
    def draw(pick: SeededRandomness, /) -> Any:
        """The options of a seed."""
        ...


OptionsT = TypeVar("OptionsT", bound=DrawnOptions)
SummaryT = TypeVar("SummaryT", bound=PlantSummary)


class Plant(ABC, Generic[OptionsT, SummaryT]):
    """Nodes, faults and checkers of one run.

    A subclass sets `nodes`, `faults` and `checkers` in its constructor, and implements `settle` and `counts`.
    """

    options_type: type[OptionsT]
    summary_type: type[SummaryT]
    step_ns: ClassVar[int] = 100 * NS_PER_MS
    """Virtual time between two steps of the checkers."""

    nodes: Sequence[Node]
    """The nodes in the order of their starts."""
    faults: FaultSchedule
    checkers: Sequence[Checker]

    def __init__(self, world: World, options: OptionsT) -> None:
        self.world = world
        self.options = options

    @classmethod
    def draw(cls, world: World) -> Self:
        """The plant of a seed."""
        return cls(world, cls.options_type.draw(world.randomness.fork("options")))

    def start(self) -> None:
        self.log("plant", f"seed {self.world.seed} {self.options}")
        for node in self.nodes:
            node.start()
        self.begin()
        self.faults.start()

    def begin(self) -> None:
        """Start further parts of the plant, after the nodes and before the faults."""

    def run(self, duration_ns: int) -> None:
        """Run for a while; the checkers run after every step."""
        end_ns = self.world.now_ns() + duration_ns
        while self.world.now_ns() < end_ns:
            self.world.run_until(min(end_ns, self.world.now_ns() + self.step_ns))
            self.step()

    def step(self) -> None:
        for checker in self.checkers:
            checker.step(self)

    def finish(self) -> None:
        """End the faults, let the plant settle, and check the run."""
        self.faults.stop()
        self.settle()
        for checker in self.checkers:
            checker.finish(self)

    @abstractmethod
    def settle(self) -> None:
        """Run without faults until the final conditions of the checkers hold."""

    def close(self) -> None:
        """Release resources outside the simulated world (shared memory, files), also after a broken promise."""

    def summary(self) -> SummaryT:
        return self.summary_type(
            seed=self.world.seed,
            virtual_seconds=self.world.now_ns() / NS_PER_SECOND,
            events=self.world.log.count,
            digest=self.world.log.digest(),
            **self.counts(),
        )

    @abstractmethod
    def counts(self) -> dict[str, Any]:
        """The scenario's own fields of the summary."""

    def log(self, who: str, what: str) -> None:
        self.world.log.write(self.world.now_ns(), who, what)
