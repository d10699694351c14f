"""Truncate a journal without a writer, to remove records that should not exist."""

from pathlib import Path

import msgspec

from penstock.base.errors import JournalCorruptError, JournalError
from penstock.journal.core.recovery import scan_segment
from penstock.journal.live.files import WritableDirectory


def cut(path: Path | str, after: int) -> None:
    """Remove the records after this sequence number; all records if older ones are no longer kept.

    Raises JournalLockedError if the journal has a writer. After a crash some of the records may remain: cut again.
    """
    directory = WritableDirectory(Path(path))
    try:
        _cut(directory, after)
    except OSError as error:
        raise JournalError(f"cannot truncate the journal: {error.strerror}", where=str(path)) from None
    finally:
        directory.close()


def _cut(directory: WritableDirectory, after: int) -> None:
    segments = directory.segments()
    mark = directory.read_mark()
    # the mark first: its records must exist at any time
    if not segments or after < segments[0].first_sequence:
        directory.drop_mark()
    elif mark is not None:
        directory.write_mark(msgspec.structs.replace(mark, durable=min(mark.durable, after)))
        directory.sync_mark()
    while segments and segments[-1].first_sequence > after:
        directory.remove(segments.pop().first_sequence)
    if not segments:
        return
    last = segments[-1]
    content = (directory.path / last.name).read_bytes()
    end = scan_segment(content, last.header, end_sequence=after + 1)
    if end.next_sequence > after + 1:
        raise JournalCorruptError(f"cannot find the end of record {after}", where=last.name)
    directory.truncate(last.first_sequence, end.offset)
