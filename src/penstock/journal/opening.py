"""How a writer begins: with what is on the disk, made good."""

import time
from pathlib import Path

from penstock.base.clock import SystemRandomness
from penstock.base.counters import Counters
from penstock.base.errors import JournalError
from penstock.journal.config import JournalConfig
from penstock.journal.core import Journal
from penstock.journal.files import WritableDirectory, boot_id


def open_for_writing(
    path: Path, config: JournalConfig, counters: Counters, first: int
) -> tuple[WritableDirectory, Journal]:
    """Its directory, which is locked against other writers, and its core."""
    directory = WritableDirectory(path, config.preallocate_bytes)
    try:
        recovery = directory.recover(boot_id(), first)
    except OSError as error:
        directory.close()
        raise JournalError(f"cannot be opened for writing: {error.strerror}", where=str(path)) from None
    except BaseException:
        directory.close()
        raise
    now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
    return directory, Journal(config, recovery, SystemRandomness(), counters, now_ns=now_ns, wall_ns=wall_ns)
