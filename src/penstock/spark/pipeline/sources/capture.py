"""Input of the pipeline: journals and recorded feeds, from the position of the archive's last commit, cut into slices.

    source = JournalSource(JournalPlace("captured.d"))     # or FeedSource(Path("day.itch"), Conversion("itch", …))
    pieces = source.pieces(catalogue)                      # in order; empty if everything is archived

A piece holds the position of its source after the piece, so that any run can resume after any commit. A feed is
identified by its content and its conversion, not by its name, so the same file is not archived twice. A journal is
identified by its place.

Every file is a stream of its own, because its messages are numbered from 1. The archive assigns the lowest free stream
number and stores the number with the position of the source, where a later run finds it.
"""

from __future__ import annotations

from datetime import date, timedelta
from functools import cached_property
from hashlib import file_digest, sha256
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import msgspec

from penstock.base.errors import ArchiveError, ConfigurationError, JournalGoneError
from penstock.capture.core.cursors import CursorImage
from penstock.feed.recorded.dates import find_date
from penstock.spark.feedindex import Progress, plan_slices, slice_size_of
from penstock.spark.feedslices import Conversion, FeedOptions
from penstock.spark.journals import REMOTE, JournalPlace
from penstock.spark.pipeline.archive.commits import Catalogue, TradingDay
from penstock.spark.pipeline.archive.days import FEED, JOURNAL, OtherSources, other_sources
from penstock.spark.pipeline.sources.normalise import Slice
from penstock.spark.slices import JournalSlice, cut, scan

STEP_RECORDS = 200_000
"""Maximum number of records per step of a follower; bounds memory and delay."""


SLICE_RECORDS_MIN = 10_000
"""Minimum number of records per slice in a follower's step; a smaller step is one task."""


class Piece(msgspec.Struct, frozen=True):
    """A slice, and the position of its source after the slice."""

    slice: Slice
    source: str
    position: dict[str, Any]


class PipelineSource(Protocol):
    def pieces(self, catalogue: Catalogue) -> list[Piece]:
        """Return the pieces that are not archived yet, in order."""


class FeedSource:
    """A recorded feed in a file, which is read once and completely.

    The conversion's stream is the requested one; with 0 the archive assigns one.
    """

    def __init__(
        self,
        path: Path,
        conversion: Conversion,
        options: FeedOptions | None = None,
        cores: int = 1,
        cache: Path | None = None,
        progress: Progress | None = None,
        *,
        is_replacing: bool = False,
    ) -> None:
        """`is_replacing`: the file replaces the archived rows of its day; otherwise a second source of a day is
        refused.
        """
        self._path = path
        self._conversion = conversion
        self._options = options or FeedOptions()
        self._cores = cores
        self._cache = cache
        self._progress = progress
        self.is_replacing = is_replacing
        self._keyed: tuple[tuple[int, int], str] | None = None

    def pieces(self, catalogue: Catalogue) -> list[Piece]:
        key = self.key
        known = catalogue.sources.get(key, {})
        conversion = msgspec.structs.replace(self._conversion, stream_id=self._stream(catalogue, known))
        done = known.get("slices", 0)
        if known and done == known["of"]:
            return []
        done = 0 if self.is_replacing else done
        # keep the slice size of an interrupted run, even if there are more cores today
        size = known.get("slice_size", 0) or slice_size_of(self._path, self._options, self._cores)
        slices = plan_slices(
            self._path,
            options=self._options,
            conversion=conversion,
            cores=1,
            slice_size=size,
            cache=self._cache,
            progress=self._progress,
        )
        position = {"path": str(self._path), "of": len(slices), "slice_size": size or 0, "stream": conversion.stream_id}
        position |= {"date": self.day, "venue": self.venue, "is_separate": bool(self.stream)}
        return [
            Piece(each, key, {**position, "slices": number})
            for number, each in enumerate(slices, start=1)
            if number > done
        ]

    @property
    def path(self) -> Path:
        return self._path

    @property
    def stream(self) -> int:
        """The requested stream; 0: the archive assigns one."""
        return self._conversion.stream_id

    @property
    def key(self) -> str:
        """Key of the current content; the file is read again only if it has changed."""
        try:
            stat = self._path.stat()
        except OSError as error:
            raise ConfigurationError(f"cannot read the feed file: {error.strerror}", where=str(self._path)) from None
        seen = stat.st_mtime_ns, stat.st_size
        if self._keyed is None or self._keyed[0] != seen:
            self._keyed = seen, f"{FEED}{self._identity()}"
        return self._keyed[1]

    def trading_day(self) -> TradingDay | None:
        """Return the trading day; None if the file does not give its date."""
        if not self.day:
            return None
        plan = self._conversion.load()[1]
        first = date.fromisoformat(self.day)
        if plan.calendar.is_fallback:
            begin_ns, end_ns = plan.midnight_ns(first), plan.midnight_ns(first + timedelta(days=1))
        else:
            begin_ns, end_ns = plan.calendar.bounds_ns(first)
        return TradingDay(self.day, self.venue, begin_ns, end_ns)

    def others(self, catalogue: Catalogue) -> OtherSources:
        """Return the other archived sources of the file's day; for a file with its own stream, only sources of that
        stream.
        """
        day = self.trading_day()
        return OtherSources() if day is None else other_sources(catalogue, day, self.key, self.stream)

    @cached_property
    def venue(self) -> str:
        return self._conversion.load()[1].venue

    @cached_property
    def day(self) -> str:
        """The given or detected trading date; empty if the file does not give one."""
        if self._conversion.trading_date:
            return self._conversion.trading_date
        found = find_date(self._path, self._conversion.load()[1].calendar)
        return "" if found is None else found.isoformat()

    def _stream(self, catalogue: Catalogue, known: dict[str, Any]) -> int:
        """Return the number of the file's stream: the archived one, the requested one, or the lowest free one."""
        archived = known.get("stream", 0)
        if archived and self.stream in (0, archived):
            return int(archived)
        if archived:
            raise ConfigurationError(
                f"the file is archived as stream {archived}, not {self.stream}",
                where=str(self._path),
                hint=f"leave out --stream, or give --stream {archived}",
            )
        feeds = feed_streams(catalogue)
        if self.is_replacing:
            replaced = {int(position["stream"]) for position in self.others(catalogue).feeds.values()}
            feeds = {stream: path for stream, path in feeds.items() if stream not in replaced}
            if replaced and not self.stream:
                return min(replaced)
        if not self.stream:
            self._refuse_same_day(catalogue)
            used = {*feeds, *map(int, catalogue.cursors)}
            return next(number for number in count(1) if number not in used)
        if self.stream in feeds or str(self.stream) in catalogue.cursors:
            owner = feeds.get(self.stream, "a journal")
            raise ConfigurationError(
                f"cannot archive the file as stream {self.stream}, which is the stream of {owner}",
                where=str(self._path),
                hint="leave out --stream, so that the archive assigns a free number",
            )
        return self.stream

    def _refuse_same_day(self, catalogue: Catalogue) -> None:
        """Refuse a second file of a day and venue. The file may be a correction, a part of the session or a copy, which
        the user must decide.
        """
        found = self.others(catalogue)
        if found and not self.is_replacing:
            raise same_day(self, *found.names)

    def _identity(self) -> str:
        """Return an identity that is equal for equal content and conversion; the stream number is ignored."""
        try:
            with self._path.open("rb") as file:
                content = file_digest(file, "sha256").digest()
        except OSError as error:
            raise ConfigurationError(f"cannot read the feed file: {error.strerror}", where=str(self._path)) from None
        conversion = msgspec.structs.replace(self._conversion, stream_id=0)
        told = msgspec.json.encode([conversion, self._options])
        return sha256(content + told).hexdigest()[:32]


