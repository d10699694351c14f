"""The conversion state: orders and books, trades and statistics, instruments, limits."""

import random

import pytest

from penstock.base.errors import LocalProtocolError
from penstock.convert.books._units import TRADE_NOT_HIGH_LOW, TRADE_NOT_LAST, TRADE_NOT_VOLUME
from penstock.convert.books.state import Answer, Book, ConversionState, Level, Side, StateLimits, Statistics
from unit.conversion_kit import CROWD


@pytest.fixture
def state() -> ConversionState:
    state = ConversionState(StateLimits(instruments=8, orders=100, levels=20, trades=10))
    state.instrument("AAPL", 14)
    return state


def test_orders_build_the_book(state: ConversionState) -> None:
    assert state.add_order(1, 0, Side.BID, 100, 10).depth == 0
    assert state.add_order(2, 0, Side.BID, 99, 5).depth == 1
    assert state.add_order(3, 0, Side.BID, 100, 7).depth == 0
    assert state.add_order(4, 0, Side.ASK, 103, 1).depth == 0
    assert state.add_order(5, 0, Side.ASK, 102, 2).depth == 0
    assert state.book("AAPL") == Book([Level(100, 17, 2), Level(99, 5, 1)], [Level(102, 2, 1), Level(103, 1, 1)])
    assert state.book("AAPL", depth=1) == Book([Level(100, 17, 2)], [Level(102, 2, 1)])


def test_an_execution_reduces_the_order_and_reports_its_values(state: ConversionState) -> None:
    state.add_order(1, 0, Side.ASK, 100, 10, participant=77)
    state.add_order(2, 0, Side.ASK, 101, 10)
    assert state.execute_order(1, 4) == (Answer.OK, 0, Side.ASK, 100, 4, 6, 77, 0)
    assert state.cancel_order(2, 1) == (Answer.OK, 0, Side.ASK, 101, 1, 9, 0, 1)
    assert state.book("AAPL").asks == [Level(100, 6, 1), Level(101, 9, 1)]
    assert state.execute_order(1, 6).remaining == 0
    assert state.order(1) is None
    assert state.book("AAPL").asks == [Level(101, 9, 1)]


def test_executing_more_than_the_order_has_removes_it_and_is_reported(state: ConversionState) -> None:
    state.add_order(1, 0, Side.BID, 100, 10)
    assert state.execute_order(1, 11) == (Answer.SHORT, 0, Side.BID, 100, 10, 0, 0, 0)
    assert state.order_count == 0
    assert state.level_count == 0


def test_a_replacement_keeps_instrument_side_and_participant(state: ConversionState) -> None:
    state.add_order(1, 0, Side.ASK, 100, 10, participant=5)
    state.add_order(2, 0, Side.ASK, 101, 10)
    assert state.replace_order(1, 9, 20, 105) == (Answer.OK, 0, Side.ASK, 105, 20, 20, 5, 0)
    assert state.order(1) is None
    assert state.book("AAPL").asks == [Level(101, 10, 1), Level(105, 20, 1)]
    assert state.replace_order(9, 9, 3, 105).answer == Answer.OK
    assert state.book("AAPL").asks == [Level(101, 10, 1), Level(105, 3, 1)]


def test_an_unknown_a_repeated_or_an_empty_change_has_an_answer_and_changes_nothing(state: ConversionState) -> None:
    state.add_order(1, 0, Side.BID, 100, 10)
    state.add_order(2, 0, Side.BID, 100, 10)
    before = state.digest
    assert state.execute_order(7, 1) == (Answer.UNKNOWN, -1, 0, 0, 0, 0, 0, None)
    assert state.delete_order(7).answer == Answer.UNKNOWN
    assert state.replace_order(7, 8, 1, 1).answer == Answer.UNKNOWN
    assert state.add_order(1, 0, Side.ASK, 5, 5).answer == Answer.DUPLICATE
    assert state.replace_order(1, 2, 5, 5).answer == Answer.DUPLICATE
    assert state.add_order(3, 0, Side.BID, 100, 0).answer == Answer.INVALID
    assert state.add_order(3, 0, Side.BID, -(2**63), 1).answer == Answer.INVALID
    assert state.add_order(3, 0, Side.BID, 100, 2**63).answer == Answer.INVALID
    assert state.execute_order(1, 0).answer == Answer.INVALID
    assert state.break_trade(0, 1) == Answer.UNKNOWN
    assert state.set_level(0, Side.BID, 7, 0) == (Answer.UNKNOWN, None)
    assert state.digest == before


