"""Which packets of a stream are missing, when to ask for them, and when to stop asking."""

from bisect import bisect_right

import msgspec

from penstock.base.counters import Cause


class Gap(msgspec.Struct):
    """Packets `first` to `last` have not come. Once `given_up` says why, they are only waiting to be reported."""

    first: int
    last: int
    nack_at_ns: int
    attempts: int = 0
    given_up: Cause | None = None


class Gaps:
    """The missing ranges of one stream in ascending order, never touching each other."""

    def __init__(self) -> None:
        self._gaps: list[Gap] = []

    def __len__(self) -> int:
        return len(self._gaps)

    @property
    def oldest(self) -> Gap | None:
        return self._gaps[0] if self._gaps else None

    def open(self, first: int, last: int, nack_at_ns: int) -> None:
        """A new range is missing, above all the others."""
        self._gaps.append(Gap(first, last, nack_at_ns))

    def fill(self, first: int, last: int) -> int:
        """The packets `first` to `last` are accounted for; returns the first of them that had been missing, or 0.

        A range that shrinks has shown that somebody answers, so its attempts start anew.
        """
        first_filled = 0
        index = self._index_at(first)
        while index < len(self._gaps) and self._gaps[index].first <= last:
            gap = self._gaps.pop(index)
            low, high = max(first, gap.first), min(last, gap.last)
            first_filled = first_filled or low
            for rest_first, rest_last in ((gap.first, low - 1), (high + 1, gap.last)):
                if rest_first <= rest_last:
                    self._gaps.insert(index, Gap(rest_first, rest_last, gap.nack_at_ns, 0, gap.given_up))
                    index += 1
        return first_filled

    def give_up(self, first: int, last: int, cause: Cause) -> int:
        """The packets `first` to `last` will not come any more; returns how many of them were still hoped for."""
        hopeless = 0
        for gap in list(self._gaps):
            low, high = max(first, gap.first), min(last, gap.last)
            if low > high or gap.given_up is not None:
                continue
            hopeless += high - low + 1
            index = self._gaps.index(gap)
            parts = [
                Gap(gap.first, low - 1, gap.nack_at_ns, gap.attempts),
                Gap(low, high, gap.nack_at_ns, gap.attempts, cause),
                Gap(high + 1, gap.last, gap.nack_at_ns, gap.attempts),
            ]
            self._gaps[index : index + 1] = [part for part in parts if part.first <= part.last]
        return hopeless

    def pop_oldest(self) -> Gap:
        return self._gaps.pop(0)

    def hopeful(self) -> list[Gap]:
        return [gap for gap in self._gaps if gap.given_up is None]

    def next_nack_ns(self) -> int | None:
        return min((gap.nack_at_ns for gap in self._gaps if gap.given_up is None), default=None)

    def _index_at(self, sequence: int) -> int:
        """The first gap that does not lie wholly below `sequence`."""
        index = bisect_right(self._gaps, sequence, key=lambda gap: gap.first)
        return index - 1 if index > 0 and self._gaps[index - 1].last >= sequence else index
