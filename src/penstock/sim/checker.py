"""The base of all checkers: a checker observes a plant from outside only."""

from typing import Any

from penstock.base.errors import SimulationError


class Checker:
    """Raises SimulationError when a promise is broken. A scenario adds a method for each kind of report."""

    def step(self, plant: Any) -> None:
        """Called after every step of the run."""

    def finish(self, plant: Any) -> None:
        """Called once, after the faults have ended and the plant has settled."""

    def require(self, is_kept: bool, promise: str) -> None:
        if not is_kept:
            raise SimulationError(f"{type(self).__name__}: {promise}")
