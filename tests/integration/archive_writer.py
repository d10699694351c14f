"""Performs operations on an archive and dies in the middle of one.

When the `count`-th step of a name is reached, the process is killed as with kill -9. Without such a step the process
ends normally.
"""

import os
import signal

from penstock.spark.pipeline.archive import commits, compaction
from penstock.spark.pipeline.archive.archive import Archive
from unit.archive_kit import compact_all, drop_old, replace_all, step


class Killer:
    def __init__(self, wanted: str, count: int) -> None:
        self._wanted = wanted
        self._left = count

    def __call__(self, reached: str) -> None:
        if reached == self._wanted:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def main(path: str, action: str, wanted: str, count: str) -> None:
    commits.reached = compaction.reached = Killer(wanted, int(count))
    with Archive.writing(path) as archive:
        actions = {"append": step, "compact": compact_all, "retain": drop_old, "replace": replace_all}
        if action != "open":
            actions[action](archive)


def fill_and_compact(path: str, steps: int) -> None:
    """Append, and compact after every second step."""
    with Archive.writing(path) as archive:
        for number in range(steps):
            step(archive)
            if number % 2:
                compact_all(archive)
