"""The index of a recorded feed: built once, so that all cores can then read the feed in parallel.

    slices = plan_slices(Path("day.itch"), conversion=Conversion("itch", trading_date="2019-01-30"))

A small file is one slice and needs no index. A large file is cut at message boundaries (*frames*), and the conversion
state at every cut is kept as an image (*states*); building the images converts the feed once without building messages.
Files that cannot be cut in place (compressed files, text files, and captures, whose lines are merged in order) are
written to a *tape* first. feedcache.py stores the index; docs/reference/protocol/feed-index.md describes every file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from penstock.base.crc32c import crc32c
from penstock.convert import Plan
from penstock.feed.core.lines.events import SourceReady
from penstock.feed.formats.stream import ByteStream, Damage, Damages, compression_of, excerpt
from penstock.feed.recorded._tape import scan_blocks
from penstock.feed.recorded.files import guess_format, open_file
from penstock.feed.recorded.tape import encode
from penstock.spark.feedcache import FeedCache, Making
from penstock.spark.feedslices import (
    Conversion,
    FeedConverter,
    FeedOptions,
    FeedSlice,
    SourceEvents,
    StartState,
    open_as_told,
)

SLICE_SIZE_MIN = 4 * 1024 * 1024
"""A file smaller than twice this size is not cut."""

SLICE_SIZE_AIM = 256 * 1024 * 1024
"""Target size of the slices of larger files. The number of slices is limited to SLICES_MAX, because every slice has a
state image.
"""

TAPE_SLICE_SIZE_MAX = 128 * 1024 * 1024
"""Largest stretch of a tape that is read at once, in bytes."""

SLICES_MAX = 64
SLICES_PER_CORE = 2
COMPRESSION = 4
"""Assumed ratio of uncompressed to compressed size."""

SCAN_SIZE = 8 * 1024 * 1024
CHUNK_SIZE = 4 * 1024 * 1024
INDEX_VERSION = 3
"""Version of the index format; indexes of older versions are rebuilt."""

Progress = Callable[[str, int, int], None]
"""Called with the name of the step, the bytes done and the bytes in total."""


class Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stretch of the file, or of its tape, that begins and ends at message boundaries."""

    offset: int
    size: int
    messages: int
    first_sequence: int
    checksum: int = 0
    damages: tuple[Damage, ...] = ()
    damages_left_out: int = 0


class Frames(msgspec.Struct, frozen=True):
    session: str
    frames: list[Frame]
    tape: str = ""
    """The tape in the cache that holds the messages; empty: the feed's own file."""


class States(msgspec.Struct, frozen=True):
    starts: list[StartState]
    """Start states of all frames except the first."""


