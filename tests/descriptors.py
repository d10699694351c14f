"""Open descriptors of this process, some of which belong to other components: a session of Spark has its own."""

import contextlib
import os


def copies_of(file: os.stat_result) -> int:
    """The number of descriptors of this process that refer to the same file."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed in between
            each = os.fstat(int(name))
            found += (each.st_dev, each.st_ino) == (file.st_dev, file.st_ino)
    return found
