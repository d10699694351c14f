"""Measure the CPU load of an agent's process; load_balancer.py moves children away from a busy agent."""

import asyncio
import time
from collections.abc import Callable

from penstock.tree.core.events import Busy

INTERVAL_SECONDS = 1.0
STEP_PERCENT = 5
"""Minimum change that is reported."""


async def watch_load(tell: Callable[[Busy], None]) -> None:
    """The load in percent of one core, measured continuously."""
    before = time.process_time(), time.monotonic()
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        now = time.process_time(), time.monotonic()
        percent = 100 * (now[0] - before[0]) / max(now[1] - before[1], INTERVAL_SECONDS)
        before = now
        tell(Busy(STEP_PERCENT * round(percent / STEP_PERCENT)))
