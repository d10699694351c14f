"""Filters and differences against a reference oracle that checks every notification."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.notifications import NS, SlowWatch
from penstock.engine.client._fields import FieldTable
from penstock.engine.client.filters import NotificationFilter
from penstock.model import MessageModel
from unit.records_kit import QUOTE, quotes

SLOTS = 3
TYPES = MessageModel.parse(
    """
id = 900
name = "types"
version = 1
"""
    + "".join(
        f'[[field]]\nname = "{name}_{kind}"\ntype = "{kind}"\noptional = {optional}\n'
        for kind in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64")
        for name, optional in (("must", "false"), ("may", "true"))
    )
    + '[[field]]\nname = "text"\ntype = "text"\nsize = 5\n'
)

prices = st.none() | st.integers(-300, 300).map(lambda cents: cents / 100)
writes = st.fixed_dictionaries(
    {},
    optional={
        "bid_price": prices,
        "ask_price": prices,
        "bid_size": st.integers(-5, 5),
        "symbol": st.sampled_from("AB"),
    },
)
names = st.sampled_from(["bid_price", "ask_price", "bid_size", "symbol", "venue"])
limits = st.sampled_from([0.0, 0.01, 0.07, 1.0, "0%", "2.5%", "50%"])
rules = st.builds(
    NotificationFilter,
    fields=st.lists(names, max_size=2).map(tuple),
    moved=st.dictionaries(st.sampled_from(["bid_price", "ask_price", "bid_size"]), limits, max_size=2),
    per_second=st.sampled_from([0.0, 1.0, 4.0]),
    at_least_every=st.sampled_from([0.0, 1.0, 3.0]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, SLOTS - 1), writes),
        st.tuples(st.just("unnoticed"), st.integers(0, SLOTS - 1), writes),
        st.tuples(st.just("pass"), st.integers(0, 2 * NS)),
        st.tuples(st.just("rule"), rules),
        st.tuples(st.just("session"), st.integers(0, 4 * NS), st.integers(0, 4 * NS)),
        st.tuples(st.just("drain")),
    ),
    max_size=40,
)


@pytest.mark.spec("ADPT-6")
@given(rules, steps)
def test_what_is_told_is_what_the_oracle_tells(rule: NotificationFilter, script: list[tuple[Any, ...]]) -> None:
    slow = SlowWatch()
    now_ns = 0
    with quotes(SLOTS) as made:
        slow.changed = set(range(SLOTS))
        slow.rule = rule
        made.watch.configure(rule)
        for what, *arguments in [*script, ("drain",)]:
            if what in ("write", "unnoticed"):
                slot, values = arguments
                made.write(slot, **values)
                slow.records[slot] = made.current[slot]
                slow.changed.add(slot)
                assert made.watch.notice(slot) is None if what == "write" else made.watch.look() >= 1
            elif what == "pass":
                now_ns += arguments[0]
            elif what == "rule":
                slow.rule = arguments[0]
                made.watch.configure(slow.rule)
            elif what == "session":
                slow.session = (now_ns + arguments[0] - NS, now_ns + arguments[1])
                made.watch.set_session(*slow.session)
            else:
                told = made.drain(now_ns, now_ns)
                assert len(told) == len(set(told))
                assert set(told) == slow.drain(now_ns, now_ns)
                deadline_ns = made.watch.next_deadline_ns(now_ns, now_ns)
                assert deadline_ns is None or deadline_ns > now_ns


@given(st.data())
def test_nothing_is_due_before_the_deadline(data: st.DataObject) -> None:
    """A caller that waits for notices, and until the deadline, misses nothing."""
    rule = data.draw(rules)
    now_ns = 0
    with quotes(SLOTS) as made:
        made.watch.configure(rule)
        for slot in range(SLOTS):
            now_ns += data.draw(st.integers(0, NS))
            made.update(slot, **data.draw(writes))
            made.drain(now_ns)
            made.update(slot, **data.draw(writes))
            made.drain(now_ns)
        deadline_ns = made.watch.next_deadline_ns(now_ns, 0)
        just_before = now_ns + 10 * NS if deadline_ns is None else deadline_ns - 1
        assert made.drain(just_before) == []


@pytest.mark.spec("ADPT-7")
@given(st.binary(min_size=TYPES.record_size, max_size=TYPES.record_size), st.data())
def test_the_fields_that_differ_are_those_whose_bytes_differ(before: bytes, data: st.DataObject) -> None:
    after = bytearray(before)
    for at in data.draw(st.lists(st.integers(0, TYPES.record_size - 1), max_size=4)):
        after[at] ^= data.draw(st.integers(0, 255))
    expected = [each.name for each in TYPES.fields if before[each.offset : each.end] != after[each.offset : each.end]]
    assert list(FieldTable(TYPES).changed(before, after)) == expected


@pytest.mark.spec("ADPT-6")
@given(st.data())
def test_every_type_moves_as_its_values_do(data: st.DataObject) -> None:
    from oracles.notifications import exact, has_moved

    field = data.draw(st.sampled_from([each for each in TYPES.fields if each.type != "text"]))
    if field.storage[0] == "f":
        values: st.SearchStrategy[Any] = st.integers(-(2**20), 2**20).map(lambda number: number / 8)
    else:
        low, high = max(field.bounds[0], -(2**50)), min(field.bounds[1], 2**50)
        values = st.integers(low, high) | st.integers(low, min(high, low + 5)) | st.integers(max(low, high - 5), high)
    if field.optional:
        values |= st.none()
    before, after = TYPES.new(), TYPES.new()
    setattr(before, field.name, data.draw(values))
    setattr(after, field.name, data.draw(values))
    limit = data.draw(st.integers(0, 2**20).map(lambda number: number / 4))
    is_share = data.draw(st.booleans())
    expected = has_moved(exact(before, field.name), exact(after, field.name), f"{limit}%" if is_share else limit)
    assert FieldTable(TYPES).has_moved(field.name, limit, is_share, before, after) == expected


def test_quotes_are_of_the_types_that_filters_know() -> None:
    assert {each.type for each in QUOTE.fields} >= {"price", "quantity", "text", "flags", "timestamp"}
