"""Topics: dot-separated levels, such as md.us.eq.AAPL.quote."""

import re
import unicodedata

from penstock.base.errors import TopicError
from penstock.base.limits import TOPIC_DEPTH_MAX, TOPIC_SIZE_MAX

RESERVED = "*>!#/[]"
"""Characters with a meaning in interests, which topics cannot contain."""

# Nearly all topics are ASCII; one expression accepts them without checking each character.
_PLAIN = re.compile(
    rf"[^\x00-\x20\x7f-\U0010ffff.{re.escape(RESERVED)}]+(?:\.[^\x00-\x20\x7f-\U0010ffff.{re.escape(RESERVED)}]+)*"
)


def check_topic(text: str) -> bytes:
    """Return the topic's bytes in UTF-8, or raise a TopicError with the mistake and its place."""
    return check_levels(text, what="topic")


def check_levels(text: str, *, what: str) -> bytes:
    """Check text against the grammar of topics and return it in UTF-8; `what` names the text in errors."""
    levels = text.split(".")
    if _PLAIN.fullmatch(text) is None:
        for number, level in enumerate(levels, start=1):
            check_level(level, where=f"{what} {shown(text)}, level {number}")
    data = text.encode()
    check_extent(len(data), len(levels), where=f"{what} {shown(text)}")
    return data


def check_level(level: str, *, where: str) -> None:
    """Refuse an empty level, and invalid characters."""
    if not level:
        raise TopicError("the level is empty", where=where, hint="separate levels by single dots: md.us.eq")
    for character in level:
        if character in RESERVED:
            raise TopicError(
                f"{character!r} is reserved", where=where, hint=f"a level cannot contain any of {' '.join(RESERVED)}"
            )
        if character.isspace() or unicodedata.category(character) in ("Cc", "Cs"):
            raise TopicError(
                f"{character!r} is not allowed",
                where=where,
                hint="a level cannot contain white space, control characters or lone surrogates",
            )


def check_extent(size: int, depth: int, *, where: str) -> None:
    """Refuse a topic or pattern that is too long or too deep."""
    if size > TOPIC_SIZE_MAX:
        raise TopicError(
            f"the topic has {size} bytes", where=where, hint=f"the limit is {TOPIC_SIZE_MAX} bytes in UTF-8"
        )
    if depth > TOPIC_DEPTH_MAX:
        raise TopicError(f"the topic has {depth} levels", where=where, hint=f"the limit is {TOPIC_DEPTH_MAX} levels")


def shown(text: str) -> str:
    """Return the text as quoted in errors; hostile input stays readable."""
    return repr(text if len(text) <= 80 else text[:77] + "...")
