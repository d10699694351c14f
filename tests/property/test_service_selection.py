"""The stream service's selection: each topic is decided once, as the tables of interests and grants decide."""

from typing import TypeAlias

import numpy
from hypothesis import given
from hypothesis import strategies as st

from penstock.feed.core.service.selection import Selector
from penstock.topics import Interest, InterestTable
from unit.service_kit import PublishedStream, unpacked

level = st.sampled_from(["a", "b", "c1", "c2"])
topic = st.lists(level, min_size=1, max_size=3).map(".".join)
pattern = st.one_of(
    topic,
    topic.map(lambda each: f"{each}.>"),
    topic.map(lambda each: "!" + each),
    topic.map(lambda each: each.replace("a", "*")),
    st.just(">"),
)
Step: TypeAlias = tuple[tuple[int, list[str], list[str]], list[str]]
change = st.tuples(st.integers(0, 3), st.lists(pattern, max_size=3), st.lists(pattern, max_size=3))


@given(st.lists(st.tuples(change, st.lists(topic, max_size=8)), min_size=1, max_size=5))
def test_every_subscriber_gets_the_rows_of_its_topics(
    steps: list[Step],
) -> None:
    selector = Selector()
    known: dict[int, tuple[list[str], list[str]]] = {}
    stream = PublishedStream()
    for (number, wanted, granted), topics in steps:
        if wanted or granted:
            selector.set(number, wanted, granted)
            known[number] = wanted, granted
        else:
            selector.remove(number)
            known.pop(number, None)
        if not topics:
            continue
        batch = unpacked([stream.packet(each) for each in topics])
        found = selector.select(batch.data, batch.sourced)
        for each, interests in known.items():
            expected = [index for index, name in enumerate(topics) if all(_matches(some, name) for some in interests)]
            rows = found.get(each, batch.rows[:0])
            assert numpy.array_equal(rows, batch.rows[expected])
        assert set(found) <= set(known)


def _matches(interests: list[str], name: str) -> bool:
    table = InterestTable()
    for each in interests:
        table.add(Interest.parse(each), 0)
    return bool(table.match(name))
