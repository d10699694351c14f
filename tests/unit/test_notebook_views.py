"""Rows and points of live widgets."""

import pytest

from penstock.base.errors import ModelError
from penstock.model import Message
from penstock.models import Quote, Trade
from penstock.notebook.views import FIELDS_SHOWN, NewestRows, RecentPoints


def quote(topic: str, seq: int, **values: float | str) -> Message:
    message = Quote(**values)  # type: ignore[arg-type]
    message.topic, message.seq = topic, seq
    return message


def test_a_table_has_the_newest_message_of_each_topic() -> None:
    view = NewestRows(["bid_price", "symbol"], 10)
    for message in (quote("b", 1, bid_price=1.5), quote("a", 2, symbol="<b>\x1b"), quote("b", 3, bid_price=2.5)):
        view.take(message)
    assert view.columns == ["topic", "seq", "bid_price", "symbol"]
    assert view.rows == [["a", "2", "", "<b>\N{REPLACEMENT CHARACTER}"], ["b", "3", "2.5", ""]]
    view.take(Trade(symbol="T"))
    assert view.rows[0] == ["", "", "", "T"]  # a model without the field
    assert view.note == ""


def test_topics_beyond_the_bound_are_counted() -> None:
    view = NewestRows([], 3)
    for number in range(100):
        view.take(quote(f"t.{number % 5}", number))
    assert len(view.columns) == 2 + FIELDS_SHOWN
    assert [row[:2] for row in view.rows] == [["t.0", "95"], ["t.1", "96"], ["t.2", "97"]]
    assert view.note == "2 more topics"
    for number in range(100):
        view.take(quote(f"u.{number}", number))
    assert view.note == "at least 3 more topics"


def test_a_chart_has_the_last_points_of_the_first_topics() -> None:
    view = RecentPoints("bid_price", 2, 3)
    for tick in range(5):
        for topic in ("a", "b", "c"):
            view.take(quote(topic, tick, bid_price=tick + 0.5))
        view.take(quote("a", tick))  # a missing value changes nothing
        view.take(Trade(price=1))
        view.sample(1_000 + tick)
    points = [(1_002, 2.5), (1_003, 3.5), (1_004, 4.5)]
    assert view.series == [{"name": "a", "points": points}, {"name": "b", "points": points}]
    with pytest.raises(ModelError, match="a chart of 'symbol', which is a text"):
        RecentPoints("symbol", 1, 1).take(quote("a", 1, symbol="x"))
