"""Wants, each with the sequence after which it is complete; and which of them take in another, found by how topics
begin instead of by asking each of them: there may be thousands, and another with every subscriber that comes."""

from collections.abc import Iterator, Mapping, MutableMapping
from functools import lru_cache

from penstock.topics.interest import Interest, InterestKind, Literal
from penstock.topics.overlap import covers as topic_covers
from penstock.topics.overlap import levels_of
from penstock.tree.core.control import Want

Beginning = tuple[str, ...]
"""The levels of a topic before the first that is not literal."""


@lru_cache(maxsize=65_536)
def covers(wide: Want, narrow: Want) -> bool:
    """Whether every message that `narrow` wants is wanted by `wide`; on the safe side: not, where it cannot be told."""
    if wide == narrow:
        return True
    if wide.where not in ("", narrow.where):
        return False
    outer = [Interest.parse(each) for each in wide.topics]
    inner = [Interest.parse(each) for each in narrow.topics]
    denied = {each.subject for each in inner if each.negative}
    if any(each.negative and each.subject not in denied for each in outer):
        return False
    taken = [each for each in outer if not each.negative]
    return all(
        each.negative or any(each == one or topic_covers(one, each) for one in taken) for each in inner
    )  # fmt: skip


class Joined(MutableMapping[Want, int]):
    def __init__(self, after: Mapping[Want, int] | None = None) -> None:
        self._after: dict[Want, int] = {}
        self._by_beginning: dict[Beginning, dict[Want, None]] = {}
        self.update(after or {})

    def __getitem__(self, want: Want) -> int:
        return self._after[want]

    def __setitem__(self, want: Want, after: int) -> None:
        if want not in self._after:
            for beginning in _beginnings(want):
                self._by_beginning.setdefault(beginning, {})[want] = None
        self._after[want] = after

    def __delitem__(self, want: Want) -> None:
        del self._after[want]
        for beginning in set(_beginnings(want)):
            del self._by_beginning[beginning][want]
            if not self._by_beginning[beginning]:
                del self._by_beginning[beginning]

    def __iter__(self) -> Iterator[Want]:
        return iter(self._after)

    def __len__(self) -> int:
        return len(self._after)

    def covering(self, narrow: Want) -> Iterator[Want]:
        """Those that take it in; itself, too, if it is one of them."""
        for wide in self._candidates(narrow):
            if covers(wide, narrow):
                yield wide

    def _candidates(self, narrow: Want) -> Iterator[Want]:
        """What takes a topic in begins as it does, or with less."""
        begun = _beginnings(narrow)
        if not begun:
            yield from self._after
            return
        for length in range(len(begun[0]) + 1):
            yield from self._by_beginning.get(begun[0][:length], ())


def _beginnings(want: Want) -> list[Beginning]:
    """Of its topics, but those that it does not want."""
    return [found for found in map(_beginning, want.topics) if found is not None]


@lru_cache(maxsize=65_536)
def _beginning(topic: str) -> Beginning | None:
    interest = Interest.parse(topic)
    if interest.negative:
        return None
    if interest.kind is InterestKind.REGEX:
        return ()
    levels = levels_of(interest)
    count = next((at for at, level in enumerate(levels) if not isinstance(level, Literal)), len(levels))
    return tuple(map(str, levels[:count]))
