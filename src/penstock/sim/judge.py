"""Running a plant to the end of its time, and turning whatever goes wrong into a story that can be replayed."""

from collections.abc import Callable
from typing import Generic, Protocol, TextIO, TypeVar

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import SimulationError
from penstock.sim.world import World

Summary_co = TypeVar("Summary_co", covariant=True)


class Plant(Protocol):
    def start(self) -> None: ...

    def run(self, duration_ns: int) -> None:
        """Let it work for a while."""
        ...

    def finish(self) -> None:
        """Let it settle, and judge it."""
        ...


class CountingPlant(Plant, Protocol[Summary_co]):
    def summary(self) -> Summary_co:
        """What has happened."""
        ...


class SeedRun(Generic[Summary_co]):
    """Runs the plants of a scenario: `make` makes one in its world, `seconds` of virtual time are enough by default."""

    def __init__(
        self, scenario: str, make: Callable[[World], CountingPlant[Summary_co]], *, seconds: float = 10.0
    ) -> None:
        self._scenario = scenario
        self._make = make
        self._seconds = seconds

    def __call__(
        self,
        seed: int,
        *,
        seconds: float | None = None,
        trace: TextIO | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Summary_co:
        """Run the plant of one seed, and judge it."""
        seconds = self._seconds if seconds is None else seconds
        world = World(seed, trace)
        plant = self._make(world)
        run_and_judge(world, plant, seconds, progress, scenario=self._scenario)
        return plant.summary()


def work(world: World, duration_ns: int, step_ns: int, look: Callable[[], None]) -> None:
    """Let a plant work for a while, with a look at its bounds after every step."""
    end_ns = world.now_ns() + duration_ns
    while world.now_ns() < end_ns:
        world.run_until(min(end_ns, world.now_ns() + step_ns))
        look()


def run_and_judge(
    world: World, plant: Plant, seconds: float, progress: Callable[[float], None] | None, *, scenario: str
) -> None:
    """SimulationError has the last events before the fault, and the command that shows it again."""
    end_ns = round(seconds * NS_PER_SECOND)
    try:
        plant.start()
        while world.now_ns() < end_ns:
            plant.run(min(NS_PER_SECOND, end_ns - world.now_ns()))
            if progress is not None:
                progress(world.now_ns() / NS_PER_SECOND)
        plant.finish()
    except Exception as error:
        story = "\n".join(world.log.tail())
        raise SimulationError(
            f"seed {world.seed} at {world.now_ns() / NS_PER_SECOND:.9f} s: {error}\n{story}",
            hint=f"replay it with: penstock sim --scenario {scenario} --seed {world.seed} --minutes {seconds / 60!r} "
            "--trace trace.txt",
        ) from error
