"""Epochs on the disk: a file of slots (middleware/core/epoch.py), each synced before it is used."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from penstock.base.errors import ConfigurationError
from penstock.base.files import create_or_open, make_directory
from penstock.middleware.core.epoch import encode_epoch, next_epoch, slot_offset


def claim_epoch(path: Path) -> int:
    """Claim the next epoch of a publisher; when this returns, the epoch is on the disk. Concurrent calls take turns."""
    try:
        return append_epoch(path, next_epoch)
    except OSError as error:
        raise ConfigurationError(f"the epoch cannot be kept: {error.strerror}", where=str(path)) from None


def append_epoch(path: Path, choose: Callable[[bytes], int]) -> int:
    """Append the epoch that `choose` returns for the file's content; returns when the slot and the file's name are on
    the disk."""
    make_directory(path.parent)
    with open(create_or_open(path, os.O_RDWR), "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        content = file.readall()
        epoch = choose(content)
        file.seek(slot_offset(content))
        file.write(encode_epoch(epoch))
        os.fsync(file)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return epoch
