"""The destination of Penstock's logs in a process shared by many tests."""

import contextlib
import logging
from collections.abc import Iterator

ROOT = logging.getLogger("penstock")


def streams() -> list[object]:
    """The current destinations, besides pytest's."""
    return [each.stream for each in ROOT.handlers if type(each) is logging.StreamHandler]


@contextlib.contextmanager
def logs_kept() -> Iterator[None]:
    """Log destinations may be changed inside, and are restored afterwards."""
    handlers, level, propagate = list(ROOT.handlers), ROOT.level, ROOT.propagate
    try:
        yield
    finally:
        ROOT.handlers[:], ROOT.propagate = handlers, propagate
        ROOT.setLevel(level)
