"""Descriptors of this process, of which others come and go: a session of Spark has its own."""

import contextlib
import os


def copies_of(file: os.stat_result) -> int:
    """How many descriptors of this process are of the same file."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed since
            each = os.fstat(int(name))
            found += (each.st_dev, each.st_ino) == (file.st_dev, file.st_ino)
    return found
