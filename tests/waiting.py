"""Waiting for a condition, with a bound, instead of hoping."""

import time
from collections.abc import Callable

PATIENCE_SECONDS = 180.0
"""On a machine that does a lot besides; who waits in vain has time."""
LOOK_SECONDS, LOOK_SECONDS_MAX = 0.002, 0.02
"""Between two looks: more seldom the longer it takes, for many ask a process that has something else to do."""


def wait_until(condition: Callable[[], object], what: str = "the condition", seconds: float = PATIENCE_SECONDS) -> None:
    """Return as soon as the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + seconds
    pause = LOOK_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(pause)
        pause = min(pause * 1.2, LOOK_SECONDS_MAX)
