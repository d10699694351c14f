"""What somebody may have of what he asks for: interests, narrowed to the live grants of a token.

An interest that lies within a grant is taken as it is. One that only overlaps grants becomes the patterns of what they
have in common, where these can be written down exactly. The plant's own topics are everybody's.
"""

from collections.abc import Iterable

from penstock.base.errors import NotEntitledError
from penstock.middleware.core.reserved_topics import RESERVED_PREFIX
from penstock.security.core.patterns import covers, intersection, is_comparable, parse_pattern
from penstock.security.core.token import Grant
from penstock.topics import Interest

_OWN = parse_pattern(f"{RESERVED_PREFIX}>")


def narrowed(grants: Iterable[Grant], text: str) -> tuple[str, ...]:
    """The interests in what these grants give of one, all of it live; NotEntitledError when that is nothing."""
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
        raise NotEntitledError(f"nothing of {text!r} is granted live", hint="the token has the grants")
    return tuple(found)


def denials(grants: Iterable[Grant]) -> list[str]:
    """As negative interests: whatever their delay."""
    return [each.pattern for each in grants if each.action == "receive" and each.pattern.startswith("!")]


def entitlement_text(grants: Iterable[Grant]) -> str:
    """Equal for those that may receive the same."""
    return "\n".join(sorted(f"{each.pattern} {each.delay_s}" for each in grants if each.action == "receive"))
