"""A reserve of space on a router's disk: it is released when the disk is full, so that settlements can be logged and
the log can be cleaned, which frees more space."""

import os
from pathlib import Path

from penstock.base.files import create_or_open
from penstock.base.log import logger

BLOCK_SIZE = 512
"""The block size in which file systems count the size of a file."""

log = logger("assured.reserve")


class Reserve:
    """One file. It is empty while released, also across restarts."""

    def __init__(self, path: Path, size: int) -> None:
        self.is_held = False
        self._path = path
        self._size = size
        self.is_given_back = path.exists() and path.stat().st_size == 0
        """The disk was full, perhaps before this start, and there is no room for the reserve yet."""
        if not self.take():
            log.warning("no_reserve", path=str(path), bytes=size, hint="the disk has too little room for it")

    def take(self) -> bool:
        """Allocate the reserve. True if it is held now. Some additional room is required, so that the disk is not
        full again at once."""
        if self.is_held:
            return True
        try:
            if not self._is_there():
                room = os.statvfs(self._path.parent)
                if room.f_bavail * room.f_frsize < self._size + self._size // 4:
                    return False
                self._allocate()
        except OSError as error:
            log.warning("reserve_not_taken", path=str(self._path), error=error.strerror)
            return False
        self.is_held, self.is_given_back = True, False
        return True

    def _is_there(self) -> bool:
        return self._path.exists() and self._path.stat().st_blocks * BLOCK_SIZE >= self._size

    def _allocate(self) -> None:
        fd = create_or_open(self._path, os.O_RDWR)
        try:
            os.posix_fallocate(fd, 0, self._size)
        except OSError:
            os.ftruncate(fd, 0)
            raise
        finally:
            os.close(fd)

    def give_back(self) -> None:
        """Release the reserve, which frees its size on the disk."""
        self.is_held, self.is_given_back = False, True
        try:
            os.truncate(self._path, 0)
        except OSError as error:
            log.error("reserve_not_given_back", path=str(self._path), error=error.strerror)


def reserve_of(path: Path, size: int) -> Reserve | None:
    """Return the reserve; None if there is none, and then release an existing one."""
    if size:
        return Reserve(path, size)
    path.unlink(missing_ok=True)
    return None
