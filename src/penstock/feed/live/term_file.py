"""The terms an adapter has claimed, on the disk before they are used, so that no term is claimed twice.

The file has the slots of an epoch file (middleware/core/epoch.py): a torn slot fails its checksum and is overwritten.
"""

from pathlib import Path

from penstock.base.errors import ConfigurationError
from penstock.middleware.core.epoch import next_epoch
from penstock.middleware.live.epoch_file import append_epoch


class TermFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def highest(self) -> int:
        """The highest term in the file; 0 if there is none."""
        try:
            return next_epoch(self._path.read_bytes()) - 1
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise self._failure(error) from None

    def keep(self, term: int) -> None:
        """Append a term; returns when it is on the disk."""
        try:
            append_epoch(self._path, lambda content: term)
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(f"cannot write terms: {error.strerror}", where=str(self._path))
