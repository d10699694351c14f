"""Interests: the syntax in which a subscriber selects messages.

md.us.eq.AAPL.quote this topic md.us.eq.*.quote any one level in place of * md.us.> everything below: one level or more,
only at the end md.us.eq.AA*.quote levels that begin with AA book.[100..200].depth levels that are numbers in the range;
[100..] and [..200] are open /md[.](us|eu)[.].*/ topics that match the regular expression (RE2) from end to end #halted
messages with this tag !md.us.eq.ZZ*.> not these: a leading ! before any of the above
"""

import enum
import re
from dataclasses import dataclass, field
from functools import lru_cache

from penstock.base.errors import TopicError
from penstock.base.limits import TOPIC_DEPTH_MAX
from penstock.topics._store import LENGTH_MAX
from penstock.topics.ranges import NUMBER_MAX
from penstock.topics.topic import check_extent, check_level, check_levels, shown

INTEREST_SIZE_MAX = 1024
PARSED_MAX = 32_768
"""Size of the cache of parsed interests, which are usually parsed more than once."""

"""Maximum size of an interest in bytes of UTF-8, which a regular expression may use fully."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")
_RANGE_HINT = "write a range as [100..200], [100..] or [..200], with 64-bit numbers without leading zeros"


class InterestKind(enum.Enum):
    TOPIC = "topic"
    PATTERN = "pattern"
    REGEX = "regex"
    TAG = "tag"


@dataclass(frozen=True, slots=True)
class Literal:
    """A level with exactly this text."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Prefix:
    """A level with this prefix."""

    text: str

    def __str__(self) -> str:
        return f"{self.text}*"


@dataclass(frozen=True, slots=True)
class NumericRange:
    """A level that is a number from `low` to `high`, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"[{self.low}..{self.high}]"


@dataclass(frozen=True, slots=True)
class AnyLevel:
    """Any one level."""

    def __str__(self) -> str:
        return "*"


@dataclass(frozen=True, slots=True)
class Rest:
    """One level or more, up to the end of the topic."""

    def __str__(self) -> str:
        return ">"


Level = Literal | Prefix | NumericRange | AnyLevel | Rest


@dataclass(frozen=True, slots=True)
class Interest:
    """One parsed interest. Interests with equal meaning are equal, whatever their text."""

    text: str = field(compare=False)
    kind: InterestKind
    negative: bool
    subject: str
    """The topic, the tag or the regular expression, without markers; for a pattern, its canonical text."""
    levels: tuple[Level, ...] = ()
    """Levels of a pattern."""

    def __str__(self) -> str:
        return self.text

    @property
    def has_ranges(self) -> bool:
        return any(isinstance(level, NumericRange) for level in self.levels)

    @classmethod
    def parse(cls, text: str) -> "Interest":
        """Parse an interest, or raise a TopicError with the mistake and its place."""
        return _parse(text)


@lru_cache(maxsize=PARSED_MAX)
def _parse(text: str) -> Interest:
    if len(text) > INTEREST_SIZE_MAX or len(text.encode(errors="surrogatepass")) > INTEREST_SIZE_MAX:
        raise TopicError(
            "the interest is too long",
            where=f"interest {shown(text)}",
            hint=f"the limit is {INTEREST_SIZE_MAX} bytes in UTF-8",
        )
    negative = text.startswith("!")
    body = text[1:] if negative else text
    if body.startswith("/"):
        return Interest(text, InterestKind.REGEX, negative, _regex(text, body))
    if body.startswith("#"):
        check_levels(body[1:], what="tag")
        return Interest(text, InterestKind.TAG, negative, body[1:])
    levels = _levels(text, body)
    subject = ".".join(map(str, levels))
    if all(isinstance(level, Literal) for level in levels):
        check_levels(body, what="interest")
        return Interest(text, InterestKind.TOPIC, negative, subject)
    return Interest(text, InterestKind.PATTERN, negative, subject, levels)


def _regex(text: str, body: str) -> str:
    where = f"interest {shown(text)}"
    if len(body) < 3 or not body.endswith("/"):
        raise TopicError("the regular expression has no end or is empty", where=where, hint="write it as /expression/")
    try:
        body.encode()
    except UnicodeEncodeError as error:
        raise TopicError(f"position {error.start} is a lone surrogate", where=where, hint="write UTF-8") from None
    return body[1:-1]


def _levels(text: str, body: str) -> tuple[Level, ...]:
    words = _split(body)
    where = f"interest {shown(text)}"
    if len(words) > TOPIC_DEPTH_MAX:
        raise TopicError(
            f"the pattern has {len(words)} levels", where=where, hint=f"the limit is {TOPIC_DEPTH_MAX} levels"
        )
    levels = tuple(_level(word, f"{where}, level {number}") for number, word in enumerate(words, start=1))
    for number, level in enumerate(levels[:-1], start=1):
        if isinstance(level, Rest):
            raise TopicError(
                "'>' stands before other levels",
                where=f"{where}, level {number}",
                hint="'>' can only be the last level",
            )
    # The fixed part of every matching topic must fit into a topic.
    fixed = [len(level.text.encode()) for level in levels if isinstance(level, Literal | Prefix)]
    check_extent(sum(fixed) + 2 * len(levels) - len(fixed) - 1, len(levels), where=where)
    return levels


def _split(body: str) -> list[str]:
    """Split at dots outside brackets."""
    words = [""]
    is_inside = False
    for piece in re.split(r"([.\[\]])", body):
        if piece == "." and not is_inside:
            words.append("")
            continue
        is_inside = piece == "[" or (is_inside and piece != "]")
        words[-1] += piece
    return words


def _level(word: str, where: str) -> Level:
    if word == "*":
        return AnyLevel()
    if word == ">":
        return Rest()
    if word.startswith("["):
        return _range(word, where)
    if "*" in word[:-1]:
        raise TopicError(
            "'*' must be a whole level or the end of a level",
            where=where,
            hint="for other patterns, use /a regular expression/",
        )
    if word.endswith("*"):
        prefix = word[:-1]
        check_level(prefix, where=where)
        if len(prefix.encode()) > LENGTH_MAX:
            raise TopicError(
                f"the prefix has {len(prefix.encode())} bytes",
                where=where,
                hint=f"the limit is {LENGTH_MAX} bytes in UTF-8",
            )
        return Prefix(prefix)
    check_level(word, where=where)
    return Literal(word)


def _range(word: str, where: str) -> NumericRange:
    low, separator, high = word[1:-1].partition("..")
    if not word.endswith("]") or not separator or not (low or high):
        raise TopicError(f"{shown(word)} is not a range", where=where, hint=_RANGE_HINT)
    ends = []
    for digits, default in ((low, 0), (high, NUMBER_MAX)):
        if digits and _NUMBER.fullmatch(digits) is None:
            raise TopicError(f"{shown(digits)} is not a valid range limit", where=where, hint=_RANGE_HINT)
        ends.append(int(digits) if digits else default)
    if ends[1] > NUMBER_MAX:
        raise TopicError(f"{ends[1]} does not fit into 64 bits", where=where, hint=_RANGE_HINT)
    if ends[0] > ends[1]:
        raise TopicError(f"the range is empty: {ends[0]} is more than {ends[1]}", where=where, hint=_RANGE_HINT)
    return NumericRange(ends[0], ends[1])
