"""Measures an adapter's health on this machine (FEED-5): free memory, CPU use, errors, transmission, lag."""

import os
import time
from pathlib import Path

import msgspec

from penstock.feed.core.sync.health import Health


class Totals(msgspec.Struct, frozen=True):
    """Totals since the start of the adapter."""

    errors: int
    messages_sent: int
    messages_due: int
    """Messages sent, and those that could not be sent."""

    lag_ns: int
    """From a source message's arrival to its publication, now."""


class HealthMeter:
    """Each measure() covers the time since the previous one."""

    def __init__(self, *, spins: bool) -> None:
        self._spins = spins
        self._at = time.monotonic()
        self._cpu_s = _cpu_s()
        self._totals = Totals(0, 0, 0, 0)

    def measure(self, totals: Totals) -> Health:
        now, cpu_s, before = time.monotonic(), _cpu_s(), self._totals
        elapsed_s = max(now - self._at, 1e-3)
        busy = (cpu_s - self._cpu_s) / elapsed_s
        if self._spins:
            busy -= 1.0  # its data thread always occupies a processor
        due = totals.messages_due - before.messages_due
        sent = totals.messages_sent - before.messages_sent
        self._at, self._cpu_s, self._totals = now, cpu_s, totals
        return Health(
            memory_free=memory_free_share(),
            cpu_free=min(1.0, max(0.0, 1.0 - busy / len(os.sched_getaffinity(0)))),
            errors_per_s=max(0, totals.errors - before.errors) / elapsed_s,
            messages_per_s=max(0, sent) / elapsed_s,
            transmission=sent / due if due > 0 else 1.0,
            lag_ns=max(0, totals.lag_ns),
        )


def memory_free_share() -> float:
    """Available share of the machine's memory."""
    values: dict[str, int] = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            values[name] = int(rest.split()[0])
    return values["MemAvailable"] / max(1, values["MemTotal"])


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system
