"""What fails in a task of Spark, told to the user as an error of ours: what happened, where, and what to do.

    made = attempt(staging, lambda: ...)       # in a worker: what it makes, or the Failure to send back as a row
    with spark_failures(archive.path): ...     # in the driver: what Spark raises becomes a TaskError

A Failure is raised again by the driver as the error that it was. It is not tried again: a disk that is full stays full.
A task that dies is tried again as Spark's tasks are, if Spark is told to.
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
"""Characters of what Spark says that are passed on."""

AGAIN = "nothing of it was committed; run it again: it goes on where it was"

_LOST = re.compile(r"Lost task .*?\(TID \d+\) \([^)]*\): (?:[\w.$]+(?:Exception|Error): )?(.+)")
_RAISED = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?:: .+)?)$", re.MULTILINE)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An error on its way from a worker to the driver."""

    code: str
    what: str
    where: str = ""
    hint: str = ""

    def error(self) -> PenstockError:
        """As it was; one with more to it than text becomes its nearest kin without."""
        kind = next((each for each in _errors(PenstockError) if each.code == self.code), PenstockError)
        plain = next(each for each in kind.__mro__ if each.__init__ is PenstockError.__init__)  # type: ignore[misc]
        assert issubclass(plain, PenstockError)
        error = plain(self.what, where=self.where, hint=self.hint)
        error.code = self.code
        return error


def attempt(staging: Staging, work: Callable[[], Made]) -> Made | Failure:
    """What the work gives, or why it gives nothing; mistakes of ours are raised as they are."""
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
    """What Spark raises in here was about the archive at `path`."""
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
                hint=f"the disk of its scratch files (spark.local.dir) may be the full one; {AGAIN}",
            )
    return TaskError(f"a task of Spark failed: {_reason(text)}", where=str(path), hint=AGAIN)


def _reason(text: str) -> str:
    """The one line that says why: what Python raised, else why a task was lost, else the first."""
    raised = _RAISED.findall(text)
    lost = _LOST.search(text)
    first = text.strip().partition("\n")[0]
    found = raised[-1] if raised else lost[1].partition(". ")[0] if lost else first
    return found[:REASON_SIZE_MAX].strip() or "it does not say why"


def _errno(error: OSError) -> int:
    """pyarrow says the number in its text only, at times."""
    if error.errno is not None:
        return error.errno
    return next((number for number in NO_ROOM if os.strerror(number) in str(error)), 0)


def _errors(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _errors(each)
