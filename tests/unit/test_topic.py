"""The grammar of topics."""

import pytest

from penstock.base.errors import TopicError
from penstock.topics import check_topic


@pytest.mark.parametrize(
    "text", ["a", "md.us.eq.AAPL.quote", "Börse.München", "a-b_c.0.+", "日本.株", "a" * 255, ".".join("a" * 16)]
)
def test_topics_are_returned_as_utf8(text: str) -> None:
    assert check_topic(text) == text.encode()


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("", "level 1", "empty"),
        ("a..b", "level 2", "empty"),
        (".a", "level 1", "empty"),
        ("a.", "level 2", "empty"),
        ("a.b c", "level 2", "' '"),
        ("a.b\tc", "level 2", r"'\t'"),
        ("a.\x00", "level 2", r"'\x00'"),
        ("a.\x7f", "level 2", r"'\x7f'"),
        ("a.\u2003b", "level 2", "is not allowed"),
        ("a.\x85", "level 2", "is not allowed"),
        ("\ud800", "level 1", "is not allowed"),
        ("md.*", "level 2", "'*' is reserved"),
        ("md.>", "level 2", "'>' is reserved"),
        ("!md", "level 1", "'!' is reserved"),
        ("a#b", "level 1", "'#' is reserved"),
        ("a/b", "level 1", "'/' is reserved"),
        ("a.[1", "level 2", "'[' is reserved"),
        ("a.1]", "level 2", "']' is reserved"),
        ("é" * 128, "topic", "256 bytes"),
        (".".join("a" * 17), "topic", "17 levels"),
    ],
)
def test_a_refused_topic_is_reported_with_place_and_reason(text: str, place: str, what: str) -> None:
    with pytest.raises(TopicError) as raised:
        check_topic(text)
    assert place in raised.value.where
    assert what in raised.value.what
    assert raised.value.hint


def test_a_huge_topic_is_quoted_in_part() -> None:
    with pytest.raises(TopicError) as raised:
        check_topic("x" * 1_000_000)
    assert len(str(raised.value)) < 300
