"""Reading a router's log again, for its core."""

import numpy

from penstock.assured.core.router.events import ReadRecords
from penstock.journal import JournalReader
from penstock.journal.core.records import NOTHING, RecordBatch

FAR = 256
"""Number of records that are skipped rather than sought."""


def records_of(reader: JournalReader, request: ReadRecords) -> RecordBatch:
    return _joined(_these(reader, request) if len(request.sequences) else _portion(reader, request))


def _these(reader: JournalReader, request: ReadRecords) -> list[RecordBatch]:
    """Return the records with these numbers that exist. All at once, because the caller needs them in another order,
    and would request the first ones repeatedly."""
    found: list[RecordBatch] = []
    wanted = request.sequences
    oldest = reader.first_sequence
    at = 0
    while at < len(wanted):
        first = int(wanted[at])
        if reader.next_sequence < oldest or not 0 <= first - reader.next_sequence <= FAR:
            reader.seek(max(first, oldest))
        batch = reader.read_batch(max(1, min(FAR, int(wanted[-1]) - first + 1)))
        if not len(batch):
            break
        rows = batch.rows[numpy.isin(batch.rows["sequence"], wanted[at:])]
        if len(rows):
            found.append(RecordBatch(batch.data, rows))
        at = int(numpy.searchsorted(wanted, batch.rows["sequence"][-1], side="right"))
    return found


def _portion(reader: JournalReader, request: ReadRecords) -> list[RecordBatch]:
    """Return records after a record, or from a time on."""
    if request.time_ns:
        reader.seek_time(request.time_ns)
    else:
        reader.seek(max(request.after + 1, reader.first_sequence))
    found: list[RecordBatch] = []
    size = 0
    while (not found or size < request.bytes_max) and len(batch := reader.read_batch(FAR)):
        found.append(batch)
        size += int(batch.rows["size"].sum())
    return found


def _joined(batches: list[RecordBatch]) -> RecordBatch:
    if len(batches) < 2:
        return batches[0] if batches else NOTHING
    rows = numpy.concatenate([each.rows for each in batches])
    at = start = 0
    for batch in batches:
        rows["offset"][start : start + len(batch)] += at
        start += len(batch)
        at += len(batch.data)
    return RecordBatch(b"".join(each.data for each in batches), rows)
