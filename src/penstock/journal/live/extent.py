"""The range of a journal's records, found without reading all of them."""

from pathlib import Path

from penstock.base.errors import JournalError
from penstock.journal.core.messages import Extent
from penstock.journal.live.files import Directory
from penstock.journal.live.reader import JournalReader


def measure(path: Path | str, from_time_ns: int | None = None) -> Extent:
    """Return the segments of the journal in a directory, and its newest readable record.

    With a time, also return the first record that is not older, assuming that times grow with the sequence numbers.
    """
    directory = Directory(Path(path))
    if not directory.first_sequences() and directory.read_mark() is None:
        raise JournalError(
            "the directory holds no journal", where=str(path), hint="a journal's directory has *.journal files"
        )
    with JournalReader.open(path) as reader:
        found = None if from_time_ns is None else _first_since(reader, from_time_ns)
        next_sequence = reader.find_end()
    segments = [segment for segment in directory.segments() if segment.header.first_sequence < next_sequence]
    return Extent(
        next_sequence,
        [segment.header.first_sequence for segment in segments],
        [segment.size for segment in segments],
        found or (None if from_time_ns is None else next_sequence),
    )


def _first_since(reader: JournalReader, time_ns: int) -> int | None:
    reader.seek_time(time_ns)
    batch = reader.read_batch(1)
    return int(batch.rows[0]["sequence"]) if len(batch) else None
