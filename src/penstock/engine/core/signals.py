"""Load signals that move traffic from critical to adaptive while a node is overloaded, and back afterwards.

    [signals]
    load = { relieve = 0.9, restore = 0.6 }         # share of the time, or of the output, in use
    consumers = { relieve = 5000, restore = 4000 }
    congestion = { relieve = 0.2, restore = 0.05 }  # share of the consumers without room
    errors = { relieve = 100, restore = 1 }         # per second
    hold_seconds = 5.0

Relief begins when one signal reaches its upper threshold. It ends when all signals have been at or below their lower
thresholds for the hold time; the hysteresis prevents flapping. During relief, the classifier makes critical updates
that allow conflation adaptive; others, such as trades and cancellations, stay critical.
"""

from typing import Annotated

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError

NANOSECONDS = 1_000_000_000

Level = Annotated[float, msgspec.Meta(ge=0)]


class Threshold(Config, frozen=True):
    relieve: Level
    restore: Level

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.restore >= self.relieve:
            raise ConfigurationError(
                f"restore = {self.restore:g} is not below relieve = {self.relieve:g}",
                hint="the distance between them prevents flapping",
            )


class SignalThresholds(Config, frozen=True):
    """The signals in use; omitted signals are ignored."""

    load: Threshold | None = None
    consumers: Threshold | None = None
    congestion: Threshold | None = None
    errors: Threshold | None = None
    hold_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """A node's load readings at one moment; the names are those of the thresholds."""

    load: float = 0.0
    consumers: float = 0.0
    congestion: float = 0.0
    errors: float = 0.0


class Relief:
    """The state of relief; `why` has the signals that began it, `times` the number of begins."""

    def __init__(self, thresholds: SignalThresholds) -> None:
        self.is_on = False
        self.why: tuple[str, ...] = ()
        self.times = 0
        self._thresholds = {
            name: threshold
            for name in Readings.__struct_fields__
            if (threshold := getattr(thresholds, name)) is not None
        }
        self._hold_ns = round(thresholds.hold_seconds * NANOSECONDS)
        self._calm_since_ns: int | None = None

    def read(self, readings: Readings, now_ns: int) -> bool:
        """Process readings. Return True if relief began or ended."""
        levels = {name: getattr(readings, name) for name in self._thresholds}
        high = tuple(name for name, level in levels.items() if level >= self._thresholds[name].relieve)
        is_calm = all(level <= self._thresholds[name].restore for name, level in levels.items())
        if not self.is_on:
            if high:
                self.is_on, self.why, self._calm_since_ns = True, high, None
                self.times += 1
            return bool(high)
        if not is_calm:
            self._calm_since_ns = None
            return False
        if self._calm_since_ns is None:
            self._calm_since_ns = now_ns
        if now_ns - self._calm_since_ns < self._hold_ns:
            return False
        self.is_on, self.why = False, ()
        return True
