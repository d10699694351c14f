"""Books rebuilt from real order flow equal the books of other sources."""

import csv
import gzip
import json
import struct
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.convert.books.state import Answer, ConversionState, Side

LEVELS = 10
NAME = "aapl_20190130_0930_rows00001-05000_REENCODED_{}.itch"


def rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="ascii", newline="") as file:
        return list(csv.DictReader(file))


def price(text: str) -> int:
    """With 8 decimals, exactly."""
    return int(Decimal(text) * 10**8)


# Order by order, from a vendor that supplies both the orders and the ten best levels


def vendor_book(row: dict[str, str]) -> list[list[tuple[int, int, int]]]:
    sides = []
    for side in ("bid", "ask"):
        levels = [[row[f"{side}_{what}_{level:02}"] for what in ("px", "sz", "ct")] for level in range(LEVELS)]
        sides.append([(price(px), int(size), int(count)) for px, size, count in levels if px])
    return sides


@pytest.mark.spec("FEED-9")
def test_orders_of_a_day_give_the_vendors_ten_levels(samples: Path) -> None:
    """R clears the book, A adds, C removes; T and F only report an execution, whose C follows.

    The vendor has a row for each change of the ten best levels; a trade's row has the book after its C.
    """
    orders = rows(samples / "mbo_mbp_csv" / "XNAS_ARL_20250717_mbo_first_rows.csv.gz")
    books = rows(samples / "mbo_mbp_csv" / "XNAS_ARL_20250717_mbp10_first_rows.csv.gz")
    expected = {(row["sequence"], row["action"], row["order_id"]): vendor_book(row) for row in books}
    state = ConversionState()
    arl = state.instrument("ARL", locate=int(orders[0]["instrument_id"]))
    met: Counter[str] = Counter()
    for row, after in zip(orders, [*orders[1:], {"sequence": ""}], strict=True):
        depth = change_book(state, arl, row)
        traded = (row["sequence"], "T", "0") in expected
        if row["action"] in "TF" or (traded and row["action"] == "C"):
            key = (row["sequence"], "T", "0")  # compared when the trade is complete
            if after["sequence"] == row["sequence"]:
                continue
        else:
            key = (row["sequence"], row["action"], row["order_id"])
        if key in expected:
            assert [state.levels(arl, side, LEVELS) for side in Side] == expected.pop(key), row
            met[key[1]] += 1
        else:
            assert depth is not None, row
            assert depth >= LEVELS, f"the vendor has no change for {row}"
    last = int(orders[-1]["sequence"])
    assert all(int(sequence) > last for sequence, _, _ in expected), "a row of the vendor without a match"
    assert met == {"R": 1, "A": 560, "C": 463, "T": 16}


def change_book(state: ConversionState, instrument: int, row: dict[str, str]) -> int | None:
    """The depth of the change."""
    if row["action"] == "R":
        state.clear_book(instrument)
    elif row["action"] == "A":
        side = Side.BID if row["side"] == "B" else Side.ASK
        added = state.add_order(int(row["order_id"]), instrument, side, price(row["price"]), int(row["size"]))
        assert added.answer == Answer.OK
        return added.depth
    elif row["action"] == "C":
        taken = state.cancel_order(int(row["order_id"]), int(row["size"]))
        assert taken.answer == Answer.OK
        return taken.depth
    return None


# ITCH messages of one symbol, from the middle of a session


