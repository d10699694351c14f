"""Results of journal scans, kept in the user's cache directory: completed segments never change.

Every journal has one file in the cache directory. A missing or unreadable file counts as empty.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from hashlib import sha256
from pathlib import Path

import msgspec

from penstock.base.errors import JournalError
from penstock.base.files import make_directory
from penstock.base.log import logger
from penstock.capture.core.cursors import CursorImage
from penstock.journal.core.format import segment_name
from penstock.journal.live.files import Directory
from penstock.spark.journals import JournalPlace

VERSION = 2
"""Version of the cursor format; part of the keys, so that results of another version are not used."""

ENTRIES_MAX = 4_096
"""Stretches kept per journal; the oldest are removed."""

log = logger("spark.scan")

_decoder = msgspec.json.Decoder(dict[str, list[CursorImage]])


def cache_directory() -> Path:
    """Return the directory for data that Penstock can recompute."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


class ScanMemory(msgspec.Struct, frozen=True):
    """The cursors after one stretch of completed segments."""

    path: Path
    key: str

    @staticmethod
    def of(place: JournalPlace, first: int, last: int, cursors: list[CursorImage]) -> ScanMemory | None:
        """Return the memory of a stretch; None if the stretch can still change or cannot be identified."""
        if place.is_remote:
            return None
        digest = sha256(msgspec.json.encode((VERSION, first, last, cursors)))
        try:
            firsts = Directory(Path(place.where)).first_sequences()
            if first not in firsts or last + 1 not in firsts:
                return None
            for start in firsts[firsts.index(first) : firsts.index(last + 1)]:
                status = os.stat(os.path.join(place.where, segment_name(start)))
                digest.update(f"{start} {status.st_ino} {status.st_size} {status.st_mtime_ns} ".encode())
        except (OSError, JournalError):
            return None
        name = sha256(place.where.encode()).hexdigest()[:32]
        return ScanMemory(cache_directory() / "scans" / f"{name}.json", digest.hexdigest())

    def recall(self) -> list[CursorImage] | None:
        return self._entries().get(self.key)

    def keep(self, cursors: list[CursorImage]) -> None:
        entries = list((self._entries() | {self.key: cursors}).items())[-ENTRIES_MAX:]
        try:
            make_directory(self.path.parent)
            with tempfile.NamedTemporaryFile("wb", dir=self.path.parent, delete=False) as file:
                file.write(msgspec.json.encode(dict(entries)))
            os.replace(file.name, self.path)
        except OSError as error:
            log.debug("scan_not_kept", path=str(self.path), error=error.strerror)

    def _entries(self) -> dict[str, list[CursorImage]]:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return _decoder.decode(self.path.read_bytes())
        return {}