def plan_slices(
    path: Path,
    *,
    options: FeedOptions | None = None,
    conversion: Conversion | None = None,
    cores: int | None = None,
    slice_size: int | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> list[FeedSlice]:
    """Return the slices of a whole recorded feed, in order; build its index if there is none.

    Without `slice_size`, the feed is cut into several slices for each of `cores` (default: the cores of this machine).
    """
    options = options or FeedOptions()
    progress = progress or _silent
    size = slice_size or slice_size_of(path, options, cores or os.cpu_count() or 1)
    plan = conversion.checked(path) if conversion is not None else None
    open_as_told(path, options).close()  # an unreadable file is refused here, not by every worker
    if size is None:
        return [FeedSlice(str(path), 0, options, conversion=conversion)]
    store = FeedCache(cache, path)
    frames, directory = store.get_or_make(
        store.key("frames", INDEX_VERSION, size, options),
        Frames,
        lambda into: _make_frames(path, options, size, into, progress),
    )
    slices = _slices(path, options, conversion, frames, directory)
    if conversion is None or plan is None or len(slices) == 1:
        return slices
    told = [plan[1].identity, conversion.stream_id, conversion.trading_date]
    states, directory = store.get_or_make(
        store.key("states", INDEX_VERSION, size, options, told), States,
        lambda into: _make_states(slices, plan[1], into, progress),
    )  # fmt: skip
    starts = [None, *(msgspec.structs.replace(each, image=str(directory / each.image)) for each in states.starts)]
    return [msgspec.structs.replace(each, start=start) for each, start in zip(slices, starts, strict=True)]


def _silent(what: str, done: int, total: int) -> None:
    """Ignore the progress."""


def slice_size_of(path: Path, options: FeedOptions, cores: int) -> int | None:
    """Return the slice size in bytes; None for a file that is too small to cut."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if _is_compressed(file):
            size *= COMPRESSION
    if size < 2 * SLICE_SIZE_MIN:
        return None
    per_core = max(
        -(-size // (SLICE_SIZE_AIM * cores)), SLICES_PER_CORE
    )  # the same number of slices per core, so that no core idles
    count = min(per_core * cores, SLICES_MAX, size // SLICE_SIZE_MIN)
    return -(-size // count)


def _is_compressed(file: BinaryIO) -> bool:
    return bool(compression_of(os.pread(file.fileno(), 4, 0)))


def _is_plain_itch(path: Path, options: FeedOptions) -> bool:
    with open_file(path) as file:
        if _is_compressed(file):
            return False
        return (options.file_format or guess_format(path, ByteStream(file))) == "itch"


def _slices(
    path: Path, options: FeedOptions, conversion: Conversion | None, frames: Frames, directory: Path
) -> list[FeedSlice]:
    return [
        FeedSlice(
            path=str(path),
            number=number,
            options=options,
            data=str(directory / frames.tape) if frames.tape else "",
            offset=frame.offset,
            size=frame.size,
            messages=frame.messages,
            first_sequence=frame.first_sequence,
            checksum=frame.checksum,
            session=frames.session,
            damages=frame.damages,
            damages_left_out=frame.damages_left_out,
            conversion=conversion,
        )
        for number, frame in enumerate(frames.frames)
    ]


# Frames


def _make_frames(path: Path, options: FeedOptions, size: int, into: Making, progress: Progress) -> Frames:
    if _is_plain_itch(path, options):
        return Frames(path.name, list(_scanned(path, size, progress)))
    return Frames(path.name, list(_taped(path, options, min(size, TAPE_SLICE_SIZE_MAX), into, progress)), TAPE)


TAPE = "tape"


def _scanned(path: Path, slice_size: int, progress: Progress) -> Iterator[Frame]:
    """Return the frames of a file of length-prefixed messages."""
    buffer = bytearray(SCAN_SIZE)
    with open_file(path) as file:
        total = os.fstat(file.fileno()).st_size
        start = at = count = 0
        sequence = 1
        while at < total:
            view = memoryview(buffer)[: os.preadv(file.fileno(), [buffer], at)]
            until = min(start + slice_size - at, len(view))
            step, passed = scan_blocks(view, 0, until)
            if passed == 0:
                break
            at += step
            count += passed
            progress("framing", at, total)
            if at - start >= slice_size:
                yield Frame(start, at - start, count, sequence)
                sequence, start, count = sequence + count, at, 0
        rest = os.pread(file.fileno(), 64, at)
    damages = (cut_off(rest, total - at, at),) if at < total else ()
    if count or damages or sequence == 1:
        yield Frame(start, at - start, count, sequence, damages=damages)


def cut_off(rest: bytes, size: int, offset: int) -> Damage:
    """Return the damage of a truncated message, worded like that of ItchFile."""
    wanted = int.from_bytes(rest[:2], "big") if size > 1 else 0
    return Damage(f"a message is truncated after {max(size - 2, 0)} of {wanted} bytes", offset, excerpt(rest))


def _taped(path: Path, options: FeedOptions, slice_size: int, into: Making, progress: Progress) -> Iterator[Frame]:
    """Write the file's messages to a tape and return the frames of the tape."""
    total = path.stat().st_size
    with into.create(TAPE) as tape, open_as_told(path, options) as source:
        cutter = _TapeCutter(tape, source.damages)
        for event in source:
            if cutter.size >= slice_size:
                yield cutter.cut()
            cutter.write(encode(event), len(event.batch) if isinstance(event, SourceReady) else 0)
            progress("framing", min(source.position, total), total)
        yield cutter.cut()


class _TapeCutter:
    """Writes a tape and records its frames."""

    def __init__(self, tape: BinaryIO, damages: Damages) -> None:
        self._tape = tape
        self._damages = damages
        self._start = self._messages = self._checksum = 0
        self._told = self._told_total = 0
        self.size = 0

    def write(self, entries: bytes, messages: int) -> None:
        self._tape.write(entries)
        self._checksum = crc32c(entries, self._checksum)
        self.size += len(entries)
        self._messages += messages

    def cut(self) -> Frame:
        """Return the frame since the last cut, with the damage found in it."""
        damages = tuple(self._damages)[self._told :]
        left_out = self._damages.total - self._told_total - len(damages)
        frame = Frame(self._start, self.size, self._messages, 0, self._checksum, damages, left_out)
        self._start += self.size
        self._told, self._told_total = len(self._damages), self._damages.total
        self.size = self._messages = self._checksum = 0
        return frame


# States


def _make_states(slices: list[FeedSlice], plan: Plan, into: Making, progress: Progress) -> States:
    """Convert the whole feed once, in order, and keep only the state images at the cuts."""
    conversion = slices[0].conversion
    assert conversion is not None
    feed = FeedConverter(plan, conversion)
    feed.converter.make_only([])
    total = sum(each.size for each in slices)
    done = 0
    starts = []
    for piece in slices[:-1]:
        # only the first slice, which has no start state, announces the session; in later slices the session has begun
        events = SourceEvents(piece if piece.number == 0 else msgspec.structs.replace(piece, start=NO_STATE))
        for event in events:
            for batch in feed.take(event):
                feed.converter.convert(batch)
                progress("converting", done + events.position, total)
        done += piece.size
        starts.append(_kept_image(feed, piece.number + 1, into))
    return States(starts)


NO_STATE = StartState("", 0, 0, "", 0)


def _kept_image(feed: FeedConverter, number: int, into: Making) -> StartState:
    name = f"{number:04}.image"
    size = 0
    image = feed.converter.state.begin_image()
    with into.create(name) as file:
        while chunk := image.chunk(CHUNK_SIZE):
            file.write(len(chunk).to_bytes(8, "little"))
            file.write(chunk)
            size += 8 + len(chunk)
    converter = feed.converter
    return StartState(feed.session or "", converter.next_source_sequence, converter.next_message_sequence, name, size)
