"""A journal's disk that fails, in this process."""

import contextlib
import os
from collections.abc import Iterator

from penstock.journal import JournalWriter

FULL = "/dev/full"
UNSYNCED = "/dev/null"
"""A device that accepts writes, but cannot be synced."""


@contextlib.contextmanager
def broken_disk(journal: JournalWriter, device: str, flags: int = os.O_RDWR) -> Iterator[None]:
    """The segment in use is another file inside this context."""
    active = journal._directory._active
    assert active is not None
    kept = os.dup(active.fd)
    other = os.open(device, flags)
    try:
        os.dup2(other, active.fd)
        yield
    finally:
        if journal._directory._active is active:
            os.dup2(kept, active.fd)
        os.close(other)
        os.close(kept)
