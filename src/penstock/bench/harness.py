"""Common parts of the benches: results and rate measurement."""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

KIB_PER_MB = 1_024


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `penstock bench --json`. `ratio` is value / against_value."""

    bench: str
    metric: str
    value: float
    unit: str
    against: str
    against_value: float
    ratio: float
    conditions: str
    missing: str = ""
    """Why `value` was not measured and is 0; empty if it was measured."""


def result(
    bench: str, metric: str, value: float, unit: str, *, against: str, against_value: float, conditions: str
) -> Result:
    return Result(
        bench=bench,
        metric=metric,
        value=value,
        unit=unit,
        against=against,
        against_value=against_value,
        ratio=value / against_value if against_value else 0.0,
        conditions=conditions,
    )


def unmeasured(bench: str, metric: str, reason: str, conditions: str = "") -> Result:
    """Report that a metric has no value: a peer is not installed, or the measurement failed."""
    return Result(
        bench=bench,
        metric=metric,
        value=0.0,
        unit="",
        against="",
        against_value=0.0,
        ratio=0.0,
        conditions=conditions,
        missing=reason,
    )


def speedup(bench: str, metric: str, theirs_ns: float, ours_ns: float, what: str, conditions: str) -> Result:
    """Return how many times faster than a peer we are."""
    against = f"the peer: its {what} of {theirs_ns:.0f} ns over ours of {ours_ns:.0f} ns"
    return result(bench, metric, theirs_ns / ours_ns, "ratio", against=against, against_value=1, conditions=conditions)


def rounds(count: int, seconds: float) -> Iterator[int]:
    """Yield the numbers of up to `count` rounds. After `seconds` no further round begins, which bounds the time on a
    busy machine; there is at least one round.
    """
    deadline = time.monotonic() + seconds
    for number in range(count):
        if number and time.monotonic() > deadline:
            return
        yield number


def seconds_per_call(call: Callable[[], object], *, rounds: int = 5, round_seconds: float = 0.2) -> float:
    """Return the median over `rounds` of a call's mean time, each round lasting about `round_seconds`."""
    call()
    started = time.perf_counter()
    call()
    calls = max(1, round(round_seconds / max(time.perf_counter() - started, 1e-9)))
    means = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        means.append((time.perf_counter() - started) / calls)
    return sorted(means)[rounds // 2]


def interleaved_seconds(*calls: Callable[[], object], rounds: int) -> list[float]:
    """Return the median seconds of each call, measured in turns, so that a slow phase of the machine affects all. The
    first turn is a warm-up.
    """
    seconds: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(rounds):
        for call, found in zip(calls, seconds, strict=True):
            started = time.perf_counter()
            call()
            found.append(time.perf_counter() - started)
    return [statistics.median(each) for each in seconds]


def cpu_seconds(process: int) -> float:
    """Return the CPU time used by a process in all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Resident(msgspec.Struct, frozen=True):
    """The memory of a process in MB."""

    rss: float
    pss: float
    """Pages that n processes share count as 1/n."""


def resident(pid: int | str) -> Resident:
    """Read the memory of a process; "self": of this one."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, size, _ = line.split()
        found[name] = int(size) / KIB_PER_MB
    return Resident(found["Rss:"], found["Pss:"])
