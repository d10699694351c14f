"""Begin and end of a node's relief."""

import pytest

from penstock.base.config import parse_toml
from penstock.base.errors import ConfigurationError
from penstock.engine.core.signals import Readings, Relief, SignalThresholds

SECOND = 1_000_000_000
THRESHOLDS = parse_toml(
    """
load = { relieve = 0.9, restore = 0.6 }
errors = { relieve = 10, restore = 0 }
hold_seconds = 5
""",
    SignalThresholds,
    where="signals",
)


@pytest.mark.spec("MDE-1")
def test_relief_begins_at_once_and_ends_after_a_calm_period() -> None:
    relief = Relief(THRESHOLDS)
    assert not relief.read(Readings(load=0.89, consumers=1e6), 0)
    assert relief.read(Readings(load=0.9), 1 * SECOND)
    assert relief.is_on
    assert relief.why == ("load",)
    assert not relief.read(Readings(load=0.7), 20 * SECOND), "no change between the thresholds"
    assert not relief.read(Readings(load=0.5), 21 * SECOND)
    assert not relief.read(Readings(load=0.5, errors=1), 24 * SECOND), "each signal must be calm"
    assert not relief.read(Readings(load=0.5), 25 * SECOND)
    assert not relief.read(Readings(load=0.5), 29 * SECOND)
    assert relief.read(Readings(load=0.5), 30 * SECOND)
    assert (relief.is_on, relief.why, relief.times) == (False, (), 1)


@pytest.mark.spec("MDE-1")
def test_a_signal_around_its_threshold_does_not_flap() -> None:
    relief = Relief(THRESHOLDS)
    changes = [relief.read(Readings(load=0.9 if step % 2 else 0.89), step * SECOND) for step in range(100)]
    assert sum(changes) == 1


def test_unconfigured_signals_do_nothing() -> None:
    relief = Relief(SignalThresholds())
    assert not relief.read(Readings(load=9, consumers=9e9, congestion=1, errors=9e9), 0)
    assert not relief.is_on


@pytest.mark.parametrize(
    "text", ["load = { relieve = 0.5, restore = 0.5 }", "load = { relieve = 0.5 }", "hold_seconds = -1", "lode = 1"]
)
def test_wrong_thresholds_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_toml(text, SignalThresholds, where="signals")
