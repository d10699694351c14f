"""The destination of Penstock's logs in a process shared by many tests."""

import contextlib
import logging
from collections.abc import Iterator

ROOT = logging.getLogger("penstock")


def streams() -> list[object]:
    """Where they go now, besides to pytest."""
    return [each.stream for each in ROOT.handlers if type(each) is logging.StreamHandler]


@contextlib.contextmanager
def logs_kept() -> Iterator[None]:
    """They may be sent elsewhere inside; afterwards they go where they went before."""
    handlers, level, propagate = list(ROOT.handlers), ROOT.level, ROOT.propagate
    try:
        yield
    finally:
        ROOT.handlers[:], ROOT.propagate = handlers, propagate
        ROOT.setLevel(level)
