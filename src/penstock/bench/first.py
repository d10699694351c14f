"""The first hour with Penstock: from a clone to the first figure, a second start, help, and a minimal plant."""

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

import penstock
from penstock.base.words import counted
from penstock.bench.harness import Resident, Result, resident, result
from penstock.bench.transports import check
from penstock.demo.layout import write_layout
from penstock.demo.reports import MINIMAL_PLANT

COMMAND = (sys.executable, "-c", "from penstock.cli.main import main; main()")
FIGURE = re.compile(r"p50 [1-9]")
"""In a line that `penstock demo` prints each second when its output is not a terminal."""

IS_UP = re.compile("the plant runs")
HELPS = 11
STARTS = 5
IDLE_SECONDS = 10.0
SET_UP_SECONDS_MAX, START_SECONDS_MAX, END_SECONDS_MAX = 1_200.0, 180.0, 60.0
MS_PER_SECOND = 1_000
KEPT = ("PATH", "HOME", "LANG")
"""Variables of the otherwise empty environment of `make demo`; those of pip are kept, too: they name the mirror."""

GOALS = {
    "clone_to_first_figure_s": 180.0,
    "second_start_s": 5.0,
    "help_ms": 300.0,
    "minimal_plant_start_s": 3.0,
    "minimal_plant_rss_mb": 250.0,
}


def run() -> Iterator[Result]:
    yield _help()
    yield from _minimal_plant()
    if reason := _reason_without_clone():
        sys.stderr.write(f"no clone_to_first_figure_s and second_start_s: {reason}\n")
    else:
        yield from _clone()


def _figure(metric: str, value: float, conditions: str, *, beside: str = "") -> Result:
    unit = metric.rpartition("_")[2].replace("mb", "MB")
    goal = GOALS[metric]
    return result("first", metric, value, unit, against=f"the goal{beside}", against_value=goal, conditions=conditions)


def _help() -> Result:
    taken = []
    for _ in range(HELPS):
        started = time.monotonic()
        subprocess.run([*COMMAND, "--help"], stdout=subprocess.DEVNULL, check=True)
        taken.append(time.monotonic() - started)
    return _figure("help_ms", statistics.median(taken) * MS_PER_SECOND, f"median of {HELPS} runs of penstock --help")


def _minimal_plant() -> Iterator[Result]:
    seconds, memory = [], []
    for number in range(STARTS):
        with TemporaryDirectory() as folder:
            plant = write_layout(Path(folder), MINIMAL_PLANT, user="alice").plant
            with _output_until(IS_UP, [*COMMAND, "up", str(plant)], START_SECONDS_MAX) as (process, taken):
                seconds.append(taken)
                if number == STARTS - 1:
                    time.sleep(IDLE_SECONDS)
                    memory = [resident(pid) for pid in (process.pid, *_descendants(process.pid))]
    conditions = "the plant of penstock init --minimal: four nodes"
    yield _figure(
        "minimal_plant_start_s",
        statistics.median(seconds),
        f"{conditions}; from penstock up to its line that the plant runs; median of {STARTS} starts",
    )
    yield _figure("minimal_plant_rss_mb", sum(each.pss for each in memory), _of_memory(conditions, memory),
        beside=f"; the sum of RSS, where each process counts the pages that it shares with others, is "
        f"{sum(each.rss for each in memory):.0f}; RSS (Pss) of the supervisor, the template and the nodes: "
        f"{', '.join(f'{each.rss:.0f} ({each.pss:.0f})' for each in memory)}",
    )  # fmt: skip


def _of_memory(conditions: str, memory: Sequence[Resident]) -> str:
    return (
        f"{conditions}; {len(memory)} processes, {IDLE_SECONDS:.0f} s after their start, while the exchange plays "
        f"{MINIMAL_PLANT.rate:,.0f} messages/s; a resident page counts once, however many processes share it (Pss)"
    )


def _reason_without_clone() -> str:
    """Return why there is nothing to clone; empty if there is."""
    if missing := [name for name in ("git", "make") if shutil.which(name) is None]:
        return f"{' and '.join(missing)} not found"
    checkout = _checkout()
    if not (checkout / "Makefile").is_file() or not (checkout / ".git").exists():
        return f"{penstock.__name__} runs from {Path(penstock.__file__).parent}, which is not in a checkout"
    return ""


def _checkout() -> Path:
    return Path(penstock.__file__).parents[2]


def _clone() -> Iterator[Result]:
    kept = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith("PIP_")}
    cores = counted(len(os.sched_getaffinity(0)), "core")
    conditions = f"the committed state, on {cores}; the environment has only {', '.join(KEPT)} and PIP_*"
    with TemporaryDirectory() as folder:
        clone = Path(folder) / "penstock"
        started = time.monotonic()
        subprocess.run(["git", "clone", "--quiet", str(_checkout()), str(clone)], check=True, env=kept)
        cloned = time.monotonic() - started
        command = ["make", "--directory", str(clone), "demo"]
        with _output_until(FIGURE, command, SET_UP_SECONDS_MAX, kept) as (_, taken):
            pass
        yield _figure("clone_to_first_figure_s", cloned + taken, f"git clone and make demo; {conditions}")
        with _output_until(FIGURE, command, START_SECONDS_MAX, kept) as (_, taken):
            pass
        yield _figure(
            "second_start_s",
            taken,
            f"make demo again, to the first line with a figure, a second after its start; {conditions}",
        )


@contextmanager
def _output_until(
    pattern: re.Pattern[str], command: Sequence[str], seconds_max: float, environment: dict[str, str] | None = None
) -> Iterator[tuple["subprocess.Popen[str]", float]]:
    """Start a command in a session of its own, and yield it with the seconds until its output had a match; it ends
    with the block."""
    started = time.monotonic()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, env=environment,
    ) as process:  # fmt: skip
        limit = Timer(seconds_max, lambda: os.killpg(process.pid, signal.SIGKILL))
        limit.start()
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if pattern.search(line):
                    break
            else:
                check(False, f"{' '.join(command)} ended early: {''.join(lines[-20:])}")
            yield process, time.monotonic() - started
        finally:
            limit.cancel()
            _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.communicate(timeout=END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _descendants(pid: int) -> Iterator[int]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (thread / "children").read_text().split()):
            yield child
            yield from _descendants(child)
