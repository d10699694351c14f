"""Waiting for a condition, with a timeout."""

import time
from collections.abc import Callable

PATIENCE_SECONDS = 180.0
"""Default timeout: long, because the machine may be busy and only failing tests wait for it."""
LOOK_SECONDS, LOOK_SECONDS_MAX = 0.002, 0.02
"""Interval between checks; it grows up to the maximum, because many conditions query a busy process."""


def wait_until(condition: Callable[[], object], what: str = "the condition", seconds: float = PATIENCE_SECONDS) -> None:
    """Return as soon as the condition holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    pause = LOOK_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(pause)
        pause = min(pause * 1.2, LOOK_SECONDS_MAX)
