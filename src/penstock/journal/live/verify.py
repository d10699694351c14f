"""Report the content and defects of a journal's files."""

import itertools
from collections.abc import Callable, Iterator

import msgspec

from penstock.base.errors import JournalCorruptError, JournalError
from penstock.journal.core.format import Mark, segment_name
from penstock.journal.core.recovery import SegmentEnd, check_link, check_oldest, is_blank, require_torn, scan_segment
from penstock.journal.live.files import Directory
from penstock.journal.live.reader import OpenSegment


class SegmentReport(msgspec.Struct, kw_only=True):
    name: str
    first_sequence: int
    next_sequence: int
    """One more than the last valid record."""
    first_time_ns: int | None = None
    last_time_ns: int | None = None
    size: int = 0
    state: str = "sealed"
    """sealed: another segment follows; open: the last one; torn: the last one, with an incomplete record at its end,
    which the next writer truncates; damaged: see `problem`.
    """
    problem: str = ""


def inspect(directory: Directory, progress: Callable[[int], None] = lambda size: None) -> Iterator[SegmentReport]:
    """Read all records of all segments and report on each; `progress` is called with the bytes read."""
    mark = directory.read_mark()  # before listing the segments, so that one of them has the records it covers
    firsts = directory.first_sequences()
    oldest = directory.read_oldest()  # after listing them, because it is renewed before segments are removed
    before: OpenSegment | None = None
    for first, following in itertools.zip_longest(firsts, firsts[1:]):
        report = SegmentReport(name=segment_name(first), first_sequence=first, next_sequence=first)
        try:
            segment = directory.open_segment(first)
            if segment is None:
                before = None
                continue  # removed meanwhile, like the segments before it
            try:
                before, last = segment, before
                _inspect_segment(segment, report, following, mark)
                if report.state == "torn":  # a writer may have begun another segment meanwhile, which ends this one
                    _inspect_segment(segment, report, _following(directory, first), mark)
                if last is not None:
                    check_link(last.header, segment.header)
                if first == firsts[0]:
                    check_oldest(segment.header, oldest)
            finally:
                segment.close()
        except JournalError as error:
            report.state, report.problem = "damaged", str(error)
        progress(report.size)
        yield report


def _following(directory: Directory, first: int) -> int | None:
    """Return the segment that now follows this one."""
    return next((each for each in directory.first_sequences() if each > first), None)


def missing_segments(directory: Directory) -> JournalCorruptError | None:
    """Return the error if segments are missing altogether."""
    mark = directory.read_mark()
    if directory.first_sequences() or mark is None or not mark.durable:
        return None
    return JournalCorruptError(
        f"no segments exist, but records up to {mark.durable} were on disk", where=str(directory.path)
    )


def _inspect_segment(segment: OpenSegment, report: SegmentReport, following: int | None, mark: Mark | None) -> None:
    report.size = segment.size()
    content = segment.read(0, report.size)
    end = scan_segment(content, segment.header, end_sequence=following)
    report.next_sequence = end.next_sequence
    report.first_time_ns, report.last_time_ns = end.first_timestamp_ns, end.last_timestamp_ns
    if following is not None:
        report.state = "sealed"
        _check_sealed(report, end, following)
    else:
        rest = memoryview(content)[end.offset :]
        report.state = "open" if is_blank(rest) else "torn"
        is_ours = mark is not None and mark.journal_id == segment.header.journal_id
        durable = mark.durable if mark is not None and is_ours else 0
        require_torn(rest, segment.header, end.next_sequence, durable, at=end.offset)


def _check_sealed(report: SegmentReport, end: SegmentEnd, following: int) -> None:
    if end.next_sequence < following:
        raise JournalCorruptError(
            f"record {end.next_sequence} is damaged or missing, but records up to {following - 1} existed",
            where=f"{report.name} at byte {end.offset}",
        )
