"""Runs the plant of a seed to the end of its time, and turns a failure into a report that can be replayed."""

from collections.abc import Callable
from typing import Any, Generic, TextIO

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import SimulationError
from penstock.sim.plant import Plant, SummaryT
from penstock.sim.world import World


class SeedRun(Generic[SummaryT]):
    """Runs the plants of one scenario.

    `make` builds a plant in its world; `promise` describes the result of a passed run; `seconds` is the default virtual
    time.
    """

    def __init__(
        self, scenario: str, make: Callable[..., Plant[Any, SummaryT]], promise: str, *, seconds: float = 10.0
    ) -> None:
        self.scenario = scenario
        self.promise = promise
        self._make = make
        self._seconds = seconds

    def __call__(
        self,
        seed: int,
        *,
        seconds: float | None = None,
        trace: TextIO | None = None,
        progress: Callable[[float], None] | None = None,
        **choices: Any,
    ) -> SummaryT:
        """Run the plant of one seed, and check it; `choices` go to `make`."""
        seconds = self._seconds if seconds is None else seconds
        world = World(seed, trace)
        plant = self._make(world, **choices)
        try:
            self._run(world, plant, seconds, progress)
        except Exception as error:
            last_events = "\n".join(world.log.tail())
            raise SimulationError(
                f"seed {world.seed} at {world.now_ns() / NS_PER_SECOND:.9f} s: {error}\n{last_events}",
                hint=f"replay it with: penstock sim --scenario {self.scenario} --seed {world.seed} "
                f"--minutes {seconds / 60!r} --trace trace.txt",
            ) from error
        finally:
            plant.close()
        return plant.summary()

    def _run(
        self, world: World, plant: Plant[Any, SummaryT], seconds: float, progress: Callable[[float], None] | None
    ) -> None:
        end_ns = round(seconds * NS_PER_SECOND)
        plant.start()
        while world.now_ns() < end_ns:
            plant.run(min(NS_PER_SECOND, end_ns - world.now_ns()))
            if progress is not None:
                progress(world.now_ns() / NS_PER_SECOND)
        plant.finish()
