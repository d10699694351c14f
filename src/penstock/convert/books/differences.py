"""Where two conversion states are not the same, in words: for tests, and for operators of a backup that differs."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy

from penstock.convert.books import _units as units
from penstock.convert.books._state import StateKernel
from penstock.convert.books.rows import (
    INSTRUMENT_DTYPE,
    LEVEL_DTYPE,
    ORDER_DTYPE,
    PRICE_NONE,
    SESSION_DTYPE,
    TRADE_DTYPE,
)

PRICES = {"price", "open", "high", "low", "last", "previous_close", "upper_limit", "lower_limit"}
PRICES |= {"extended_high", "extended_low", "extended_last"}

Rows = dict[str, dict[str, str]]
"""Values by name, by what they are values of."""


class Difference(NamedTuple):
    where: str
    """Such as `AAPL bid 189.50000000`, `order 4711`, `AAPL trade 3`."""
    field: str
    """Empty when one of the two does not have it at all."""
    ours: str
    theirs: str

    def __str__(self) -> str:
        return f"{self.where} {self.field}: {self.ours} here, {self.theirs} there".replace(" :", ":")


def differences(ours: StateKernel, theirs: StateKernel, count_max: int) -> list[Difference]:
    """At most `count_max` values that differ; only units with different digests are looked at."""
    return list(islice(every_difference(ours, theirs), count_max))


def every_difference(ours: StateKernel, theirs: StateKernel) -> Iterator[Difference]:
    digests = ours.unit_digests(), theirs.unit_digests()
    common = min(len(digests[0]), len(digests[1]))
    for number in range(max(len(digests[0]), len(digests[1]))):
        if number >= common or digests[0][number] != digests[1][number]:
            yield from compare(rows_of(ours, number), rows_of(theirs, number))


def compare(ours: Rows, theirs: Rows) -> Iterator[Difference]:
    for where in ours | theirs:
        if where not in ours or where not in theirs:
            yield Difference(where, "", said(ours.get(where)), said(theirs.get(where)))
            continue
        for field, value in ours[where].items():
            if theirs[where][field] != value:
                yield Difference(where, field, value, theirs[where][field])


def said(values: dict[str, str] | None) -> str:
    return "nothing" if values is None else " ".join(f"{name}={value}" for name, value in values.items())


# Units as values


def rows_of(state: StateKernel, number: int) -> Rows:
    if number >= units.UNIT_INSTRUMENTS + 2 * state.instrument_count:
        return {}
    data = state.unit_bytes(number)
    if number == units.UNIT_SESSION:
        return {"session": values(numpy.frombuffer(data, SESSION_DTYPE)[0])}
    if number < units.UNIT_INSTRUMENTS:
        return {
            f"order {row['reference']}": order_values(state, row)
            for row in numpy.sort(numpy.frombuffer(data, ORDER_DTYPE), order="reference")
        }
    name = name_of(state, (number - units.UNIT_INSTRUMENTS) // 2)
    if (number - units.UNIT_INSTRUMENTS) % 2:
        return {f"{name} trade {at}": values(row) for at, row in enumerate(numpy.frombuffer(data, TRADE_DTYPE))}
    return instrument_values(name, data)


def name_of(state: StateKernel, number: int) -> str:
    data = state.unit_bytes(units.UNIT_INSTRUMENTS + 2 * number)
    symbol = bytes(numpy.frombuffer(data[: INSTRUMENT_DTYPE.itemsize], INSTRUMENT_DTYPE)[0]["symbol"])
    return symbol.decode("utf-8", "replace") or f"instrument {number}"


def order_values(state: StateKernel, row: numpy.void) -> dict[str, str]:
    place = int(row["place"])
    found = values(row)
    del found["reference"], found["place"]
    return {"instrument": name_of(state, place // 2), "side": "ask" if place % 2 else "bid"} | found


def instrument_values(name: str, data: bytes) -> Rows:
    head = numpy.frombuffer(data[: INSTRUMENT_DTYPE.itemsize], INSTRUMENT_DTYPE)[0]
    found = values(head)
    for turnover in ("turnover", "extended_turnover"):
        found[turnover] = decimal(int(head[f"{turnover}_low"]) + (int(head[f"{turnover}_high"]) << 64))
        del found[f"{turnover}_low"], found[f"{turnover}_high"]
    del found["bid_count"], found["ask_count"]
    rows = {name: found}
    levels = numpy.frombuffer(data[INSTRUMENT_DTYPE.itemsize :], LEVEL_DTYPE)
    for side, part in (("bid", levels[: head["bid_count"]]), ("ask", levels[head["bid_count"] :])):
        for row in part[::-1]:
            level = values(row)
            rows[f"{name} {side} {level.pop('price')}"] = level
    return rows


def values(row: numpy.void) -> dict[str, str]:
    names = row.dtype.names or ()
    return {name: text(name, row[name].item()) for name in names if name != "reserved"}


def text(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        return repr(value.decode("utf-8", "replace"))
    return decimal(value) if name in PRICES else str(value)


def decimal(price: int) -> str:
    if price == PRICE_NONE:
        return "none"
    whole, rest = divmod(abs(price), 10**8)
    return f"{'-' if price < 0 else ''}{whole}.{rest:08}"
