"""Relations of two interests: overlap and coverage.

Both answers are conservative: "may overlap" and "does not cover" if the relation cannot be decided, as with regular
expressions.
"""

from penstock.topics.interest import AnyLevel, Interest, InterestKind, Level, Literal, NumericRange, Prefix, Rest


def may_meet(one: Interest, other: Interest) -> bool:
    """True if some topic may match both, ignoring their signs."""
    if InterestKind.REGEX in (one.kind, other.kind):
        return True
    first, second = levels_of(one), levels_of(other)
    for left, right in zip(first, second, strict=False):
        if isinstance(left, Rest) or isinstance(right, Rest):
            return True
        if not _levels_meet(left, right):
            return False
    return len(first) == len(second)


def covers(outer: Interest, inner: Interest) -> bool:
    """True if every topic that matches `inner` certainly matches `outer`, ignoring their signs."""
    if InterestKind.REGEX in (outer.kind, inner.kind):
        return False
    if InterestKind.TAG in (outer.kind, inner.kind):
        return outer.kind is inner.kind and outer.subject == inner.subject
    wide, narrow = levels_of(outer), levels_of(inner)
    for left, right in zip(wide, narrow, strict=False):
        if isinstance(left, Rest):
            return True
        if isinstance(right, Rest) or not _level_covers(left, right):
            return False
    return len(wide) == len(narrow)


def levels_of(interest: Interest) -> tuple[Level, ...]:
    if interest.kind is InterestKind.TOPIC:
        return tuple(Literal(level) for level in interest.subject.split("."))
    return interest.levels


def _levels_meet(one: Level, other: Level) -> bool:
    if _level_covers(one, other) or _level_covers(other, one):
        return True
    if isinstance(one, NumericRange) and isinstance(other, NumericRange):
        return one.low <= other.high and other.low <= one.high
    pair = {type(one): one, type(other): other}
    prefix = pair.get(Prefix)
    return NumericRange in pair and isinstance(prefix, Prefix) and _is_number(prefix.text)


def _level_covers(outer: Level, inner: Level) -> bool:
    match outer, inner:
        case AnyLevel(), _:
            return True
        case Literal(), Literal():
            return outer.text == inner.text
        case Prefix(), Literal() | Prefix():
            return inner.text.startswith(outer.text)
        case NumericRange(), Literal():
            return _is_number(inner.text) and outer.low <= int(inner.text) <= outer.high
        case NumericRange(), NumericRange():
            return outer.low <= inner.low and inner.high <= outer.high
        case _:
            return False


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20
