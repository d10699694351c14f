"""A delayed stream: packets of the adapter's journal, when they are old enough.

The record's time counts, which is taken after its packet was published. A message is therefore never delivered earlier
than its grant's delay after it was published.
"""

from pathlib import Path
from typing import Self

import numpy

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.feed.core.service.published import PublishedBatch, Unpacker
from penstock.journal import JournalReader
from penstock.journal.core.records import NOTHING, RecordBatch

LOOK_NS = 10 * NS_PER_MS
"""Interval of checks for new records in the journal."""


class DelayedReader:
    """Reads a journal `delay_s` behind the wall clock. `from_ns` is the time of the first record; 0: the newest one
    that is old enough now."""

    def __init__(self, reader: JournalReader, delay_s: int, from_ns: int, now_ns: int) -> None:
        self._reader = reader
        self._delay_ns = delay_s * NS_PER_SECOND
        self._waiting: RecordBatch = NOTHING
        self._unpacker = Unpacker()
        reader.seek_time(from_ns or now_ns - self._delay_ns)

    @classmethod
    def open(cls, path: Path | str, delay_s: int, from_ns: int, now_ns: int) -> Self:
        return cls(JournalReader.open(path), delay_s, from_ns, now_ns)

    def close(self) -> None:
        self._reader.close()

    def take(self, now_ns: int) -> list[PublishedBatch]:
        """Return the batches that have become old enough since the last call. Rows are valid until the next call."""
        if not len(self._waiting):
            self._waiting = self._reader.read_batch()
        rows = self._waiting.rows
        due_ns = now_ns - self._delay_ns
        is_young = rows["timestamp_ns"] > due_ns
        count = int(is_young.argmax()) if is_young.any() else len(rows)
        if not count:
            return []
        data = numpy.frombuffer(self._waiting.data, numpy.uint8)
        offsets, sizes = rows["offset"][:count].astype(numpy.uint32), rows["size"][:count].astype(numpy.uint32)
        self._waiting = RecordBatch(self._waiting.data, rows[count:])
        return [
            PublishedBatch(each.data, each.packets.copy(), each.rows.copy())
            for each in self._unpacker.unpack(data, offsets, sizes)
        ]

    def wait_ns(self, now_ns: int) -> int:
        """Time until the next record may be old enough."""
        if not len(self._waiting):
            return LOOK_NS
        return max(0, int(self._waiting.rows[0]["timestamp_ns"]) + self._delay_ns - now_ns)
