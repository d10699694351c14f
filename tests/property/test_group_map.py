"""A subscriber that joins the groups of the map misses no message of its topics."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.topics import GroupMap, Interest, InterestTable
from penstock.topics.groups import MapDocument, MapHash, MapRule
from penstock.topics.overlap import covers, may_meet

LEVELS = st.sampled_from(["a", "ab", "b", "12", "7", "100"])
WILD = st.one_of(LEVELS, st.sampled_from(["*", "a*", "1*", "[4..63]", "[..15]", "[96..127]"]))
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map(".".join)
PATTERNS = st.one_of(
    TOPICS,
    st.builds(
        lambda levels, has_rest: ".".join([*levels, ">"] if has_rest else levels),
        st.lists(WILD, min_size=1, max_size=3),
        st.booleans(),
    ),
    st.sampled_from([">", "/a.*/", "/.*[.]b/"]),
)
INTERESTS = st.builds(lambda pattern, negative: f"!{pattern}" if negative else pattern, PATTERNS, st.booleans())


@st.composite
def maps(draw: st.DrawFn) -> GroupMap:
    rules = tuple(
        MapRule(topics=tuple(draw(st.lists(PATTERNS, min_size=1, max_size=3))), group=f"239.1.1.{number % 3 + 1}")
        for number in range(draw(st.integers(0, 4)))
    )
    if draw(st.booleans()):
        return GroupMap(MapDocument(version=1, rules=rules, default="239.1.2.1"))
    spread = MapHash(first="239.1.2.1", count=draw(st.integers(1, 5)), levels=draw(st.integers(0, 3)))
    return GroupMap(MapDocument(version=1, rules=rules, hash=spread))


@given(maps(), st.lists(INTERESTS, max_size=4), st.lists(TOPICS, min_size=1, max_size=20))
def test_no_wanted_topic_flows_on_a_group_that_is_not_joined(
    groups: GroupMap, interests: list[str], topics: list[str]
) -> None:
    table = InterestTable()
    for interest in interests:
        table.add(interest, 0)
    joined = set(groups.groups_for(interests))
    assert joined <= set(groups.groups)
    for topic in topics:
        assert groups.group_of(topic) in groups.groups
        if table.match(topic):
            assert groups.group_of(topic) in joined, (topic, interests)


@given(PATTERNS, PATTERNS, st.lists(TOPICS, min_size=1, max_size=30))
def test_overlap_agrees_with_the_table(one: str, other: str, topics: list[str]) -> None:
    table = InterestTable()
    for subscriber, text in enumerate((one, other)):
        table.add(text, subscriber)
    first, second = Interest.parse(one), Interest.parse(other)
    for topic in topics:
        matching = table.match(topic)
        assert len(matching) < 2 or may_meet(first, second)
        assert not covers(first, second) or matching != [1]
        assert not covers(second, first) or matching != [0]
    assert may_meet(first, second) == may_meet(second, first)
    assert not covers(first, second) or may_meet(first, second)
