"""Relations between topic patterns: intersection, and whether one pattern covers another.

Only topics and patterns made of levels can be compared. Policies therefore have no regular expressions or tags.
"""

import functools
import re

from penstock.base.errors import TopicError
from penstock.topics.interest import AnyLevel, Interest, InterestKind, Level, Literal, NumericRange, Prefix, Rest

_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")


@functools.lru_cache(maxsize=4_096)
def parse_pattern(text: str) -> Interest:
    """Parse an interest made of levels, possibly negative."""
    interest = Interest.parse(text)
    if not is_comparable(interest):
        raise TopicError(f"{text!r} is not a topic pattern", hint="use levels, *, PREFIX*, [low..high] and >")
    return interest


def is_comparable(interest: Interest) -> bool:
    return interest.kind in (InterestKind.TOPIC, InterestKind.PATTERN)


def intersection(grant: Interest, wanted: Interest) -> str | None:
    """Return a pattern for the topics that both match, or None if there are none. Signs are ignored.

    If the intersection of two levels is not a pattern (a prefix and a numeric range), the grant's level is used. A
    regular expression or a tag may match any topic; then the result is the grant's pattern.
    """
    if not is_comparable(wanted):
        return grant.subject
    ours, theirs = _levels(grant), _levels(wanted)
    common: list[Level] = []
    for number in range(max(len(ours), len(theirs))):
        if number >= len(ours) or number >= len(theirs):
            return None
        one, other = ours[number], theirs[number]
        if isinstance(one, Rest) or isinstance(other, Rest):
            common += theirs[number:] if isinstance(one, Rest) else ours[number:]
            break
        met = _meet(one, other)
        if met is None:
            return None
        common.append(met)
    return ".".join(map(str, common))


def overlaps(one: Interest, other: Interest) -> bool:
    return intersection(one, other) is not None


def covers(wide: Interest, narrow: Interest) -> bool:
    """True if `wide` matches every topic that `narrow` matches. Signs are ignored."""
    if not is_comparable(narrow):
        return wide.subject == ">"
    ours, theirs = _levels(wide), _levels(narrow)
    for number, level in enumerate(ours):
        if number >= len(theirs):
            return False
        if isinstance(level, Rest):
            return True
        if not _takes_in(level, theirs[number]):
            return False
    return len(ours) == len(theirs)


def _levels(interest: Interest) -> tuple[Level, ...]:
    if interest.kind is InterestKind.TOPIC:
        return tuple(Literal(word) for word in interest.subject.split("."))
    return interest.levels


def _meet(one: Level, other: Level) -> Level | None:
    if _takes_in(one, other):
        return other
    if _takes_in(other, one):
        return one
    if isinstance(one, NumericRange) and isinstance(other, NumericRange):
        low, high = max(one.low, other.low), min(one.high, other.high)
        return NumericRange(low, high) if low <= high else None
    if {type(one), type(other)} == {NumericRange, Prefix}:
        prefix = one if isinstance(one, Prefix) else other
        return one if _NUMBER.fullmatch(str(prefix)[:-1]) else None
    return None


def _takes_in(wide: Level, narrow: Level) -> bool:
    match wide, narrow:
        case _, Rest():
            return False
        case AnyLevel(), _:
            return True
        case Prefix(), Literal() | Prefix():
            return narrow.text.startswith(wide.text)
        case NumericRange(), NumericRange():
            return wide.low <= narrow.low and narrow.high <= wide.high
        case NumericRange(), Literal():
            return _NUMBER.fullmatch(narrow.text) is not None and wide.low <= int(narrow.text) <= wide.high
    return wide == narrow
