"""Notifications of records: their content and their time."""

import datetime as dt

import pytest

from penstock.base.errors import ConfigurationError
from penstock.engine.client.filters import NotificationFilter, TradingSession, notification_filter
from penstock.model import shipped
from unit.records_kit import QUOTE, quotes

S = 1_000_000_000


def at(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).timestamp()) * S


def test_changed_records_are_notified_once_for_any_number_of_writes() -> None:
    with quotes() as made:
        assert made.drain(0) == []
        for price in range(1, 9):
            made.update(2, bid_price=price)
        made.update(0, bid_price=1)
        told = made.watch.next(0, 0)
        assert told is not None
        assert (told[0], told[1].message.bid_price) == (2, 8.0)
        assert made.drain(0) == [0]
        assert made.drain(0) == []


def test_a_single_field_may_be_named_without_brackets() -> None:
    assert notification_filter("bid_price") == notification_filter(["bid_price"])


@pytest.mark.spec("ADPT-6")
def test_only_if_named_fields_changed() -> None:
    with quotes() as made:
        made.watch.configure(NotificationFilter(fields=("bid_price", "symbol")))
        made.update(0, bid_price=1)
        assert made.drain(0) == [0]
        made.update(0, ask_price=1)
        assert made.drain(1) == []
        assert made.watch.withheld == 1
        made.update(0, symbol="X")
        assert made.drain(2) == [0]


@pytest.mark.spec("ADPT-6")
@pytest.mark.parametrize(("limit", "small", "large"), [(0.07, 10.07, 10.08), ("1%", 10.1, 10.11), ("0", 10, 10.01)])
def test_only_if_a_value_moved_by_more(limit: float | str, small: float, large: float) -> None:
    with quotes() as made:
        made.watch.configure(NotificationFilter(moved={"bid_price": limit}))
        made.update(0, bid_price=10)
        assert made.drain(0) == [0]
        made.update(0, bid_price=small)
        assert made.drain(1) == []
        made.update(0, bid_price=large)
        assert made.drain(2) == [0]


@pytest.mark.spec("ADPT-6")
def test_small_moves_add_up_and_a_vanished_value_has_moved() -> None:
    with quotes() as made:
        made.watch.configure(NotificationFilter(moved={"bid_price": 1, "bid_size": 100}))
        made.update(0, bid_price=10, bid_size=0)
        made.drain(0)
        told = []
        for now_ns, price in enumerate((10.5, 11, 11.5, 12, 12.5)):
            made.update(0, bid_price=price)
            told += made.drain(now_ns)
        assert told == [0]
        made.update(0, bid_price=None)
        assert made.drain(9) == [0]


