"""Slices: stretches of a journal that any process can read independently; the unit of work that Spark distributes.

    slices = cut(place, first, last)
    frame = slices_frame(spark, slices)                       # one column of JSON; one partition per slice
    reader = JournalSliceReader(decode_slice(text))
    for rows in reader: ...                                   # MessageRows, each valid until the next
    reader.bad, reader.lost, reader.streams, reader.account   # unreadable records, losses, and counts of all messages

A slice carries the cursors of the source streams, so that a task which begins in the middle of a journal recognises
messages that another publisher delivered before. A message belongs to the slice in which it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.capture.core.cursors import KEPT, REPEATED, SKIPPED, CursorImage, Cursors
from penstock.capture.core.rows import BadRecord, Loss, MessageRows, PacketRows
from penstock.journal.core.messages import Extent
from penstock.spark.journals import JournalPlace
from penstock.spark.scanmemory import ScanMemory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Copies = Literal["first", "all"]

SLICE_BYTES = 256 * 1024 * 1024
"""Target size of a slice in bytes of journal, rounded to whole segments. Starting a slice costs Spark about 30 ms."""

LOOKBACKS = (64, 1_024, 16_384, 65_536)
"""Numbers of records to read before a slice, in turn, to find the beginning of a message that ends in the slice."""

BAD_MAX = 100_000
"""Bad records of one slice that are kept for inspection; all are counted."""


class JournalSlice(msgspec.Struct, frozen=True, omit_defaults=True, tag="journal"):
    """The records `first` to `last` of a journal."""

    place: JournalPlace
    first: int
    last: int
    cursors: list[CursorImage] | None = None
    """Progress of every source stream before the slice; None: duplicates are not detected, all messages are taken."""
    removed: int = 0
    """Records directly before the slice that retention removed before anyone read them."""

    @property
    def name(self) -> str:
        """Name of the slice in reports; unique within a run."""
        return f"{self.place.where}#{self.first}-{self.last}"


class JournalAccount(msgspec.Struct, omit_defaults=True):
    """Counts of the messages of a slice by outcome; `taken` is always the sum of the others. A bad record counts as one
    message.
    """

    taken: int = 0
    given: int = 0
    """Messages that became rows."""
    repeated: int = 0
    quarantined: dict[str, int] = {}
    skipped: dict[str, int] = {}

    @property
    def is_balanced(self) -> bool:
        others = self.given + self.repeated + sum(self.quarantined.values()) + sum(self.skipped.values())
        return self.taken == others


def encode_slice(piece: JournalSlice) -> str:
    return msgspec.json.encode(piece).decode()


def decode_slice(text: str | bytes) -> JournalSlice:
    return msgspec.json.decode(text, type=JournalSlice)


def slices_frame(spark: SparkSession, slices: Sequence[msgspec.Struct]) -> DataFrame:
    """Return a DataFrame with the slices as JSON in its only column `slice`, one partition per slice."""
    from pyspark.sql import functions

    texts = [msgspec.json.encode(piece).decode() for piece in slices]
    if not texts:
        return spark.createDataFrame([], "slice STRING")
    # a range keeps rows in their partitions; a shuffle could put several slices into one partition and leave cores idle
    numbers = spark.range(0, len(texts), 1, len(texts))
    known = functions.array(*(functions.lit(text) for text in texts))
    return numbers.select(functions.element_at(known, functions.expr("int(id) + 1")).alias("slice"))


class JournalSliceReader:
    """Reads one slice once. `bad`, `lost`, `streams` and `account` are complete when the iteration has ended."""

    def __init__(self, piece: JournalSlice) -> None:
        self.slice = piece
        self.bad: list[BadRecord] = []
        self.lost: list[Loss] = []
        self.account = JournalAccount()
        self.cursors = None if piece.cursors is None else Cursors.of(piece.cursors)
        self.on_judged: Callable[[MessageRows, NDArray[numpy.bool_]], None] | None = None
        """Called with all messages of each batch, including those left out, and a mask of the duplicates."""
        self._packets = PacketRows()

    @property
    def streams(self) -> NDArray[Any]:
        """Return a row of STREAM_DTYPE for every publisher stream and epoch in the slice."""
        return self._packets.streams

    def __iter__(self) -> Iterator[MessageRows]:
        is_first = True
        for batch in self.slice.place.read(self.slice.first, self.slice.last):
            rows = self._packets.take(batch)
            if is_first and self._packets.orphans:
                self._packets = self._joined()
                rows = self._packets.take(batch)
            is_first = False
            self._note(rows)
            yield self._chosen(rows)

    def _joined(self) -> PacketRows:
        """Return packet rows that have read the beginning of messages that end in this slice, if it can be found."""
        first = self.slice.first
        begin = self.slice.place.measure().first_sequence
        for count in LOOKBACKS:
            packets = PacketRows()
            start = max(begin, first - count)
            for batch in self.slice.place.read(start, first - 1):
                packets.take(batch)
            if not packets.orphans or start == begin:
                break
        return packets.continued()

    def _note(self, rows: MessageRows) -> None:
        packets, account = self._packets, self.account
        account.taken += len(rows) + len(packets.bad)
        for each in packets.bad:
            account.quarantined[each.code] = account.quarantined.get(each.code, 0) + 1
        self.bad += packets.bad[: max(0, BAD_MAX - len(self.bad))]
        self.lost += packets.lost

    def _chosen(self, rows: MessageRows) -> MessageRows:
        verdicts = numpy.zeros(len(rows), numpy.uint8) if self.cursors is None else self.cursors.judge(rows)
        if self.on_judged is not None:
            self.on_judged(rows, verdicts == REPEATED)
        if verdicts.any():
            self._note_left_out(verdicts)
            rows = rows.select(verdicts == KEPT)
        self.account.given += len(rows)
        return rows

    def _note_left_out(self, verdicts: NDArray[numpy.uint8]) -> None:
        counts = numpy.bincount(verdicts, minlength=256)
        self.account.repeated += int(counts[REPEATED])
        for verdict, cause in SKIPPED.items():
            if counts[verdict]:
                self.account.skipped[cause] = self.account.skipped.get(cause, 0) + int(counts[verdict])


def cut(
    place: JournalPlace,
    first: int,
    last: int,
    *,
    copies: Copies = "first",
    cursors: list[CursorImage] | None = None,
    extent: Extent | None = None,
    slice_bytes: int = SLICE_BYTES,
    slices_min: int = 1,
) -> list[JournalSlice]:
    """Cut these records into slices; `cursors` are those before `first`.

    Cuts are made at segment boundaries. The number of slices is `slices_min`, or a multiple of it that keeps a slice
    below about `slice_bytes`, so that no worker idles at the end. To detect duplicates, all slices but the last are
    scanned here.
    """
    if first > last:
        return []
    images = cursors or []
    slices: list[JournalSlice] = []
    for start, end in _bounds(extent or place.measure(), first, last, slice_bytes, slices_min):
        if slices and copies == "first":
            images = scan(place, slices[-1].first, slices[-1].last, images)
        slices.append(JournalSlice(place, start, end, images if copies == "first" else None))
    return slices


def scan(place: JournalPlace, first: int, last: int, cursors: list[CursorImage]) -> list[CursorImage]:
    """Return the cursors after these records; remember the result for stretches that cannot change any more."""
    memory = ScanMemory.of(place, first, last, cursors)
    if memory is not None and (known := memory.recall()) is not None:
        return known
    reader = JournalSliceReader(JournalSlice(place, first, last, cursors))
    for _ in reader:
        pass
    assert reader.cursors is not None
    found = reader.cursors.export()
    if memory is not None:
        memory.keep(found)
    return found


def _bounds(extent: Extent, first: int, last: int, slice_bytes: int, slices_min: int) -> list[tuple[int, int]]:
    firsts, sizes = extent.firsts, extent.sizes
    wanted = [
        (start, size)
        for start, end, size in zip(firsts, [*firsts[1:], extent.next_sequence], sizes, strict=True)
        if end > first and start <= last
    ]
    total, least = sum(size for _, size in wanted), max(slices_min, 1)
    target = total // (least * max(1, -(-total // (slice_bytes * least)))) + 1
    starts, filled = [first], 0
    for start, size in wanted:
        if start > first and filled + size // 2 >= target:
            starts.append(start)
            filled = 0
        filled += size
    return [(start, end - 1) for start, end in zip(starts, [*starts[1:], last + 1], strict=True)]