def itch_messages(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    while data:
        (size,) = struct.unpack_from(">H", data)
        yield data[2 : 2 + size]
        data = data[2 + size :]


def change_itch(state: ConversionState, message: bytes) -> Any:
    """The few message types of the sample, decoded here by hand."""
    kind, reference = message[:1], int.from_bytes(message[11:19], "big")
    if kind in b"AF":
        side, shares, symbol, ticks = struct.unpack_from(">cI8sI", message, 19)
        instrument = state.instrument(symbol.decode().strip(), locate=int.from_bytes(message[1:3], "big"))
        return state.add_order(reference, instrument, Side.BID if side == b"B" else Side.ASK, ticks * 10**4, shares)
    if kind in b"EC":
        changed = state.execute_order(reference, int.from_bytes(message[19:23], "big"))
        if changed.answer == Answer.OK:
            paid = int.from_bytes(message[32:36], "big") * 10**4 if kind == b"C" else changed.price
            trade_id = int.from_bytes(message[23:31], "big")
            assert state.add_trade(changed.instrument, trade_id, paid, changed.shares) == Answer.OK
        return changed
    if kind == b"X":
        return state.cancel_order(reference, int.from_bytes(message[19:23], "big"))
    if kind == b"D":
        return state.delete_order(reference)
    assert kind == b"U"
    new, shares, ticks = struct.unpack_from(">QII", message, 19)
    return state.replace_order(reference, new, shares, ticks * 10**4)


def given_sides(row: dict[str, str]) -> list[dict[int, int]]:
    """Size by price, of the ten levels in the file."""
    return [
        {
            price(row[f"{side}_price_{level}"]): int(float(row[f"{side}_size_{level}"]))
            for level in range(1, LEVELS + 1)
            if row[f"{side}_price_{level}"]
        }
        for side in ("bid", "ask")
    ]


def visible(prices: dict[int, int], at: int, side: int) -> bool:
    """True if a level at this price would be in the file."""
    return min(prices) <= at if side == Side.BID else at <= max(prices)


def sizes(state: ConversionState, at: set[int]) -> dict[tuple[int, int], int]:
    return {
        (side, level.price): level.size
        for side in Side
        for level in (state.levels(0, side, 10_000) if state.instrument_count else [])
        if level.price in at
    }


@pytest.mark.spec("FEED-4")
def test_changes_by_orders_of_the_slice_equal_those_of_the_given_book(samples: Path) -> None:
    """Orders from before the slice are unknown, and counted; every other change matches exactly, to the share."""
    messages = list(itch_messages(samples / "itch" / NAME.format("all")))
    events = rows(samples / "itch" / "aapl_20190130_0930_events_book10_rows00001-05000.csv.gz")
    assert len(messages) == len(events) == 5000
    state = ConversionState()
    unknown = compared = 0
    before: list[dict[int, int]] | None = None
    for message, event in zip(messages, events, strict=True):
        now = given_sides(event)
        at = {price(event[name]) for name in ("price", "old_price") if event[name]}
        held = sizes(state, at)
        changed = change_itch(state, message)
        if changed.answer == Answer.UNKNOWN:
            unknown += 1
        elif before is not None:
            has = sizes(state, at)
            for each in at:
                if all(visible(book[changed.side], each, changed.side) for book in (before, now)):
                    difference = now[changed.side].get(each, 0) - before[changed.side].get(each, 0)
                    key = (changed.side, each)
                    assert has.get(key, 0) - held.get(key, 0) == difference, event
                    compared += 1
        before = now
    assert unknown == facts(samples, "all")["orphan_refs"] == 326
    assert compared == 2611


@pytest.mark.spec("FEED-4")
@pytest.mark.parametrize("part", ["all", "closed"])
def test_books_and_volume_equal_those_of_other_readers(samples: Path, part: str) -> None:
    fact = facts(samples, part)
    state = ConversionState()
    executed = 0
    for count, message in enumerate(itch_messages(samples / "itch" / NAME.format(part)), 1):
        changed = change_itch(state, message)
        if message[:1] in b"EC" and changed.answer == Answer.OK:
            executed += changed.shares
        if str(count) in fact["book_after_n_messages"]:
            book = fact["book_after_n_messages"][str(count)]
            for side, name in ((Side.BID, "bids"), (Side.ASK, "asks")):
                assert [[level.price // 10**4, level.size] for level in state.levels(0, side, 5)] == book[name]
            assert state.order_count == book["open_orders"]
    assert state.statistics("AAPL").volume == executed
    if part == "closed":
        assert executed == fact["executed_shares_E_C"]


def facts(samples: Path, part: str) -> dict[str, Any]:
    """The results of other readers for a file."""
    return json.loads((samples / "facts.json").read_text())["itch"]["files"][f"itch/{NAME.format(part)}"]
