"""The choice of the effective rate."""

import pytest

from penstock.base.config import parse_toml
from penstock.base.errors import ConfigurationError, LimitError, TopicError
from penstock.engine.core.metering_limits import MeteringLimits, interval_ns, strictest

LIMITS = parse_toml(
    """
per_second_max = 20
models = { quote = 4, book_snapshot = 50 }
items = [
    { topics = "md.us.eq.IBM.>", per_second = 2 },
    { topics = "md.us.>", per_second = 10 },
    { topics = "md.us.eq.FREE.>", per_second = 0 },
]
""",
    MeteringLimits,
    where="limits",
)


@pytest.mark.spec("METR-1")
@pytest.mark.parametrize(
    ("topic", "model", "per_second"),
    [
        ("md.us.eq.IBM.quote", "quote", 2),
        ("md.us.eq.FREE.quote", "quote", 4),
        ("md.us.eq.FREE.book", "book_snapshot", 10),
        ("md.eu.eq.SAP.book", "book_snapshot", 50),
        ("md.eu.eq.SAP.bar", "bar", 0),
    ],
)
def test_the_strictest_of_the_item_and_model_rates_applies(topic: str, model: str, per_second: float) -> None:
    assert LIMITS.of_item(topic, model) == per_second


@pytest.mark.spec("METR-3")
def test_client_rates_are_limited_by_the_maximum() -> None:
    assert LIMITS.granted(4, is_explicit=True) == 4
    assert LIMITS.granted(900, is_explicit=True) == 20
    assert LIMITS.granted(0, is_explicit=False) == 20


@pytest.mark.spec("METR-3")
def test_unmetered_updates_are_granted_only_where_the_maximum_is_0() -> None:
    with pytest.raises(LimitError):
        LIMITS.granted(0, is_explicit=True)
    assert MeteringLimits().granted(0, is_explicit=True) == 0
    assert MeteringLimits().granted(1000, is_explicit=True) == 1000


@pytest.mark.parametrize("per_second", [1e9, 1000.5, 0.5, -1, float("nan"), float("inf")])
def test_invalid_rates_are_refused(per_second: float) -> None:
    with pytest.raises(LimitError):
        MeteringLimits().granted(per_second, is_explicit=True)


@pytest.mark.parametrize(
    "text",
    ["per_second_max = 2000", "per_second_max = 0.5", "models = { quote = 0.1 }", "models = { quote = -1 }",
     'withheld = "forget"', "per_second = 4", 'items = [{ topics = "!md.>", per_second = 1 }]'],
)  # fmt: skip
def test_wrong_limits_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_toml(text, MeteringLimits, where="limits")


def test_wrong_topics_are_refused_at_once() -> None:
    with pytest.raises(TopicError):
        parse_toml('items = [{ topics = "md..>", per_second = 1 }]', MeteringLimits, where="limits")


def test_rates_and_intervals() -> None:
    assert strictest() == strictest(0, 0) == 0
    assert strictest(0, 7, 4, 0) == 4
    assert interval_ns(0) == 0
    assert interval_ns(4) == 250_000_000
