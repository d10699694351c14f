"""What there is to read, cut into slices: journals and recorded feeds, from where the archive's last commit left off.

    source = JournalSource(JournalPlace("captured.d"))     # or FeedSource(Path("day.itch"), Conversion("itch", …))
    pieces = source.pieces(catalogue)                      # in order; none when all is archived

A piece says where its source is when it is done, so that any run can go on after any commit. A feed is known by its
content and how it is converted, not by its name: the same file is not archived twice. A journal is known by its place.
"""

from __future__ import annotations

from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, Protocol

import msgspec

from penstock.base.errors import ArchiveError, ConfigurationError, JournalGoneError
from penstock.capture.cursors import CursorImage
from penstock.spark.feedindex import Progress, plan_slices, slice_size_of
from penstock.spark.feedslices import Conversion, FeedOptions
from penstock.spark.journals import REMOTE, JournalPlace
from penstock.spark.pipeline.commits import Catalogue
from penstock.spark.pipeline.normalise import Slice
from penstock.spark.slices import JournalSlice, cut, scan

STEP_RECORDS = 200_000
"""Records that one step of a follower takes at most: what its memory and its delay are bounded by."""


SLICE_RECORDS_MIN = 10_000
"""Of a follower's step; fewer are read by one task."""


class Piece(msgspec.Struct, frozen=True):
    """A slice, and where its source is after it."""

    slice: Slice
    source: str
    position: dict[str, Any]


class Source(Protocol):
    def pieces(self, catalogue: Catalogue) -> list[Piece]:
        """What is not archived yet, in order."""


class FeedSource:
    """A recorded feed in a file, which is read once and to its end."""

    def __init__(
        self,
        path: Path,
        conversion: Conversion,
        options: FeedOptions | None = None,
        cores: int = 1,
        cache: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._path = path
        self._conversion = conversion
        self._options = options or FeedOptions()
        self._cores = cores
        self._cache = cache
        self._progress = progress

    def pieces(self, catalogue: Catalogue) -> list[Piece]:
        key = f"feed:{self._identity()}"
        known = catalogue.sources.get(key, {})
        done = known.get("slices", 0)
        if known and done == known["of"]:
            return []
        # cut as it was when the run began that did not end, also if there are more cores today
        size = known.get("slice_size", 0) or slice_size_of(self._path, self._options, self._cores)
        slices = plan_slices(
            self._path,
            options=self._options,
            conversion=self._conversion,
            cores=1,
            slice_size=size,
            cache=self._cache,
            progress=self._progress,
        )
        return [
            Piece(
                each,
                key,
                {"path": str(self._path), "slices": number, "of": len(slices), "slice_size": size or 0},
            )
            for number, each in enumerate(slices, start=1)
            if number > done
        ]

    def _identity(self) -> str:
        """The same for the same content, converted in the same way."""
        try:
            with self._path.open("rb") as file:
                content = file_digest(file, "sha256").digest()
        except OSError as error:
            raise ConfigurationError(f"cannot be read: {error.strerror}", where=str(self._path)) from None
        told = msgspec.json.encode([self._conversion, self._options])
        return sha256(content + told).hexdigest()[:32]


class JournalSource:
    """A capture, of which there is more every time it is asked, while it goes on."""

    def __init__(
        self, place: JournalPlace, cores: int = 1, records_max: int | None = None, *, is_skipping: bool = False
    ) -> None:
        """`is_skipping`: go on behind records that retention removed too early; else they are an error."""
        self._place = place
        self._is_skipping = is_skipping
        self._cores = cores
        self._records_max = records_max

    def pieces(self, catalogue: Catalogue) -> list[Piece]:
        key = f"journal:{self._place.where}"
        extent = self._place.measure()
        done = int(catalogue.sources.get(key, {}).get("last", 0))
        last = extent.next_sequence - 1
        if last < done:
            raise ArchiveError(
                f"ends with record {last}, though records up to {done} are archived: it is another journal",
                where=self._place.where,
                hint="give it another archive, or another directory",
            )
        first = done + 1 if done else extent.first_sequence
        removed = max(extent.first_sequence - first, 0)
        if removed and not self._is_skipping:
            raise JournalGoneError(
                f"records {first:,} to {extent.first_sequence - 1:,} were removed before they were archived",
                first_sequence=extent.first_sequence,
                where=self._place.where,
                hint="--skip-removed goes on behind them, and notes them in the table quarantine; "
                "a journal must be kept for longer than its archive is behind",
            )
        first += removed
        cursors = [msgspec.convert(image, CursorImage) for image in catalogue.cursors.values()]
        if self._records_max is not None:
            slices = self._step(first, min(last, first + self._records_max - 1), cursors)
        else:
            slices = cut(self._place, first, last, cursors=cursors, extent=extent, slices_min=self._cores)
        if slices and removed:
            slices[0] = msgspec.structs.replace(slices[0], removed=removed)
        return [Piece(each, key, {"last": each.last}) for each in slices]

    def _step(self, first: int, last: int, cursors: list[CursorImage]) -> list[JournalSlice]:
        """As many slices as cores, however the segments are; a small step is one."""
        slices: list[JournalSlice] = []
        size = max(-(-(last - first + 1) // self._cores), SLICE_RECORDS_MIN)
        for start in range(first, last + 1, size):
            if slices:
                cursors = scan(self._place, slices[-1].first, slices[-1].last, cursors)
            slices.append(JournalSlice(self._place, start, min(start + size - 1, last), cursors))
        return slices


def place_of(text: str, secret: str = "", ca: str = "") -> JournalPlace | None:
    """A directory or an address as the place of a journal; None for a file."""
    if text.startswith(REMOTE):
        return JournalPlace(text, secret, ca)
    path = Path(text)
    if path.is_dir():
        return JournalPlace(str(path.absolute()))
    if not path.exists():
        raise ConfigurationError(
            "there is no such file or directory", where=text, hint="name a journal's directory, tcp://HOST:PORT, a file"
        )
    return None
