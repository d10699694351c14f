"""The multicast group of a topic, and the groups that a subscriber joins."""

from pathlib import Path

import numpy
import pytest

from penstock.base.errors import ConfigurationError, TopicError, UnknownKeyError
from penstock.base.ids import format_group, parse_group
from penstock.middleware import OutgoingBatch, TopicList
from penstock.middleware.core.grouping import batch_by_group
from penstock.topics import GroupMap

PLAIN = """
version = 1
default = "239.255.74.1"
[[rules]]
group = "239.255.80.1"
topics = ["md.us.eq.AAPL.quote", "md.us.eq.A*.trade"]
[[rules]]
group = "239.255.80.2"
topics = ["md.us.>"]
"""

HASHED = """
version = 1
port = 9000
[hash]
first = "239.255.96.1"
count = 8
levels = 4
"""


def groups_for(groups: GroupMap, *interests: str) -> list[str]:
    return [format_group(each).rpartition(".255.")[2] for each in groups.groups_for(interests)]


@pytest.mark.spec("FILT-12")
def test_the_first_rule_that_matches_decides() -> None:
    groups = GroupMap.parse(PLAIN)
    for topic, group in {
        "md.us.eq.AAPL.quote": "239.255.80.1",
        "md.us.eq.AMZN.trade": "239.255.80.1",
        "md.us.eq.AMZN.quote": "239.255.80.2",
        "md.eu.eq.SAP.quote": "239.255.74.1",
        "md.us": "239.255.74.1",
    }.items():
        assert format_group(groups.group_of(topic)) == group
        assert format_group(groups.group_of(topic)) == group  # cached
    assert len(groups.groups) == 3
    assert groups.port == 7401
    with pytest.raises(TopicError):
        groups.group_of("md..us")


@pytest.mark.spec("FILT-12")
def test_a_hash_spreads_topics_by_their_first_levels() -> None:
    groups = GroupMap.parse(HASHED)
    assert groups.port == 9000
    used = set()
    for number in range(200):
        quote, trade = (groups.group_of(f"md.us.eq.S{number}.{kind}") for kind in ("quote", "trade"))
        assert quote == trade
        used.add(quote)
    assert used == set(groups.groups)
    assert groups.group_of("md") in used  # fewer levels than are counted


def test_the_hash_matches_its_documentation() -> None:
    """According to RFC 3720, CRC32C of "123456789" is 0xE3069283."""
    groups = GroupMap.parse('version = 1\n[hash]\nfirst = "239.0.0.0"\ncount = 1000\n')
    assert groups.group_of("123456789") == parse_group("239.0.0.0") + 0xE3069283 % 1000


def test_a_subscriber_joins_exactly_the_groups_that_it_may_need() -> None:
    groups = GroupMap.parse(PLAIN)
    assert groups_for(groups, "md.us.eq.AAPL.quote") == ["80.1"]
    assert groups_for(groups, "md.us.eq.AAPL.trade") == ["80.1"]
    assert groups_for(groups, "md.us.eq.MSFT.>") == ["80.2"]
    assert groups_for(groups, "md.us.eq.A*.trade") == ["80.1"]
    assert groups_for(groups, "md.us.eq.*.trade") == ["80.1", "80.2"]
    assert groups_for(groups, "md.us.eq.*.quote") == ["80.1", "80.2"]
    assert groups_for(groups, "md.us.eq.*.quote", "!md.us.eq.AAPL.quote") == ["80.2"]
    assert groups_for(groups, "md.us.eq.MSFT.quote", "!md.us.eq.MSFT.>") == []
    assert groups_for(groups, "md.eu.>") == ["74.1"]
    assert groups_for(groups, ">") == ["74.1", "80.1", "80.2"]
    assert groups_for(groups, "/md[.]eu.*/") == ["74.1", "80.1", "80.2"]
    assert groups_for(groups, "#halted") == ["74.1", "80.1", "80.2"]
    assert groups_for(groups) == []


