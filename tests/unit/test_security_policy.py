"""Access rights: patterns, the policy document, and the grants that follow from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ConfigurationError, NotEntitledError, TopicError
from penstock.security import Entitlement, Grant, Policy
from penstock.security.core.patterns import covers, intersection, parse_pattern
from penstock.security.core.policy import granted, is_covered
from penstock.security.core.proof import SecretVerifier
from penstock.topics import Interest, InterestTable

SECRET = SecretVerifier.make(b"0123456789abcdef", bytes(16)).text
KEY = "ed25519:" + "A" * 43

DOCUMENT = f"""
[groups]
desk = ["alice", "bob"]

[clients.alice]
secret = "{SECRET}"
[clients.bob]
key = "{KEY}"
roles = ["administrator"]
expires = 2027-01-31T00:00:00Z
[clients.carol]
secret = "{SECRET}"

[[rule]]
who = ["@desk"]
receive = ["md.us.eq.>", "!md.us.eq.ZZ*.>"]
send = ["derived.desk.>"]

[[rule]]
who = ["*"]
receive = ["md.>"]
delay_minutes = 15
"""


@pytest.mark.spec("ADM-2")
def test_rules_for_individuals_groups_and_everybody() -> None:
    policy = Policy.parse(DOCUMENT)
    assert policy.grants("alice") == [
        Grant("md.us.eq.>", "receive"),
        Grant("!md.us.eq.ZZ*.>", "receive"),
        Grant("derived.desk.>", "send"),
        Grant("md.>", "receive", 900),
    ]
    assert policy.grants("carol") == [Grant("md.>", "receive", 900)]
    assert policy.grants("nobody") == []
    assert policy.clients["bob"].roles == {"administrator"}
    assert policy.clients["bob"].expires_ns == 1_801_353_600 * NS_PER_SECOND


@pytest.mark.spec("ADM-2")
@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ('["@desk"]', '["@desc"]', "rule[0].who[0]", "no group 'desc'"),
        ('["@desk"]', '["desk"]', "rule[0].who[0]", "@desk"),
        ('["@desk"]', '["mallory"]', "rule[0].who[0]", "no client 'mallory'"),
        ('["@desk"]', "[]", "rule[0].who", "length >= 1"),
        ('"md.us.eq.>", ', '"md.>.eq", ', "rule[0].receive[0]", "before other levels"),
        ('"md.us.eq.>", ', '"/regex/", ', "rule[0].receive[0]", "not a topic pattern"),
        ("delay_minutes = 15", "delay_minutes = -1", "rule[1].delay_minutes", ">= 0"),
        ("delay_minutes = 15", "delay_hours = 1", "", "delay_hours.*did you mean"),
        ('receive = ["md.>"]\ndelay_minutes = 15', "", "rule[1]", "grants nothing"),
        ('receive = ["md.>"]\ndelay', 'send = ["x"]\ndelay', "rule[1].delay_minutes", "has a delay for sent messages"),
        ('["alice", "bob"]', '["alice", "bert"]', "groups.desk[1]", "no client 'bert'"),
        (f'secret = "{SECRET}"\n[clients.bob]', "[clients.bob]", "clients.alice", "exactly one"),
        (SECRET, "hunter2", "clients.alice.secret", "not a verifier"),
        (SECRET, SECRET.replace(":16384:", ":16383:"), "clients.alice.secret", "power of two"),
        (SECRET, SECRET.replace(":16384:", ":8192:"), "clients.alice.secret", "the minimum is 131072"),
        (KEY, KEY + "A", "clients.bob.key", "33|base64"),
        ("00:00:00Z", "00:00:00", "clients.bob.expires", "time zone"),
        ('["administrator"]', '["root"]', "clients.bob.roles[0]", "not one of: adapter"),
        ("clients.carol", 'clients."carol jones"', "clients.carol jones", "is not a valid name"),
        ("[groups]", "[groups", "policy", "TOML"),
    ],
)
def test_errors_are_refused_with_key_and_reason(old: str, new: str, where: str, what: str) -> None:
    assert old in DOCUMENT
    with pytest.raises(ConfigurationError, match=what) as caught:
        Policy.parse(DOCUMENT.replace(old, new, 1))
    assert where in caught.value.where
    assert "hunter2" not in str(caught.value)


def test_a_grant_is_no_wider_than_the_request() -> None:
    grants = Policy.parse(DOCUMENT).grants("alice")
    assert granted(grants, ["md.us.eq.AAPL.>", "!md.us.eq.AAPL.book"], "receive") == [
        Grant("md.us.eq.AAPL.>", "receive"),
        Grant("md.us.eq.AAPL.>", "receive", 900),
    ]
    assert granted(grants, ["md.us.eq.*.quote"], "receive")[-1] == Grant("!md.us.eq.ZZ*.>", "receive")
    assert granted(grants, ["md.us.eq.ZZT.quote"], "receive") == []
    assert granted(grants, ["fx.>"], "receive") == []
    assert granted(grants, ["/md[.].*/"], "receive")[0] == Grant("md.us.eq.>", "receive")
    assert granted(grants, [">"], "send") == [Grant("derived.desk.>", "send")]


def test_a_feed_is_covered_only_as_a_whole_live_and_without_a_denial() -> None:
    live = [Grant("md.us.>", "receive")]
    assert is_covered(live, ["md.us.eq.>", "md.us.opt.*"], "receive")
    assert not is_covered(live, ["md.us.eq.>", "md.>"], "receive")
    assert not is_covered([Grant("md.us.>", "receive", 900)], ["md.us.eq.>"], "receive")
    assert not is_covered([*live, Grant("!md.us.eq.ZZ.>", "receive")], ["md.us.eq.>"], "receive")
    assert is_covered([*live, Grant("!md.us.opt.>", "receive")], ["md.us.eq.>"], "receive")


@pytest.mark.spec("ADM-2")
def test_entitlement_per_topic() -> None:
    entitlement = Entitlement(Policy.parse(DOCUMENT).grants("alice"))
    assert entitlement.delays_s == [0, 900]
    assert entitlement.receive_delay_s("md.us.eq.AAPL.quote") == 0
    assert entitlement.receive_delay_s("md.eu.SAP.quote") == 900
    # a denial takes precedence over the delayed grant, too
    assert entitlement.receive_delay_s("md.us.eq.ZZT.quote") is None
    assert entitlement.receive_delay_s("fx.EURUSD") is None
    assert entitlement.receive_delay_s("fx.EURUSD") is None  # cached
    assert entitlement.may_send("derived.desk.vwap")
    with pytest.raises(NotEntitledError, match="is not allowed"):
        entitlement.check_send("md.us.eq.AAPL.quote")
    nobody = Entitlement([])
    assert nobody.receive_delay_s("a") is None
    assert not nobody.may_send("a")


def test_many_topics_at_once_get_the_same_answers() -> None:
    import numpy

    entitlement = Entitlement(Policy.parse(DOCUMENT).grants("alice"))
    topics = ["md.us.eq.AAPL.quote", "md.eu.SAP.quote", "md.us.eq.ZZT.quote", "fx", "md.us.eq.IBM.trade"]
    data = "".join(topics).encode()
    sizes = numpy.array([len(each) for each in topics], dtype=numpy.uint16)
    offsets = (numpy.cumsum(sizes) - sizes).astype(numpy.uint32)
    assert entitlement.live_mask(data, offsets, sizes).tolist() == [
        entitlement.receive_delay_s(each) == 0 for each in topics
    ]
    delayed = Entitlement([Grant(">", "receive", 60)])
    assert not delayed.live_mask(data, offsets, sizes).any()


LEVELS = st.sampled_from(["a", "ab", "b", "1", "12", "*", "a*", "1*", "[1..5]", "[3..20]"])
PATTERNS = st.builds(
    lambda levels, is_open: ".".join([*levels, ">"] if is_open else levels),
    st.lists(LEVELS, min_size=1, max_size=3),
    st.booleans(),
)
WORDS = st.sampled_from(["a", "ab", "abc", "b", "1", "3", "12", "30", "01"])
TOPICS = st.lists(st.lists(WORDS, min_size=1, max_size=4).map(".".join), min_size=20, max_size=60)


@given(PATTERNS, PATTERNS, TOPICS)
def test_patterns_relate_like_the_topics_that_they_match(one: str, other: str, topics: list[str]) -> None:
    """Against the interest table, which matches topic by topic."""
    common = intersection(parse_pattern(one), parse_pattern(other))
    is_covering = covers(parse_pattern(one), parse_pattern(other))
    table = InterestTable()
    for number, text in enumerate([one, other] + ([common] if common else [])):
        table.add(text, number)
    for topic in topics:
        found = table.match(topic)
        if common is None:
            assert not {0, 1} <= set(found)
        elif {0, 1} <= set(found):
            assert 2 in found
        elif 2 in found:
            assert 0 in found  # never wider than the grant
        if is_covering and 1 in found:
            assert 0 in found


def test_patterns_without_levels_are_not_compared() -> None:
    with pytest.raises(TopicError):
        parse_pattern("#tag")
    assert intersection(parse_pattern("a.>"), Interest.parse("#halted")) == "a.>"
    assert covers(parse_pattern(">"), Interest.parse("/a/"))
    assert not covers(parse_pattern("a.>"), Interest.parse("/a/"))