def test_whole_levels_can_be_set(state: ConversionState) -> None:
    assert state.set_level(0, Side.BID, 100, 50) == (Answer.OK, 0)
    assert state.set_level(0, Side.BID, 99, 10, 3) == (Answer.OK, 1)
    assert state.set_level(0, Side.BID, 100, 60) == (Answer.OK, 0)
    assert state.set_level(0, Side.BID, 100, 60) == (Answer.OK, None), "no change"
    assert state.book("AAPL").bids == [Level(100, 60, 0), Level(99, 10, 3)]
    assert state.set_level(0, Side.BID, 100, 0) == (Answer.OK, 0)
    assert state.book("AAPL").bids == [Level(99, 10, 3)]


@pytest.mark.spec("FEED-4")
def test_trades_update_the_days_values(state: ConversionState) -> None:
    assert state.statistics("AAPL") == Statistics(None, None, None, None, None, 0, 0, 0, 0)
    for number, (price, size) in enumerate([(100, 10), (110, 5), (90, 1), (95, 4)]):
        assert state.add_trade(0, number, price, size) == Answer.OK
    assert state.statistics("AAPL") == Statistics(100, 110, 90, 95, None, 4, 20, 2020, 4)


def test_sale_conditions_exclude_a_trade_from_values(state: ConversionState) -> None:
    state.add_trade(0, 1, 50, 1, conditions=TRADE_NOT_LAST)
    state.add_trade(0, 2, 100, 10)
    state.add_trade(0, 3, 900, 1, conditions=TRADE_NOT_HIGH_LOW | TRADE_NOT_VOLUME)
    assert state.statistics("AAPL") == Statistics(100, 100, 50, 900, None, 1, 11, 1050, 2)


@pytest.mark.spec("FEED-9")
@pytest.mark.parametrize("broken", range(4))
def test_a_broken_trade_is_reversed_in_all_values(broken: int) -> None:
    trades = [(100, 10), (110, 5), (90, 1), (95, 4)]
    state, without = ConversionState(), ConversionState()
    for each in (state, without):
        each.instrument("AAPL")
    for number, (price, size) in enumerate(trades):
        state.add_trade(0, number, price, size)
        if number != broken:
            without.add_trade(0, number, price, size)
    assert state.break_trade(0, broken) == Answer.OK
    assert state.statistics("AAPL") == without.statistics("AAPL")
    assert state.break_trade(0, broken) == Answer.UNKNOWN, "broken already"


@pytest.mark.spec("FEED-9")
def test_a_corrected_trade_counts_as_corrected(state: ConversionState) -> None:
    state.add_trade(0, 5, 100, 10)
    state.add_trade(0, 3, 500, 10)
    state.add_trade(0, 9, 101, 10)
    assert state.correct_trade(0, 3, 102, 1) == Answer.OK
    assert state.statistics("AAPL") == Statistics(100, 102, 100, 101, None, 10, 21, 2112, 3)
    assert state.correct_trade(0, 4, 102, 1) == Answer.UNKNOWN


@pytest.mark.spec("FEED-9")
def test_a_bar_covers_a_time_span_also_after_a_break(state: ConversionState) -> None:
    for number in range(6):
        state.add_trade(0, number, 100 + number, 1, event_ns=10 * number)
    assert state.statistics_between(0, 20, 40)[:4] == (102, 103, 102, 103)
    state.break_trade(0, 3)
    assert state.statistics_between(0, 20, 40) == Statistics(102, 102, 102, 102, None, 1, 1, 102, 1)
    assert state.statistics_between(0, 100, 200).trade_count == 0


def test_turnover_does_not_overflow() -> None:
    state = ConversionState()
    state.instrument("BRK.A")
    for number in range(3):
        state.add_trade(0, number, 700_000 * 10**8, 10**12)
    state.add_trade(0, 3, -5, 2**61)
    assert state.statistics("BRK.A").turnover == 3 * 700_000 * 10**8 * 10**12 - 5 * 2**61