def test_a_hash_with_plain_levels_is_joined_in_one_group() -> None:
    groups = GroupMap.parse(HASHED)
    assert groups.groups_for(["md.us.eq.AAPL.>"]) == [groups.group_of("md.us.eq.AAPL.quote")]
    assert groups.groups_for(["md.us.eq.*.quote"]) == list(groups.groups)
    assert groups.groups_for(["md.us.>"]) == list(groups.groups)


@pytest.mark.spec("FILT-12")
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('version = 2\ndefault = "239.1.1.1"', "version"),
        ("version = 1", "default or a hash"),
        ('version = 1\ndefault = "239.1.1.1"\n[hash]\nfirst = "239.2.1.1"\ncount = 2', "default or a hash"),
        ('version = 1\ndefault = "10.1.1.1"', "default: 10.1.1.1 is not a multicast group"),
        ('version = 1\n[hash]\nfirst = "239.255.255.255"\ncount = 2', "hash.count"),
        ('version = 1\n[hash]\nfirst = "239.1.1.1"\ncount = 5000', "hash.count"),
        ('version = 1\ndefault = "239.1.1.1"\n[[rules]]\ngroup = "238.129.1.1"\ntopics = ["a"]', "lower 23 bits"),
        (
            'version = 1\ngroups_max = 1\ndefault = "239.1.1.1"\n[[rules]]\ngroup = "239.1.1.2"\ntopics = ["a"]',
            "2 groups",
        ),
        ('version = 1\ndefault = "239.1.1.1"\n[[rules]]\ngroup = "239.1.1.2"\ntopics = ["a..b"]', r"rules\[0\].topics"),
        (
            'version = 1\ndefault = "239.1.1.1"\n[[rules]]\ngroup = "239.1.1.2"\ntopics = ["!a"]',
            "cannot be used in a group map",
        ),
        (
            'version = 1\ndefault = "239.1.1.1"\n[[rules]]\ngroup = "239.1.1.2"\ntopics = ["#a"]',
            "cannot be used in a group map",
        ),
        ('version = 1\ndefault = "239.1.1.1"\n[[rules]]\ngroup = "239.1.1.2"\ntopics = []', r"rules\[0\].topics"),
        ('version = 1\ndefault = "239.1.1.1"\nport = 0', "port"),
    ],
)
def test_an_unusable_map_is_refused(text: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        GroupMap.parse(text)


def test_an_unknown_key_is_named() -> None:
    with pytest.raises(UnknownKeyError, match="groups_max"):
        GroupMap.parse('version = 1\ndefault = "239.1.1.1"\ngroup_max = 7')


def test_a_saved_map_is_loaded_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "groups.toml"
    for text in (PLAIN, HASHED, PLAIN.replace("md.us.>", r"a\\\"b.é")):
        before = GroupMap.parse(text)
        before.save(path)
        assert GroupMap.load(path).document == before.document
    assert [each.name for each in tmp_path.iterdir()] == ["groups.toml"]
    with pytest.raises(ConfigurationError, match="cannot write the file"):
        before.save(tmp_path / "nowhere" / "groups.toml")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        GroupMap.load(tmp_path / "missing.toml")


def test_a_batch_is_divided_by_group_and_keeps_its_order() -> None:
    groups = GroupMap.parse(PLAIN)
    topics = TopicList(["md.us.eq.AAPL.quote", "md.us.eq.MSFT.quote", "md.eu.eq.SAP.quote"])
    which = numpy.array([0, 1, 2, 1, 0, 1])
    batch = OutgoingBatch(topics, which, numpy.arange(6, dtype="<u8"))
    cut = {format_group(group): chosen for group, chosen in batch_by_group(batch, groups, 0)}
    numbers = {group: (chosen.rows["payload_offset"] // 8).tolist() for group, chosen in cut.items()}
    assert numbers == {"239.255.80.1": [0, 4], "239.255.80.2": [1, 3, 5], "239.255.74.1": [2]}
    assert [(group, len(chosen)) for group, chosen in batch_by_group(batch, None, 7)] == [(7, 6)]