def same_day(feed: FeedSource, *others: str | Path) -> ConfigurationError:
    """Return the error for a file whose day and venue another file already has."""
    names, have = " and ".join(map(str, others)), "has" if len(others) == 1 else "have"
    return ConfigurationError(
        f"the file has messages of {feed.day}, venue {feed.venue}, and so {have} {names}: "
        "the files have the same messages, or may be parts of one session",
        where=str(feed.path),
        hint="--replace replaces the archived rows of the day with the file; if the files are parts of one session, "
        "give --stream for each file, so that each becomes a stream with its own books",
    )


def feed_streams(catalogue: Catalogue) -> dict[int, str]:
    """Return the file of each stream."""
    return {position["stream"]: position["path"] for key, position in catalogue.sources.items() if key.startswith(FEED)}


class JournalSource:
    """A capture journal, which grows while the capture continues."""

    def __init__(
        self, place: JournalPlace, cores: int = 1, records_max: int | None = None, *, is_skipping: bool = False
    ) -> None:
        """`is_skipping`: skip records that retention removed before they were archived; otherwise such records are an
        error.
        """
        self._place = place
        self._is_skipping = is_skipping
        self._cores = cores
        self._records_max = records_max

    def pieces(self, catalogue: Catalogue) -> list[Piece]:
        key = f"{JOURNAL}{self._place.where}"
        extent = self._place.measure()
        done = int(catalogue.sources.get(key, {}).get("last", 0))
        last = extent.next_sequence - 1
        if last < done:
            raise ArchiveError(
                f"the journal ends with record {last}, but records up to {done} are archived: this is another journal",
                where=self._place.where,
                hint="use another archive, or the journal's original directory",
            )
        first = done + 1 if done else extent.first_sequence
        removed = max(extent.first_sequence - first, 0)
        if removed and not self._is_skipping:
            raise JournalGoneError(
                f"records {first:,} to {extent.first_sequence - 1:,} were removed before they were archived",
                first_sequence=extent.first_sequence,
                where=self._place.where,
                hint="--skip-removed skips these records and lists them in the table quarantine; "
                "the journal's retention must exceed the delay of its archive",
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
        """Cut a step into as many slices as there are cores, independent of segment boundaries; a small step is one
        slice.
        """
        slices: list[JournalSlice] = []
        size = max(-(-(last - first + 1) // self._cores), SLICE_RECORDS_MIN)
        for start in range(first, last + 1, size):
            if slices:
                cursors = scan(self._place, slices[-1].first, slices[-1].last, cursors)
            slices.append(JournalSlice(self._place, start, min(start + size - 1, last), cursors))
        return slices


def place_of(text: str, secret: str = "", ca: str = "", admin: str = "", credentials: str = "") -> JournalPlace | None:
    """Parse a directory or an address to a journal's place; None for a file."""
    if text.startswith(REMOTE):
        return JournalPlace(text, secret, ca, admin, credentials)
    path = Path(text)
    if path.is_dir():
        return JournalPlace(str(path.absolute()))
    if not path.exists():
        raise ConfigurationError(
            "no such file or directory", where=text, hint="give a journal's directory, tcp://HOST:PORT or a feed file"
        )
    return None
