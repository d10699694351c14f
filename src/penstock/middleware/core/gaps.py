"""The missing packets of a stream, and the times of their requests."""

from bisect import bisect_right

import msgspec

from penstock.base.counters import Cause


class Gap(msgspec.Struct):
    """Packets `first` to `last` are missing. With a cause in `given_up`, they only wait to be reported."""

    first: int
    last: int
    nack_at_ns: int
    attempts: int = 0
    is_suppressed: bool = False
    given_up: Cause | None = None


class Gaps:
    """The missing ranges of one stream in ascending order, without overlap."""

    def __init__(self) -> None:
        self._gaps: list[Gap] = []
        self._next_nack_ns: int | None = None

    def __len__(self) -> int:
        return len(self._gaps)

    @property
    def oldest(self) -> Gap | None:
        return self._gaps[0] if self._gaps else None

    def open(self, first: int, last: int, nack_at_ns: int) -> None:
        """Add a missing range above all others."""
        self._gaps.append(Gap(first, last, nack_at_ns))
        if self._next_nack_ns is None or nack_at_ns < self._next_nack_ns:
            self._next_nack_ns = nack_at_ns

    def fill(self, first: int, last: int, retry_at_ns: int = 0) -> bool:
        """Account for the packets `first` to `last`. Return True if any of them was missing. The attempts of a range
        that shrinks start anew, because an answer has arrived. Packets requested together with these packets, and with
        higher numbers, are on their way: they are not requested again before `retry_at_ns`. Skipped packets keep their
        time."""
        low, high = self._span(first, last)
        rest = []
        for gap in self._gaps[low:high]:
            attempts = min(gap.attempts, 1)
            if gap.first < first:
                rest.append(Gap(gap.first, first - 1, gap.nack_at_ns, attempts, given_up=gap.given_up))
            if last < gap.last:
                nack_at_ns = max(gap.nack_at_ns, retry_at_ns) if attempts else gap.nack_at_ns
                rest.append(Gap(last + 1, gap.last, nack_at_ns, attempts, given_up=gap.given_up))
        self._gaps[low:high] = rest
        return low < high

    def overlaps(self, first: int, last: int) -> bool:
        """True if a packet from `first` to `last` is missing."""
        low, high = self._span(first, last)
        return low < high

    def forgive(self, last: int) -> None:
        """Remove the contiguous missing range up to `last`: it is not missing after all."""
        low, high = self._span(last, last)
        for gap in self._gaps[low:high]:
            self.fill(gap.first, last)

    def give_up(self, first: int, last: int, cause: Cause) -> None:
        """Mark missing packets from `first` to `last` as lost."""
        low, high = self._span(first, last)
        parts = []
        for gap in self._gaps[low:high]:
            if gap.given_up is not None:
                parts.append(gap)
                continue
            lost_first, lost_last = max(first, gap.first), min(last, gap.last)
            if gap.first < lost_first:
                parts.append(Gap(gap.first, lost_first - 1, gap.nack_at_ns, gap.attempts, gap.is_suppressed))
            parts.append(Gap(lost_first, lost_last, gap.nack_at_ns, given_up=cause))
            if lost_last < gap.last:
                parts.append(Gap(lost_last + 1, gap.last, gap.nack_at_ns, gap.attempts, gap.is_suppressed))
        self._gaps[low:high] = parts

    def pop_oldest(self) -> Gap:
        return self._gaps.pop(0)

    def hopeful(self) -> list[Gap]:
        return [gap for gap in self._gaps if gap.given_up is None]

    def hopeful_within(self, first: int, last: int) -> list[Gap]:
        """The ranges that lie completely within `first` to `last`."""
        low, high = self._span(first, last)
        return [gap for gap in self._gaps[low:high] if gap.given_up is None and first <= gap.first and gap.last <= last]

    def next_nack_ns(self) -> int | None:
        """Time of the next check for due requests; possibly early, never late."""
        return self._next_nack_ns if self._gaps else None

    def find_next_nack_ns(self) -> None:
        """Make next_nack_ns() exact, after requests were sent."""
        self._next_nack_ns = min((gap.nack_at_ns for gap in self.hopeful()), default=None)

    def _span(self, first: int, last: int) -> tuple[int, int]:
        """The slice of gaps that overlap `first` to `last`."""
        low = bisect_right(self._gaps, first, key=lambda gap: gap.first)
        if low > 0 and self._gaps[low - 1].last >= first:
            low -= 1
        high = bisect_right(self._gaps, last, key=lambda gap: gap.first)
        return low, max(low, high)


def merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same numbers as ranges without overlap."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged
