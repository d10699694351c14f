"""Classes by rules, against a slow evaluation of the same rules."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.classes import CLASSES, Rule, class_of
from penstock.base.errors import ConfigurationError, TopicError
from penstock.engine.core.classes import ADAPTIVE, CRITICAL, METERED, Classifier, ClassMap, nearest
from penstock.engine.core.kernel._classify import ValueTest
from penstock.model import MessageModel, shipped

MODELS = [shipped(name) for name in ("quote", "trade", "status", "bar")]
SYMBOLS = ["A", "AA", "AAPL", "IBM", "MSFT", ""]
TOPICS = ["md.us.eq.AAPL.quote", "md.us.eq.IBM.quote", "md.eu.eq.SAP.trade", "x"]
CONSUMERS = [("screen-1", "10.1.0.7"), ("algo", "10.2.0.9"), ("algo", "")]


def compare(name: str, test):
    return lambda message: getattr(message, name) is not None and test(getattr(message, name))


CONDITIONS = [
    ("bid_size > 100", frozenset({"bid_size"}), compare("bid_size", lambda value: value > 100)),
    ("bid_size between 10 and 200", frozenset({"bid_size"}), compare("bid_size", lambda value: 10 <= value <= 200)),
    ("symbol = 'IBM'", frozenset({"symbol"}), compare("symbol", lambda value: value == "IBM")),
    ("symbol like 'AA%'", frozenset({"symbol"}), compare("symbol", lambda value: value.startswith("AA"))),
    (
        "symbol = 'A' or price > 5 and venue <> 'XNAS'",
        frozenset({"symbol", "price", "venue"}),
        lambda message: (
            message.symbol == "A" or (message.price is not None and message.price > 5 and message.venue != "XNAS")
        ),
    ),
]

some = st.lists
rules = st.builds(
    Rule,
    cls=st.sampled_from(CLASSES),
    topics=some(st.sampled_from(["md.us.>", "md.*.eq.*.quote", "x", "md.us.eq.AA*.quote"]), max_size=2).map(tuple),
    models=some(st.sampled_from(["quote", "trade", "bar", "other"]), max_size=2).map(tuple),
    where=st.none() | st.sampled_from(CONDITIONS),
    expressions=some(
        st.sampled_from(
            [("symbol", "A+"), ("symbol", "[A-M].*"), ("venue", "X.*"), ("state", "t.*"), ("bid_size", "1")]
        ),
        max_size=2,
        unique_by=lambda pair: pair[0],
    ).map(tuple),
    consumers=some(st.sampled_from(["screen-*", "10.2.*", "algo"]), max_size=1).map(tuple),
)


@st.composite
def messages(draw: st.DrawFn, model: MessageModel):
    message = model.new()
    for name, values in {
        "symbol": SYMBOLS,
        "venue": ["XNAS", "XETR", ""],
        "bid_size": [0, 10, 100, 101, None],
        "price": [1, 5, 6, None],
        "state": list(model.fields_by_name["state"].values) if "state" in model.fields_by_name else [],
    }.items():
        field = model.fields_by_name.get(name)
        if field is not None and values:
            value = draw(st.sampled_from(values))
            if value is not None or field.optional:
                setattr(message, name, value)
    return message


def class_map(rules: list[Rule], default: str) -> ClassMap:
    return ClassMap.parse("\n".join([f'default = "{default}"', *(rule.render() for rule in rules)]))


@pytest.mark.spec("MDE-1")
@settings(max_examples=200, deadline=None)
@given(
    node_rules=st.lists(rules, max_size=4),
    own_rules=st.lists(rules, max_size=2),
    default=st.sampled_from(CLASSES),
    is_relieved=st.booleans(),
    data=st.data(),
)
def test_rules_decide_as_the_slow_evaluation_does(
    node_rules: list[Rule], own_rules: list[Rule], default: str, is_relieved: bool, data: st.DataObject
) -> None:
    classifier = Classifier(class_map(node_rules, default))
    for topic in TOPICS:
        consumer = data.draw(st.sampled_from(CONSUMERS))
        model = data.draw(st.sampled_from(MODELS))
        profile = classifier.profile(*consumer, overrides=class_map(own_rules, "critical") if own_rules else None)
        program = classifier.program(profile, topic, model, model.version, is_relieved=is_relieved)
        for _ in range(3):
            message = data.draw(messages(model))
            expected = class_of([*own_rules, *node_rules], default, topic, message, consumer, is_relieved)
            assert program(message) == expected
            assert program.static_class in (0, expected)


@pytest.mark.spec("MDE-1")
def test_a_node_may_have_one_static_class() -> None:
    classifier = Classifier(ClassMap(default="metered"))
    for model in MODELS:
        assert classifier.program(classifier.profile("a"), "x", model, 1).static_class == METERED


@pytest.mark.spec("MDE-1")
@pytest.mark.parametrize("name", ["trade", "book_event", "status"])
def test_what_never_conflates_is_never_adaptive(name: str) -> None:
    model = shipped(name)
    for default in ("critical", "adaptive"):
        classifier = Classifier(ClassMap(default=default))
        program = classifier.program(classifier.profile("a"), "x", model, 1, is_relieved=True)
        assert program.static_class == CRITICAL


@pytest.mark.spec("MDE-4")
def test_a_class_that_is_not_served_is_replaced_by_the_nearest() -> None:
    edge, mux = frozenset({CRITICAL, METERED}), frozenset({CRITICAL, ADAPTIVE})
    assert nearest(ADAPTIVE, edge, is_conflatable=True) == METERED
    assert nearest(METERED, mux, is_conflatable=True) == ADAPTIVE
    assert nearest(METERED, mux, is_conflatable=False) == CRITICAL
    assert nearest(CRITICAL, frozenset({ADAPTIVE}), is_conflatable=True) == ADAPTIVE
    assert nearest(CRITICAL, frozenset({ADAPTIVE}), is_conflatable=False) == 0
    for cls in (CRITICAL, ADAPTIVE, METERED):
        assert nearest(cls, frozenset({CRITICAL, ADAPTIVE, METERED}), is_conflatable=True) == cls


def test_expressions_are_asked_once_for_each_value_and_remember_a_bounded_number() -> None:
    model = shipped("quote")
    asked: list[bytes] = []
    test = ValueTest(model.fields_by_name["symbol"], lambda value: asked.append(value) or value.endswith(b"7"))
    records = [bytes(model.new(symbol=f"S{number}")) for number in range(5_000)]
    for record in records[:10] * 3:
        test(record)
    assert asked == [f"S{number}".encode() for number in range(10)]
    for number, record in enumerate(records):
        assert test(record) == (number % 10 == 7)
    assert 0 < len(test) <= 4_096
    assert not test(b"S7"), "a record that is too short for the field"


def test_a_rule_of_fields_that_an_older_version_lacks_does_not_hold() -> None:
    model = MessageModel.parse(
        """