@pytest.mark.spec("ADPT-6")
def test_the_rate_is_limited_and_the_last_value_is_notified() -> None:
    with quotes() as made:
        made.watch.configure(NotificationFilter(per_second=4))
        made.update(0, bid_price=1)
        made.update(1, bid_price=1)
        assert made.drain(0) == [0, 1]
        made.update(0, bid_price=2)
        assert made.drain(S // 8) == []
        made.update(0, bid_price=3)
        assert made.drain(S // 4 - 1) == []
        assert made.watch.next_deadline_ns(S // 8, 0) == S // 4
        state = made.store.read(0)  # a read between notifications has the newest value
        assert state is not None
        assert state.message.bid_price == 3.0
        assert made.drain(S // 4) == [0]
        assert made.drain(S) == []


@pytest.mark.spec("ADPT-6")
def test_at_least_one_notification_per_interval_with_or_without_a_change() -> None:
    with quotes() as made:
        made.watch.configure(NotificationFilter(fields=("bid_price",), at_least_every=2))
        made.update(3, bid_price=1)
        assert made.drain(0) == [3]
        made.update(3, ask_price=1)
        assert made.drain(S) == []
        assert made.watch.next_deadline_ns(S, 0) == 2 * S
        assert made.drain(2 * S) == [3]
        assert made.drain(3 * S) == []
        assert made.drain(4 * S) == [3]


@pytest.mark.spec("ADPT-6")
def test_no_notifications_outside_of_the_session() -> None:
    with quotes() as made:
        made.watch.configure(NotificationFilter(at_least_every=1))
        made.watch.set_session(10 * S, 20 * S)
        made.update(0, bid_price=1)
        assert made.drain(0, 9 * S) == []
        assert made.watch.next_deadline_ns(0, 9 * S) is None
        made.update(0, bid_price=2)
        assert made.drain(S, 10 * S) == [0]
        assert made.drain(10 * S, 19 * S) == [0]
        made.update(0, bid_price=3)
        assert made.drain(11 * S, 20 * S) == []
        assert made.watch.next_deadline_ns(11 * S, 20 * S) is None


@pytest.mark.spec("ADPT-6")
def test_a_filter_can_be_changed_while_in_use() -> None:
    with quotes() as made:
        made.watch.configure(NotificationFilter(per_second=1))
        made.update(0, bid_price=1)
        assert made.drain(0) == [0]
        made.update(0, bid_price=2)
        assert made.drain(S // 2) == []
        made.watch.configure(NotificationFilter())
        assert made.drain(S // 2) == [0]
        made.watch.configure(NotificationFilter(fields=("ask_price",)))
        made.update(0, bid_price=3)
        assert made.drain(S) == []


def test_a_model_without_the_fields_never_passes() -> None:
    with quotes() as made:
        made.watch.configure(NotificationFilter(fields=("volume",), at_least_every=1))
        made.update(0, bid_price=1)
        assert made.drain(0) == []
        assert not NotificationFilter(moved={"volume": 1}).can_pass(QUOTE)
        assert NotificationFilter(fields=("volume", "bid_price")).can_pass(QUOTE)


@pytest.mark.spec("ADPT-5")
def test_lost_notices_are_recovered_by_a_scan() -> None:
    with quotes() as made:
        made.update(0, bid_price=1)
        made.drain(0)
        made.write(0, bid_price=2)
        made.write(1, bid_price=2)
        assert made.drain(1) == []
        assert made.watch.look() == 2
        assert made.drain(2) == [0, 1]
        assert made.watch.look() == 0


def test_a_removed_record_is_not_notified_and_may_return() -> None:
    with quotes() as made:
        made.watch.configure(NotificationFilter(at_least_every=1))
        made.update(0, bid_price=1)
        made.update(1, bid_price=1)
        assert made.drain(0) == [0, 1]
        made.watch.expel(0)
        made.update(0, bid_price=2)
        assert made.drain(S) == [1]
        assert made.watch.look() == 0
        made.watch.admit(0)
        assert made.drain(S) == [0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"per_second": -1},
        {"at_least_every": 1e9},
        {"per_second": 1, "at_least_every": 0.5},
        {"moved": {"bid_price": "much"}},
        {"moved": {"bid_price": -1}},
        {"moved": {"bid_price": "nan%"}},
        {"session": "9-5"},
        {"session": "09:30-09:30"},
        {"session": "09:30-16:00 Nowhere/City"},
        {"session": TradingSession("09:30", "16:00", days=())},
        {"session": TradingSession("09:30", "25:00")},
    ],
)
def test_invalid_filters_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        notification_filter(**wrong)  # type: ignore[arg-type]


def test_text_fields_cannot_move() -> None:
    with quotes() as made, pytest.raises(ConfigurationError):
        made.watch.configure(NotificationFilter(moved={"symbol": 1}))
    assert not NotificationFilter(moved={"symbol": 1}).can_pass(shipped("filter_account"))


@pytest.mark.spec("ADPT-6")
@pytest.mark.parametrize(
    ("now", "begins", "ends"),
    [
        ("2026-11-16T14:29:59+00:00", "2026-11-16T14:30:00+00:00", "2026-11-16T21:00:00+00:00"),
        ("2026-11-16T20:59:59+00:00", "2026-11-16T14:30:00+00:00", "2026-11-16T21:00:00+00:00"),
        ("2026-11-16T21:00:00+00:00", "2026-11-17T14:30:00+00:00", "2026-11-17T21:00:00+00:00"),
        ("2026-11-14T12:00:00+00:00", "2026-11-16T14:30:00+00:00", "2026-11-16T21:00:00+00:00"),  # over a weekend
        # and daylight saving time
        ("2026-10-30T21:00:00+00:00", "2026-11-02T14:30:00+00:00", "2026-11-02T21:00:00+00:00"),
    ],
)
def test_the_current_or_the_next_session_is_found(now: str, begins: str, ends: str) -> None:
    session = TradingSession.parse("09:30-16:00 America/New_York")
    assert session.window(at(now)) == (at(begins), at(ends))


def test_a_session_over_midnight_belongs_to_its_opening_day() -> None:
    session = TradingSession("18:00", "17:00", "UTC", days=(6,))
    sunday = (at("2026-11-15T18:00:00+00:00"), at("2026-11-16T17:00:00+00:00"))
    assert session.window(at("2026-11-16T16:59:00+00:00")) == sunday
    assert session.window(at("2026-11-16T17:00:00+00:00"))[0] == at("2026-11-22T18:00:00+00:00")
