"""The grammar of interests."""

import pytest

from penstock.base.errors import TopicError
from penstock.topics import Interest, InterestKind
from penstock.topics.interest import INTEREST_SIZE_MAX, AnyLevel, Literal, NumericRange, Prefix, Rest
from penstock.topics.ranges import NUMBER_MAX, blocks


@pytest.mark.parametrize(
    ("text", "kind", "subject"),
    [
        ("md.us", InterestKind.TOPIC, "md.us"),
        ("md.*", InterestKind.PATTERN, "md.*"),
        ("/a.*b/", InterestKind.REGEX, "a.*b"),
        ("/a/b/", InterestKind.REGEX, "a/b"),
        ("#halted", InterestKind.TAG, "halted"),
        ("#desk.fx", InterestKind.TAG, "desk.fx"),
        ("a.[..7]", InterestKind.PATTERN, "a.[0..7]"),
    ],
)
@pytest.mark.parametrize("negative", [False, True])
def test_kinds(text: str, kind: InterestKind, subject: str, negative: bool) -> None:
    interest = Interest.parse("!" + text if negative else text)
    assert (interest.kind, interest.subject, interest.negative) == (kind, subject, negative)
    assert str(interest) == ("!" + text if negative else text)


def test_levels_of_a_pattern() -> None:
    interest = Interest.parse("md.*.AA*.[5..].[..7].[0..1].>")
    assert interest.levels == (
        Literal("md"),
        AnyLevel(),
        Prefix("AA"),
        NumericRange(5, NUMBER_MAX),
        NumericRange(0, 7),
        NumericRange(0, 1),
        Rest(),
    )


def test_equivalent_interests_are_equal() -> None:
    assert Interest.parse("a.[..7]") == Interest.parse("a.[0..7]")
    assert Interest.parse("a.[..7]") != Interest.parse("!a.[..7]")


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("", "level 1", "empty"),
        ("!", "level 1", "empty"),
        ("a..b", "level 2", "empty"),
        ("!!a", "level 1", "'!' is reserved"),
        ("a.>.b", "level 2", "'>' stands before"),
        ("a.*b", "level 2", "'*' must be a whole level or the end of a level"),
        ("*AA.x", "level 1", "'*' must be a whole level or the end of a level"),
        ("a*b.c", "level 1", "'*' must be a whole level or the end of a level"),
        ("a.b**", "level 2", "'*' must be a whole level or the end of a level"),
        ("a.b>", "level 2", "'>' is reserved"),
        ("a.b#", "level 2", "'#' is reserved"),
        ("a.b/", "level 2", "'/' is reserved"),
        ("a.x[1..2]", "level 2", "'[' is reserved"),
        ("a.[1..2]x", "level 2", "is not a range"),
        ("a.[1..2", "level 2", "is not a range"),
        ("a.[]", "level 2", "is not a range"),
        ("a.[..]", "level 2", "is not a range"),
        ("a.[12]", "level 2", "is not a range"),
        ("a.[01..2]", "level 2", "'01'"),
        ("a.[-1..2]", "level 2", "'-1'"),
        ("a.[1...2]", "level 2", "'.2'"),
        ("a.[٣..٤]", "level 2", "is not a valid range limit"),
        ("a.[0..18446744073709551616]", "level 2", "64 bits"),
        ("a.[3..2]", "level 2", "the range is empty"),
        ("a." + "b" * 65 + "*", "level 2", "65 bytes"),
        ("#", "tag", "empty"),
        ("#a b", "tag", "' '"),
        ("#*", "tag", "'*' is reserved"),
        ("/", "interest", "no end"),
        ("//", "interest", "no end"),
        ("/abc", "interest", "no end"),
        ("/\ud800/", "interest", "surrogate"),
        (".".join("*" * 17), "interest", "17 levels"),
        ("*." + "b" * 254, "interest", "256 bytes"),
        ("a" * (INTEREST_SIZE_MAX + 1), "interest", "too long"),
    ],
)
def test_a_refused_interest_is_reported_with_place_and_reason(text: str, place: str, what: str) -> None:
    with pytest.raises(TopicError) as raised:
        Interest.parse(text)
    assert place in raised.value.where
    assert what in raised.value.what
    assert raised.value.hint


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 0), (7, 7), (0, 7), (1, 6), (100, 200), (1, NUMBER_MAX - 1), (0, NUMBER_MAX), (2**63, NUMBER_MAX)],
)
def test_blocks_cover_the_range_without_gap_or_overlap(low: int, high: int) -> None:
    found = blocks(low, high)
    position = low
    for shift, value in found:
        assert value << shift == position
        position += 1 << shift
    assert position == high + 1
    assert len(found) <= 126
