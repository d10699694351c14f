"""The infostream in sentences: every kind, and whatever a status page of another version has."""

import re
from typing import Any

import msgspec
import pytest

from penstock.tree.core.infostream import Info, Neighbour, Siblings
from penstock.web.core.sentences import LISTED_MAX, in_words, sentence, sentence_of
from unit.test_tree_infostream import SAID

REPR = re.compile(r"[\[\]{}']|None|True|False|Neighbour")


@pytest.mark.parametrize("info", SAID, ids=lambda info: info.kind)
def test_every_kind_is_a_sentence(info: Info) -> None:
    told = sentence(info)
    assert re.match(r"[a-z]+ \S+", told)
    assert not REPR.search(told), told
    assert sentence_of(info.kind, msgspec.to_builtins(info)) == told
    assert sentence_of(info.kind, msgspec.to_builtins(info), "leaf-1") == f"{told} (to leaf-1)"


def test_long_lists_are_cut() -> None:
    many = Siblings(tuple(Neighbour(f"n{number}", "10.0.0.1:7420") for number in range(LISTED_MAX + 1)))
    assert sentence(many).endswith("and 1 more")


@pytest.mark.parametrize(
    ("kind", "values", "told"),
    [
        (
            "unheard",
            {"agent": "a", "is_rooted": True, "empty": "", "path": ["a", "b"]},
            "agent a, rooted yes, path a, b",
        ),
        ("move", {"place": 7}, "place 7"),
        ("path", {}, ""),
        ("siblings", {"agents": [{"name": "x", "place": {"host": "h"}}]}, "agents name x, place host h"),
        ("path", {"a": {"b": {"c": {"d": {"e": 1}}}}}, "a b c d …"),
    ],
)
def test_values_of_other_versions_are_listed_in_words(kind: str, values: dict[str, Any], told: str) -> None:
    assert sentence_of(kind, values) == told
    assert in_words(values) == told
