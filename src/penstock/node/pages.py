"""Addresses of the nodes' pages (/status, /metrics), including those with dynamic ports: each node writes a file
with the address of its page into the plant's directory, for `penstock top`. The supervisor writes a file for each
node that is failing, and one for each node that it has restarted."""

import os
from pathlib import Path

from penstock.base.files import make_directory, write_file
from penstock.base.log import logger

ADDRESS_SIZE_MAX = 256
FAILING_SIZE_MAX = 512
RESTARTS_SIZE_MAX = 20

log = logger("node")


class Pages:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def note(self, name: str, url: str) -> None:
        """Write the address of this node's page. A failed write does not stop the node."""
        self._write(self._path(name), url)

    def forget(self, name: str) -> None:
        """Remove the address of a node that has ended, if there is one."""
        self._remove(self._path(name))

    def find(self, name: str) -> str:
        """Return the last address; empty if there is none."""
        return self._read(self._path(name), ADDRESS_SIZE_MAX)

    def note_failing(self, name: str, why: str) -> None:
        self._write(self._failing_path(name), why[:FAILING_SIZE_MAX].replace("\n", " "))

    def clear_failing(self, name: str) -> None:
        self._remove(self._failing_path(name))

    def failing(self, name: str) -> str:
        """Why the supervisor counts the node as failing; empty if it does not."""
        return self._read(self._failing_path(name), FAILING_SIZE_MAX)

    def note_restarts(self, name: str, count: int) -> None:
        """Write how often the supervisor has restarted the node since the start of the plant."""
        if count:
            self._write(self._restarts_path(name), str(count))
        else:
            self._remove(self._restarts_path(name))

    def restarts(self, name: str) -> int:
        """Return the supervisor's count; 0 without a supervisor."""
        text = self._read(self._restarts_path(name), RESTARTS_SIZE_MAX)
        return int(text) if text.isascii() and text.isdigit() else 0

    def _write(self, path: Path, text: str) -> None:
        try:
            make_directory(path.parent)
            new = path.with_name(f"{path.name}.new")
            write_file(new, f"{text}\n".encode())
            os.replace(new, path)
        except OSError as error:
            log.warning("page_not_noted", path=str(path), error=error.strerror)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("page_not_forgotten", path=str(path), error=error.strerror)

    def _read(self, path: Path, size_max: int) -> str:
        try:
            with path.open() as file:
                return file.read(size_max).strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.page"

    def _restarts_path(self, name: str) -> Path:
        return self._directory / f"{name}.restarts"

    def _failing_path(self, name: str) -> Path:
        return self._directory / f"{name}.failing"
