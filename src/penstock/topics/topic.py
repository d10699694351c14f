"""What a topic may be: dot-separated levels, such as md.us.eq.AAPL.quote."""

import re
import unicodedata

from penstock.base.errors import TopicError
from penstock.base.limits import TOPIC_DEPTH_MAX, TOPIC_SIZE_MAX

RESERVED = "*>!#/[]"
"""Characters that mean something in interests, and therefore never appear in topics."""

# Nearly all topics are ASCII; one expression accepts them without a look at each character.
_PLAIN = re.compile(
    rf"[^\x00-\x20\x7f-\U0010ffff.{re.escape(RESERVED)}]+(?:\.[^\x00-\x20\x7f-\U0010ffff.{re.escape(RESERVED)}]+)*"
)


def check_topic(text: str) -> bytes:
    """The topic's bytes in UTF-8, or a TopicError that says what is wrong with it and where."""
    return check_levels(text, what="topic")


def check_levels(text: str, *, what: str) -> bytes:
    """Text that follows the grammar of topics, in UTF-8; `what` says in errors what it was meant to be."""
    levels = text.split(".")
    if _PLAIN.fullmatch(text) is None:
        for number, level in enumerate(levels, start=1):
            check_level(level, where=f"{what} {shown(text)}, level {number}")
    data = text.encode()
    check_extent(len(data), len(levels), where=f"{what} {shown(text)}")
    return data


def check_level(level: str, *, where: str) -> None:
    """Refuse an empty level, and characters that no level may have."""
    if not level:
        raise TopicError("the level is empty", where=where, hint="levels are separated by single dots: md.us.eq")
    for character in level:
        if character in RESERVED:
            raise TopicError(
                f"{character!r} is reserved", where=where, hint=f"a topic has none of {' '.join(RESERVED)} in a level"
            )
        if character.isspace() or unicodedata.category(character) in ("Cc", "Cs"):
            raise TopicError(
                f"{character!r} is not allowed",
                where=where,
                hint="a level has no white space, control characters or lone surrogates",
            )


def check_extent(size: int, depth: int, *, where: str) -> None:
    """Refuse a topic, or a pattern for topics, that is too long or too deep."""
    if size > TOPIC_SIZE_MAX:
        raise TopicError(f"has {size} bytes", where=where, hint=f"at most {TOPIC_SIZE_MAX} bytes in UTF-8")
    if depth > TOPIC_DEPTH_MAX:
        raise TopicError(f"has {depth} levels", where=where, hint=f"at most {TOPIC_DEPTH_MAX} levels")


def shown(text: str) -> str:
    """The text as errors quote it: hostile input stays readable."""
    return repr(text if len(text) <= 80 else text[:77] + "...")
