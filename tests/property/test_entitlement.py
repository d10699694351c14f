"""The grants of a token never exceed the policy, and include every requested topic within the policy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security import Entitlement, Grant
from penstock.security.core.policy import granted, is_covered
from penstock.topics import InterestTable

LEVELS = st.sampled_from(["a", "ab", "b", "1", "12", "*", "a*", "1*", "[1..5]", "[3..20]"])
PATTERNS = st.builds(
    lambda levels, is_open: ".".join([*levels, ">"] if is_open else levels),
    st.lists(LEVELS, min_size=1, max_size=3),
    st.booleans(),
)
GRANTS = st.lists(
    st.builds(
        lambda sign, pattern, delay_s: Grant(sign + pattern, "receive", 0 if sign else delay_s),
        st.sampled_from(["", "", "", "!"]),
        PATTERNS,
        st.sampled_from([0, 60, 900]),
    ),
    max_size=6,
)
WORDS = st.sampled_from(["a", "ab", "abc", "b", "1", "3", "12", "30"])
TOPICS = st.lists(st.lists(WORDS, min_size=1, max_size=4).map(".".join), min_size=10, max_size=40)


@pytest.mark.spec("ADM-2")
@given(GRANTS, st.lists(PATTERNS, min_size=1, max_size=3), TOPICS)
def test_a_token_is_the_policy_narrowed_to_what_was_wanted(
    grants: list[Grant], wanted: list[str], topics: list[str]
) -> None:
    policy, token = Entitlement(grants), Entitlement(granted(grants, wanted, "receive"))
    asked = InterestTable()
    for pattern in wanted:
        asked.add(pattern, 0)
    for topic in topics:
        may, gets = policy.receive_delay_s(topic), token.receive_delay_s(topic)
        if gets is not None:
            assert may is not None
            assert gets >= may
        if asked.match(topic):
            assert gets == may


@pytest.mark.spec("ADM-7")
@given(GRANTS, st.lists(PATTERNS, min_size=1, max_size=2), TOPICS)
def test_who_gets_a_feeds_key_may_see_every_topic_of_it(
    grants: list[Grant], feed: list[str], topics: list[str]
) -> None:
    if not is_covered(grants, feed, "receive"):
        return
    policy, published = Entitlement(grants), InterestTable()
    for pattern in feed:
        published.add(pattern, 0)
    assert all(policy.receive_delay_s(topic) == 0 for topic in topics if published.match(topic))
