"""The terms an adapter has claimed, on the disk before they are used: so none is ever claimed twice.

The file has the slots of an epoch file (middleware/epoch.py): a torn one fails its checksum and is written over.
"""

import fcntl
import os
from pathlib import Path

from penstock.base.errors import ConfigurationError
from penstock.base.files import create_or_open, make_directory
from penstock.middleware.epoch import encode_epoch, next_epoch, slot_offset


class TermFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def highest(self) -> int:
        """The highest term kept; 0 when there is none."""
        try:
            return next_epoch(self._path.read_bytes()) - 1
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise self._trouble(error) from None

    def keep(self, term: int) -> None:
        """Returns when the term is on the disk."""
        try:
            make_directory(self._path.parent)
            with open(create_or_open(self._path, os.O_RDWR), "r+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(slot_offset(file.readall()))
                file.write(encode_epoch(term))
                os.fsync(file)
            directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise self._trouble(error) from None

    def _trouble(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(f"terms cannot be kept: {error.strerror}", where=str(self._path))
