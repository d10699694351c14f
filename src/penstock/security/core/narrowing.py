"""Narrows interests to the live grants of a token.

An interest within a grant is used unchanged. An interest that overlaps grants is replaced by the patterns of the
intersections, if these can be expressed exactly. Every client may receive the plant's own topics.
"""

from collections.abc import Iterable

from penstock.base.errors import NotEntitledError
from penstock.middleware.core.reserved_topics import RESERVED_PREFIX
from penstock.security.core.patterns import covers, intersection, is_comparable, parse_pattern
from penstock.security.core.token import Grant
from penstock.topics import Interest

_OWN = parse_pattern(f"{RESERVED_PREFIX}>")


def narrowed(grants: Iterable[Grant], text: str) -> tuple[str, ...]:
    """Return the interests in the granted part of an interest, live topics only. Raise NotEntitledError if nothing
    is granted."""
    interest = Interest.parse(text)
    if interest.negative or (is_comparable(interest) and covers(_OWN, interest)):
        return (text,)
    live = [parse_pattern(each.pattern) for each in grants if each.action == "receive" and each.delay_s == 0]
    granted = [each for each in live if not each.negative]
    if any(covers(each, interest) for each in granted):
        return (text,)
    common = [intersection(each, interest) for each in granted] if is_comparable(interest) else []
    found = dict.fromkeys(each for each in common if each is not None and covers(interest, parse_pattern(each)))
    if not found:
        raise NotEntitledError(
            f"no live grant for any part of {text!r}", hint="the policy needs a rule without a delay"
        )
    return tuple(found)


def denials(grants: Iterable[Grant]) -> list[str]:
    """The negative receive grants as interests, whatever their delay."""
    return [each.pattern for each in grants if each.action == "receive" and each.pattern.startswith("!")]


def entitlement_text(grants: Iterable[Grant]) -> str:
    """A text that is equal for clients with equal receive grants."""
    return "\n".join(sorted(f"{each.pattern} {each.delay_s}" for each in grants if each.action == "receive"))
