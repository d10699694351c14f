"""Rate of appended and acknowledged records, compared with the disk's own limit.

The files are in a directory below the current one, because /tmp may be in memory; they are removed afterwards.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from penstock.bench.harness import Result, result
from penstock.journal import JournalConfig, JournalWriter

PAYLOAD_SIZE = 128
RECORD_SIZE = 160
IN_FLIGHT = 256
ROUNDS = 101
ROUND_SECONDS = 0.03
CONDITIONS = f"{PAYLOAD_SIZE}-byte payloads, one Python thread, fdatasync; median of {ROUNDS} interleaved rounds"


def run() -> Iterator[Result]:
    payload, record = os.urandom(PAYLOAD_SIZE), os.urandom(RECORD_SIZE)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=".") as folder,
        JournalWriter.open(Path(folder) / "journal") as journal,
        BareFile(Path(folder) / "bare") as bare,
        BareFile(Path(folder) / "preallocated", JournalConfig().preallocate_bytes) as preallocated,
    ):

        def append_one() -> None:
            journal.append(payload)
            journal.commit()

        def append_many() -> None:
            append = journal.append
            for _ in range(IN_FLIGHT):
                append(payload)
            journal.commit()

        def write_many() -> None:
            bare.write(record * IN_FLIGHT)

        calls = [append_one, lambda: bare.write(record), append_many, write_many, lambda: preallocated.write(record)]
        rates = _interleaved(calls)
    single, bare_single, many, bare_many, _ = (statistics.median(each) for each in rates)
    yield result(
        "journal",
        "appends_per_s_256",
        many * IN_FLIGHT,
        "records/s",
        against="the same bytes by bare write and fdatasync",
        against_value=bare_many * IN_FLIGHT,
        conditions=f"{CONDITIONS}; {IN_FLIGHT} in flight",
    )
    yield result(
        "journal",
        "single_per_s",
        single,
        "records/s",
        against="the same bytes by bare write and fdatasync",
        against_value=bare_single,
        conditions=f"{CONDITIONS}; one at a time: append and commit",
    )
    yield _ratio("single_ratio_to_fdatasync", rates[0], rates[1], "a bare file that grows with every append")
    yield _ratio(
        "single_ratio_to_preallocated", rates[0], rates[4], "a bare file with preallocated space, like the journal's"
    )


def _ratio(metric: str, ours: list[float], theirs: list[float], what: str) -> Result:
    return result(
        "journal",
        metric,
        statistics.median(our / their for our, their in zip(ours, theirs, strict=True)),
        "",
        against="",
        against_value=0.0,
        conditions=f"{CONDITIONS}; one at a time; the median of the rounds' ratios to {what}",
    )


class BareFile:
    """A file that is only appended to and synced, with or without preallocation."""

    def __init__(self, path: Path, preallocate_bytes: int = 0) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._size = self._allocated = 0
        self._preallocate_bytes = preallocate_bytes

    def write(self, data: bytes) -> None:
        end = self._size + len(data)
        if self._preallocate_bytes and end > self._allocated:
            os.posix_fallocate(self._fd, self._allocated, end + self._preallocate_bytes - self._allocated)
            self._allocated = end + self._preallocate_bytes
        self._size += os.pwrite(self._fd, data, self._size)
        os.fdatasync(self._fd)

    def __enter__(self) -> "BareFile":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _interleaved(calls: Sequence[Callable[[], object]]) -> list[list[float]]:
    """Return calls per second of each call, round by round, so that a slow phase of the disk affects all."""
    rates: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(ROUNDS):
        for call, found in zip(calls, rates, strict=True):
            found.append(_rate(call))
    return rates


def _rate(call: Callable[[], object]) -> float:
    started, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < ROUND_SECONDS:
        call()
        count += 1
    return count / elapsed
