"""Coverage: wants, each with the sequence after which the live flow is complete for it.

Covering wants are found by the leading literal levels of their topics, because there may be thousands and each new
subscriber needs a lookup. All answers are conservative: "not covered" if it cannot be decided.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from functools import lru_cache

from penstock.topics.interest import Interest, InterestKind, Literal
from penstock.topics.overlap import covers as topic_covers
from penstock.topics.overlap import levels_of
from penstock.tree.core.control import WANTS_MAX, WANTS_SIZE_MAX, Want, size_of

Prefix = tuple[str, ...]
"""The levels of a topic before the first that is not literal."""


@lru_cache(maxsize=65_536)
def covers(wide: Want, narrow: Want) -> bool:
    """True if `wide` matches every message that `narrow` matches; False if that cannot be decided."""
    if wide == narrow:
        return True
    if wide.where not in ("", narrow.where):
        return False
    outer = [Interest.parse(each) for each in wide.topics]
    inner = [Interest.parse(each) for each in narrow.topics]
    denied = {each.subject for each in inner if each.negative}
    if any(each.negative and each.subject not in denied for each in outer):
        return False
    positive = [each for each in outer if not each.negative]
    return all(
        each.negative or any(each == one or topic_covers(one, each) for one in positive) for each in inner
    )  # fmt: skip


class Coverage(MutableMapping[Want, int]):
    def __init__(self, after: Mapping[Want, int] | None = None) -> None:
        self._after: dict[Want, int] = {}
        self._by_prefix: dict[Prefix, dict[Want, None]] = {}
        self.update(after or {})

    def __getitem__(self, want: Want) -> int:
        return self._after[want]

    def __setitem__(self, want: Want, after: int) -> None:
        if want not in self._after:
            for prefix in _prefixes(want):
                self._by_prefix.setdefault(prefix, {})[want] = None
        self._after[want] = after

    def __delitem__(self, want: Want) -> None:
        del self._after[want]
        for prefix in set(_prefixes(want)):
            del self._by_prefix[prefix][want]
            if not self._by_prefix[prefix]:
                del self._by_prefix[prefix]

    def __iter__(self) -> Iterator[Want]:
        return iter(self._after)

    def __len__(self) -> int:
        return len(self._after)

    def since(self, wants: Iterable[Want]) -> int | None:
        """The sequence after which all of these wants are covered; None if one is not."""
        latest = 0
        for want in wants:
            found = self.get(want)
            if found is None:
                found = min((self[wide] for wide in self.covering(want)), default=None)
            if found is None:
                return None
            latest = max(latest, found)
        return latest

    def covering(self, narrow: Want) -> Iterator[Want]:
        """The wants that cover this one; itself too, if it is present."""
        for wide in self._candidates(narrow):
            if covers(wide, narrow):
                yield wide

    def _candidates(self, narrow: Want) -> Iterator[Want]:
        """A covering topic has a prefix of the covered topic's prefix."""
        prefixes = _prefixes(narrow)
        if not prefixes:
            yield from self._after
            return
        for length in range(len(prefixes[0]) + 1):
            yield from self._by_prefix.get(prefixes[0][:length], ())


def aggregated(wants: Iterable[Want], coverage: Coverage, whole: Want, wants_max: int) -> tuple[Want, ...]:
    """The fewest of these wants, all of which are covered, that cover all of them. The whole stream if they are too
    many, or too large for one message; it need not be covered then."""
    kept = Coverage()
    size = 0
    for want in sorted(wants, key=_width):
        if next(kept.covering(want), None) is not None:
            continue
        size += size_of(want)
        if len(kept) >= min(wants_max, WANTS_MAX) or size > WANTS_SIZE_MAX:
            return (whole,)
        kept[want] = 0
    found = [want for want in kept if all(other == want for other in kept.covering(want))]
    return (whole,) if whole in coverage and any(covers(want, whole) for want in found) else tuple(found)


def _width(want: Want) -> tuple[bool, int, tuple[str, ...], str]:
    """Wide wants first; the rest only makes the order deterministic."""
    return (bool(want.where), min(len(each.split(".")) for each in want.topics), want.topics, want.where)


def _prefixes(want: Want) -> list[Prefix]:
    """The prefixes of the topics that are not negative."""
    return [found for found in map(_prefix, want.topics) if found is not None]


@lru_cache(maxsize=65_536)
def _prefix(topic: str) -> Prefix | None:
    interest = Interest.parse(topic)
    if interest.negative:
        return None
    if interest.kind is InterestKind.REGEX:
        return ()
    levels = levels_of(interest)
    count = next((at for at, level in enumerate(levels) if not isinstance(level, Literal)), len(levels))
    return tuple(map(str, levels[:count]))
