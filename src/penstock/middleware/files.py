"""A publisher's epochs on the disk."""

import fcntl
import os
from pathlib import Path

from penstock.base.errors import ConfigurationError
from penstock.base.files import create_or_open, make_directory
from penstock.middleware.epoch import encode_epoch, next_epoch, slot_offset


def claim_epoch(path: Path) -> int:
    """The next epoch of a publisher, safely on the disk before it is used. Two that start at once take turns."""
    try:
        make_directory(path.parent)
        with open(create_or_open(path, os.O_RDWR), "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            content = file.readall()
            epoch = next_epoch(content)
            file.seek(slot_offset(content))
            file.write(encode_epoch(epoch))
            os.fsync(file)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)  # so that a new file's name is kept too
        finally:
            os.close(directory)
    except OSError as error:
        raise ConfigurationError(f"the epoch cannot be kept: {error.strerror}", where=str(path)) from None
    return epoch
