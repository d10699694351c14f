"""Where the nodes of a plant show themselves (/status, /metrics), those too whose port is chosen when they start: each
leaves a file with the address of its page in the plant's directory, for `penstock top`."""

import os
from pathlib import Path

from penstock.base.files import make_directory, write_file
from penstock.base.log import logger

ADDRESS_SIZE_MAX = 256

log = logger("node")


class Pages:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def note(self, name: str, url: str) -> None:
        """This node's page is here now. That it cannot be noted is no reason for a node not to run."""
        path = self._path(name)
        try:
            make_directory(path.parent)
            new = path.with_suffix(".new")
            write_file(new, f"{url}\n".encode())
            os.replace(new, path)
        except OSError as error:
            log.warning("page_not_noted", node=name, error=error.strerror)

    def forget(self, name: str) -> None:
        """It is not there any more, nor is anybody who would miss it."""
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError as error:
            log.warning("page_not_forgotten", node=name, error=error.strerror)

    def find(self, name: str) -> str:
        """Where it was last; empty if it was never noted."""
        try:
            with self._path(name).open() as file:
                return file.read(ADDRESS_SIZE_MAX).strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.page"