@pytest.mark.spec("FEED-9", "DAY-1")
def test_a_new_day_keeps_only_the_symbol_and_the_close(state: ConversionState) -> None:
    state.refer(0, venue="XNAS", round_lot=100, flags=1, upper_limit=5, lower_limit=4, price_decimals=2)
    state.set_position(0, 7, 8)
    state.set_status(0, 4, 1, "LUDP")
    state.add_order(1, 0, Side.BID, 100, 10)
    state.add_trade(0, 1, 100, 10)
    state.new_day()
    assert (state.order_count, state.level_count, state.trade_count) == (0, 0, 0)
    assert state.statistics("AAPL") == Statistics(None, None, None, None, 100, 0, 0, 0, 0)
    reference = state.reference(0)
    assert reference == (0, "AAPL", "XNAS", 0, None, 0, 0, 0, "", None, None, 0, 0, None, None)
    assert state.find_locate(14) == -1
    assert state.instrument("MSFT", 14) == 1, "the key now belongs to another instrument"
    state.new_day()
    assert state.statistics("AAPL").previous_close == 100, "a day without trades keeps the close"


@pytest.mark.spec("DAY-1")
def test_a_feed_that_restarts_within_its_day_keeps_the_previous_close(state: ConversionState) -> None:
    state.add_trade(0, 1, 100, 10)
    state.new_day()
    state.add_trade(0, 1, 103, 10)
    state.new_day(is_same_day=True)
    assert state.statistics("AAPL") == Statistics(None, None, None, None, 100, 0, 0, 0, 0)


def test_a_book_is_cleared_with_its_orders(state: ConversionState) -> None:
    state.instrument("MSFT")
    for reference in range(20):
        state.add_order(reference, reference % 2, Side.BID, 100 + reference // 4, 10)
    state.clear_book(0)
    assert state.book("AAPL") == Book([], [])
    assert state.order_count == 10
    assert sum(level.orders for level in state.book("MSFT").bids) == 10
    state.clear_book()
    assert (state.order_count, state.level_count) == (0, 0)


def test_orders_that_share_a_shard_are_kept_apart() -> None:
    source = random.Random(4)
    state = ConversionState(seed=11)
    state.instrument("AAPL")
    orders: dict[int, int] = {}
    for _ in range(20_000):
        reference = source.choice(CROWD)
        if reference in orders and source.random() < 0.6:
            assert state.delete_order(reference).shares == orders.pop(reference)
        elif reference not in orders:
            orders[reference] = source.randint(1, 9)
            assert state.add_order(reference, 0, Side.BID, 10**8, orders[reference]).answer == Answer.OK
        else:
            assert state.add_order(reference, 0, Side.BID, 10**8, 1).answer == Answer.DUPLICATE
    found = {reference: state.order(reference) for reference in CROWD}
    assert {reference: order.remaining for reference, order in found.items() if order} == orders
    assert state.book("AAPL").bids == [Level(10**8, sum(orders.values()), len(orders))]


def test_instruments_are_found_by_symbol_and_by_key() -> None:
    state = ConversionState()
    assert state.instrument("AAPL", 14) == 0
    assert state.instrument(locate=15) == 1, "a key without a symbol, as after a mid-session start"
    assert state.instrument("MSFT", 15) == 1, "the directory names it"
    assert state.find("MSFT") == 1
    assert state.instrument("AAPL") == 0
    assert state.instrument("AAPL", 16) == 0, "another key on another day"
    assert state.find_locate(14) == -1
    assert state.find_locate(16) == 0
    assert state.instrument("NEW", 15) == 2, "the key of a removed instrument"
    assert state.reference(1).locate is None
    assert state.find("") == -1


def test_limits_refuse_and_count(state: ConversionState) -> None:
    assert [state.instrument(f"S{number}") for number in range(8)] == [1, 2, 3, 4, 5, 6, 7, -1]
    assert [state.add_trade(0, number, 5, 5) for number in range(12)].count(Answer.REFUSED) == 2
    answers = [state.add_order(number, 0, Side.BID, number, 5).answer for number in range(22)]
    assert answers.count(Answer.REFUSED) == 2
    answers = [state.add_order(100 + number, 0, Side.BID, 5, 5).answer for number in range(85)]
    assert answers.count(Answer.REFUSED) == 5
    assert state.refused == (1, 5, 2, 2)
    assert state.order_count == 100
    assert state.level_count == 20


def test_mistakes_of_the_caller_are_refused(state: ConversionState) -> None:
    with pytest.raises(LocalProtocolError, match="unknown instrument 1"):
        state.add_order(1, 1, Side.BID, 1, 1)
    with pytest.raises(LocalProtocolError, match="invalid side 2"):
        state.add_order(1, 0, 2, 1, 1)
    with pytest.raises(LocalProtocolError, match="longer than 16"):
        state.instrument("A" * 17)
    with pytest.raises(LocalProtocolError, match="unknown instrument 'IBM'"):
        state.book("IBM")
