"""Clocks that differ: each machine counts time at its own rate from its own zero, and its wall clock is set."""

from collections.abc import Callable, Sequence

from penstock.sim.randomness import SeededRandomness
from penstock.sim.world import World


class ClockRates:
    """The rates of all clocks, with the maximal allowed difference: one clock slow and all others fast, or each at
    random."""

    def __init__(self, randomness: SeededRandomness, names: Sequence[str], drift_ppm: int) -> None:
        self._randomness = randomness
        self._drift_ppm = drift_ppm
        self._slow = randomness.choose(["", *names])

    def draw_ppm(self, name: str) -> int:
        """Return how fast the clock of `name` is, in parts per million."""
        if not self._slow:
            return self._randomness.between(-self._drift_ppm, self._drift_ppm)
        return -self._drift_ppm if name == self._slow else self._drift_ppm


class LocalWorld(World):
    """The world as one machine sees it: the same events and the same log, at its own times."""

    def __init__(self, world: World, rate_ppm: int, zero_ns: int) -> None:
        """This clock is fast by `rate_ppm` parts per million."""
        self.seed = world.seed
        self.log = world.log
        self._world = world
        self._rate_ppm = rate_ppm
        self._zero_ns = zero_ns
        self._wall_jump_ns = 0

    @property
    def randomness(self) -> SeededRandomness:  # type: ignore[override]
        return self._world.randomness

    def now_ns(self) -> int:
        return self._zero_ns + self._local(self._world.now_ns())

    def wall_ns(self) -> int:
        return self._world.now_ns() + self._wall_jump_ns

    def set_wall(self, jump_ns: int) -> None:
        """Set the wall clock."""
        self._wall_jump_ns = jump_ns

    def at(self, time_ns: int, action: Callable[[], None]) -> None:
        """Run the action never before its local time: rounding must not wake a core before its deadline."""
        true_ns = -((self._zero_ns - time_ns) * 1_000_000 // (1_000_000 + self._rate_ppm))
        while self._local(true_ns) < time_ns - self._zero_ns:
            true_ns += 1
        self._world.at(true_ns, action)

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        self.at(self.now_ns() + delay_ns, action)

    def run_until(self, time_ns: int) -> None:
        raise NotImplementedError("a local view cannot run the world")

    def _local(self, true_ns: int) -> int:
        return true_ns + true_ns * self._rate_ppm // 1_000_000
