"""Random changes of a conversion state, applied to the compiled state and to its Python reference."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from oracles.conversion import Instrument, OracleState
from penstock.convert.books.state import ConversionState, StateLimits

LIMITS = StateLimits(instruments=64, orders=100_000, levels=10_000, trades=10_000)
INSTRUMENTS = 3
BY_LEVEL = 2  # this instrument gets whole levels, the others get orders

CROWD = [each for each in range(60_000) if each * 0x9E3779B97F4A7C15 % 2**64 >> 54 == 900]
"""References of one shard, so that they collide; the shard is late in an image."""

crowded = st.sampled_from(CROWD[:16])
references = st.one_of(crowded, st.integers(0, 12), st.sampled_from([2**64 - 1, 2**63, 1 << 54]))
prices = st.integers(95, 105).map(lambda price: price * 10**8)
any_prices = st.one_of(prices, st.sampled_from([0, -(10**8), 2**63 - 1]))
shares = st.integers(0, 6)
with_orders = st.integers(0, BY_LEVEL - 1)
sides = st.integers(0, 1)
trade_ids = st.integers(1, 8)
conditions = st.sampled_from([0, 0, 0, 256, 512, 1024, 256 | 1024, 1, 2, 2 | 256, 2 | 512, 2 | 1024])
instruments = st.integers(0, INSTRUMENTS - 1)

order_changes = [
    st.tuples(st.just("add_order"), references, with_orders, sides, any_prices, shares, st.integers(0, 3)),
    st.tuples(st.just("add_order"), crowded, with_orders, sides, prices, st.integers(1, 9), st.just(0)),
    st.tuples(st.just("execute_order"), references, shares),
    st.tuples(st.just("delete_order"), references),
    st.tuples(st.just("replace_order"), references, references, shares, any_prices),
]
other_changes = [
    st.tuples(st.just("set_level"), st.just(BY_LEVEL), sides, any_prices, shares, st.integers(0, 3)),
    st.tuples(st.just("add_trade"), instruments, trade_ids, any_prices, shares, st.integers(0, 100), conditions),
    st.tuples(st.just("break_trade"), instruments, trade_ids),
    st.tuples(st.just("correct_trade"), instruments, trade_ids, any_prices, shares, conditions),
    st.tuples(st.just("set_position"), instruments, st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.just("set_status"), instruments, st.integers(0, 10), st.integers(0, 3), st.sampled_from(["", "T1"])),
]
bulk_changes = [
    st.tuples(st.just("clear_book"), st.one_of(st.none(), instruments)),
    st.tuples(st.just("new_day")),
]
unit_changes = st.one_of(order_changes + other_changes)
changes = st.one_of(order_changes + order_changes + other_changes + other_changes + bulk_changes)

POPULATION: list[tuple[Any, ...]] = [
    *(("add_order", each, at % 2, at // 2 % 2, (98 + at) * 10**8, 4, 0) for at, each in enumerate(CROWD[:10])),
    *(("add_trade", at % INSTRUMENTS, at, (98 + at) * 10**8, 4, at, 0) for at in range(1, 7)),
    *(("set_level", BY_LEVEL, at % 2, (98 + at) * 10**8, 4, 1) for at in range(6)),
]
"""Possible first changes of a state, so that later changes find orders, trades and levels."""


def new_state(seed: int = 0) -> ConversionState:
    state = ConversionState(LIMITS, seed)
    for number in range(INSTRUMENTS):
        state.instrument(f"S{number}", number + 100)
    return state


def new_oracle() -> OracleState:
    return OracleState([Instrument(f"S{number}", number + 100) for number in range(INSTRUMENTS)])


def apply(state: ConversionState, change: tuple[Any, ...]) -> Any:
    """The result of a change according to the oracle."""
    name, *arguments = change
    method: Callable[..., Any] = getattr(state, name)
    answer = method(*arguments)
    return (answer.answer, answer.depth) if name.endswith("_order") else answer


def apply_to_oracle(oracle: OracleState, change: tuple[Any, ...]) -> Any:
    name, *arguments = change
    if name == "set_position":
        oracle.instruments[arguments[0]].position = arguments[1], arguments[2]
    elif name == "set_status":
        owner = oracle.instruments[arguments[0]]
        owner.status, owner.restrictions, owner.reason = arguments[1:]
    else:
        return getattr(oracle, name)(*arguments)
