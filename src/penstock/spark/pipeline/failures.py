"""Failures of Spark tasks, reported to the user as Penstock errors: cause, place and next step.

    made = attempt(staging, lambda: ...)       # in a worker: the result, or a Failure to return as a row
    with spark_failures(archive.path): ...     # in the driver: Spark's exceptions become a TaskError

The driver raises a Failure again as the original error and does not retry, because a full disk remains full. Spark
retries a task that dies, if configured to.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.base.errors import ArchiveFullError, PenstockError, TaskError
from penstock.base.log import logger
from penstock.spark.pipeline.archive.archive import Staging
from penstock.spark.pipeline.archive.commits import NO_ROOM, cannot

log = logger("spark.pipeline")

Made = TypeVar("Made")

REASON_SIZE_MAX = 300
"""Maximum number of characters of a Spark message to pass on."""

AGAIN = "nothing was committed; run the command again, which resumes at the last commit"

_LOST = re.compile(r"Lost task .*?\(TID \d+\) \([^)]*\): (?:[\w.$]+(?:Exception|Error): )?(.+)")
_RAISED = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?:: .+)?)$", re.MULTILINE)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An error on its way from a worker to the driver."""

    code: str
    what: str
    where: str = ""
    hint: str = ""

    def error(self) -> PenstockError:
        """Rebuild the original error; an error class with further arguments becomes its nearest base class without
        them.
        """
        kind = next((each for each in _errors(PenstockError) if each.code == self.code), PenstockError)
        plain = next(each for each in kind.__mro__ if each.__init__ is PenstockError.__init__)  # type: ignore[misc]
        assert issubclass(plain, PenstockError)
        error = plain(self.what, where=self.where, hint=self.hint)
        error.code = self.code
        return error


def attempt(staging: Staging, work: Callable[[], Made]) -> Made | Failure:
    """Return the result of the work, or its failure; programming errors are raised unchanged."""
    try:
        return work()
    except PenstockError as error:
        return Failure(code=error.code, what=error.what, where=error.where, hint=error.hint)
    except OSError as error:
        number = _errno(error)
        reason = OSError(number, os.strerror(number)) if number else error
        told = cannot("read or write the rows", Path(error.filename or staging.path), reason)
        return Failure(code=told.code, what=told.what, where=told.where, hint=told.hint or AGAIN)


@contextlib.contextmanager
def spark_failures(path: Path) -> Iterator[None]:
    """Convert Spark's exceptions in this context to errors about the archive at `path`."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        log.debug("spark_failed", text=str(error))
        raise _told(str(error), path) from error


def _told(text: str, path: Path) -> PenstockError:
    for number in NO_ROOM:
        if os.strerror(number) in text:
            return ArchiveFullError(
                f"Spark cannot write: {os.strerror(number)}",
                where=str(path),
                hint=f"the disk of Spark's scratch files (spark.local.dir) may be full; {AGAIN}",
            )
    return TaskError(f"a Spark task failed: {_reason(text)}", where=str(path), hint=AGAIN)


def _reason(text: str) -> str:
    """Extract the line with the cause: the Python exception, else the cause of a lost task, else the first line."""
    raised = _RAISED.findall(text)
    lost = _LOST.search(text)
    first = text.strip().partition("\n")[0]
    found = raised[-1] if raised else lost[1].partition(". ")[0] if lost else first
    return found[:REASON_SIZE_MAX].strip() or "no reason is given"


def _errno(error: OSError) -> int:
    """Return the error number, which pyarrow sometimes gives only in its text."""
    if error.errno is not None:
        return error.errno
    return next((number for number in NO_ROOM if os.strerror(number) in str(error)), 0)


def _errors(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _errors(each)