id = 99
name = "grown"
version = 2
field = [{ name = "a", type = "i64" }, { name = "b", type = "text", size = 8, since = 2 }]
"""
    )
    rules = 'default = "critical"\n[[rule]]\nclass = "metered"\nmatches = { b = ".*" }'
    classifier = Classifier(ClassMap.parse(rules))
    profile = classifier.profile("a")
    assert classifier.program(profile, "x", model, 1).static_class == CRITICAL
    assert classifier.program(profile, "x", model, 2)(model.new(b="z")) == METERED


@pytest.mark.parametrize(
    "text",
    ['default = "best"', '[[rule]]\ntopics = ["a"]', '[[rule]]\nclass = "critical"\nmatches = { symbol = "(" }',
     '[[rule]]\nclass = "critical"\nwhere = "nonsense ("', '[[rule]]\nclass = "critical"\nwhere = "no_such_field = 1"',
     '[[rule]]\nclass = "critical"\nmatches = { bid_size = "1" }', '[[rule]]\nclass = "critical"\ntopics = ["#tag"]',
     '[[rule]]\nclass = "critical"\nmodels = ["quote"]\nwhere = "trade_id = 1"'],
)  # fmt: skip
def test_wrong_rules_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        ClassMap.parse(text).check()


def test_wrong_topics_are_refused() -> None:
    with pytest.raises(TopicError):
        ClassMap.parse('[[rule]]\nclass = "critical"\ntopics = ["a..b"]')
