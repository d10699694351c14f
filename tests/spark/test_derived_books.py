"""Books from order-by-order rows equal the converter's and a vendor's books for any division of the rows."""

import csv
import gzip
import random
from collections import Counter
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from interop import test_real_books as real
from penstock.spark.pipeline.derive import Step, table_frame
from penstock.spark.pipeline.derive.blocks import EVENT_NAMES
from penstock.spark.pipeline.derive.books import Books
from spark.derive_kit import books, cut, generated, of_file, run

QUOTE = ("stream", "seq", "event_time", "symbol", "venue", "bid_price", "bid_size", "ask_price", "ask_size")


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pa.Table]:
    path = tmp_path_factory.mktemp("derive") / "day.itch"
    return of_file(generated(path, seed=11, symbols=20, messages=20_000))


def without_number(rows: list[dict[str, Any]], names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Rows by source message: a quote has a number of its own, after that of the event."""
    return sorted(tuple(row[name] for name in ("source_seq", *names) if name != "seq") for row in rows)


@pytest.mark.spec("PIPE-5")
def test_the_top_of_the_book_equals_the_converters_quotes(day: dict[str, pa.Table]) -> None:
    made = books([day["book_event"]])
    assert without_number(made["top_of_book"], QUOTE) == without_number(day["quote"].to_pylist(), QUOTE)
    best = [row for row in made["depth"] if row["level"] == 0]
    assert [row["seq"] for row in best] == [row["seq"] for row in made["top_of_book"]]
    for row, top in zip(best, made["top_of_book"], strict=True):
        for side in ("bid", "ask"):
            levels = row[f"{side}s"]
            assert len(levels) <= 10
            first = levels[0] if levels else {"price": None, "size": 0, "orders": 0}
            assert first == {what: top[f"{side}_{what}"] for what in ("price", "size", "orders")}


@pytest.mark.spec("PIPE-5")
def test_the_books_do_not_depend_on_the_steps(day: dict[str, pa.Table]) -> None:
    chance = random.Random(3)
    whole = books([day["book_event"]])
    last = day["book_event"]["seq"][-1].as_py()
    for _ in range(4):
        steps = cut(day, [chance.randrange(last) for _ in range(chance.randrange(1, 9))])
        assert books([step["book_event"] for step in steps], buckets=chance.randrange(1, 5)) == whole
    shuffled = day["book_event"].take(chance.sample(range(len(day["book_event"])), len(day["book_event"])))
    assert books([shuffled]) == whole, "the order of the rows in a table does not matter"


def event(seq: int, **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(EVENT_NAMES)
    row |= {"stream": 1, "term": 0, "origin": 0, "seq": seq, "source_seq": seq, "event_time": seq, "symbol": "A"}
    row |= {"venue": "X", "order_id": 1, "quantity": 0, "flags": 1}
    return row | {name: Decimal(value) if name == "price" else value for name, value in values.items()}


def events(*rows: dict[str, Any]) -> pa.Table:
    whole = {name: pa.int64() for name in EVENT_NAMES} | {"price": pa.decimal128(18, 8)}
    whole |= {name: pa.string() for name in ("symbol", "venue", "action", "side")}
    return pa.Table.from_pylist(list(rows), pa.schema(list(whole.items())))


def test_actions_and_events_of_several_messages() -> None:
    table = events(
        event(1, action="add", side="buy", price=10, quantity=5, flags=0),
        event(2, order_id=2, action="add", side="sell", price=11, quantity=4),
        event(3, order_id=9, action="delete"),
        event(4, order_id=3, action="add", side="buy", price=12, quantity=1, flags=5),
        event(5, action="modify", quantity=7),
        event(6, order_id=2, new_order_id=4, action="replace", price=13, quantity=2),
        event(7, order_id=4, action="execute", quantity=1, flags=0),
        event(8, action="cancel", quantity=7, flags=0),
        event(9, symbol="B", order_id=1, action="add", side="sell", price=1, quantity=1),
        event(10, action="clear"),
        event(11, symbol="B", origin=8, order_id=5, action="add", side="buy", price=2, quantity=1),
    )
    for steps in ([table], [table.slice(0, 1), table.slice(1, 6), table.slice(7, 1), table.slice(8)]):
        top = books(steps)["top_of_book"]
        found = [(row["seq"], row["bid_price"], row["bid_size"], row["ask_price"], row["ask_size"]) for row in top]
        assert found == [
            (2, 10, 5, 11, 4),  # both orders of the event at once
            (5, 10, 7, 11, 4),  # no effect: 3 has an unknown order, and 4 a hidden one
            (6, 10, 7, 13, 2),
            (9, None, 0, 1, 1),
            (10, None, 0, None, 0),
            (11, 2, 1, None, 0),  # a new session of the source: the order of B is removed
        ]


@pytest.mark.spec("PIPE-5")
def test_price_levels_make_books(samples: Path) -> None:
    """A feed with whole levels has no orders: the books are built from the levels, in one step or in many."""
    path = samples / "pcap_iex" / "iex_deep10_20231002_first3000.pcap.gz"
    deep = of_file(path, table="iex-deep", day=None, models=("book_event", "quote"))
    assert len(deep["quote"]) > 100
    made = books([deep["book_event"]])
    assert without_number(made["top_of_book"], QUOTE) == without_number(deep["quote"].to_pylist(), QUOTE)
    assert max(len(row["bids"]) for row in made["depth"]) > 1
    chance = random.Random(4)
    numbers = [chance.randrange(deep["book_event"]["seq"][-1].as_py()) for _ in range(5)]
    assert books([step["book_event"] for step in cut(deep, numbers)]) == made


def test_a_level_is_set_deleted_and_cleared() -> None:
    level = {"order_id": 0, "action": "modify", "side": "buy"}
    table = events(
        event(1, **level, price=10, quantity=5),
        event(2, **level, price=11, quantity=4, flags=0),
        event(3, **{**level, "side": "sell"}, price=12, quantity=1),
        event(4, **{**level, "action": "delete"}, price=11, quantity=0),
        event(5, **{**level, "action": "delete"}, price=9, quantity=0),
        event(6, **{**level, "action": "execute"}, price=10, quantity=1),
        event(7, order_id=5, action="add", side="buy", price=10, quantity=2),
        event(8, order_id=0, action="clear"),
    )
    for steps in ([table], [table.slice(0, 2), table.slice(2, 3), table.slice(5)]):
        made = books(steps)
        found = [(row["seq"], row["bid_price"], row["bid_size"], row["ask_price"]) for row in made["top_of_book"]]
        assert found == [(1, 10, 5, None), (3, 11, 4, 12), (4, 10, 5, 12), (7, 10, 7, 12), (8, None, 0, None)]


# Real books


def vendor_rows(samples: Path, name: str) -> list[dict[str, str]]:
    with gzip.open(samples / "mbo_mbp_csv" / f"XNAS_ARL_20250717_{name}_first_rows.csv.gz", "rt", newline="") as file:
        return list(csv.DictReader(file))


def of_vendor(number: int, row: dict[str, str], is_last: bool) -> dict[str, Any]:
    action = {"R": "clear", "A": "add", "C": "cancel"}[row["action"]]
    side = {"B": "buy", "A": "sell", "N": None}[row["side"]]
    price = row["price"] or None
    quantity = int(row["size"] or 0)
    return event(
        number, action=action, side=side, quantity=quantity, order_id=int(row["order_id"] or 0), symbol="ARL",
        source_seq=int(row["sequence"]), flags=int(is_last), **({"price": price} if price else {}),
    )  # fmt: skip


def vendor_levels(row: dict[str, str], side: str) -> list[dict[str, Any]]:
    levels = [[row[f"{side}_{what}_{level:02}"] for what in ("px", "sz", "ct")] for level in range(10)]
    return [{"price": Decimal(px), "size": int(size), "orders": int(count)} for px, size, count in levels if px]


@pytest.mark.spec("PIPE-5")
def test_a_day_in_spark_has_the_vendors_ten_levels(spark: Any, samples: Path, tmp_path: Path) -> None:
    """After every add and cancel row. The rows of a trade are one event: the vendor has one row for it."""
    orders = [row for row in vendor_rows(samples, "mbo") if row["action"] in "RAC"]
    traded = {row["sequence"] for row in vendor_rows(samples, "mbp10") if row["action"] == "T"}
    following = [*(row["sequence"] for row in orders[1:]), ""]
    rows = [
        of_vendor(number, row, not (row["action"] == "C" and row["sequence"] in traded and row["sequence"] == after))
        for number, (row, after) in enumerate(zip(orders, following, strict=True), 1)
    ]
    found = {row["seq"]: row for row in run(spark, Books(), [{"book_event": events(*rows)}])["depth"]}
    by_number = {(row["sequence"], row["action"], row["order_id"]): row for row in vendor_rows(samples, "mbp10")}
    met: Counter[str] = Counter()
    now: dict[str, Any] = {}
    for number, row in enumerate(orders, 1):
        now = found.get(number, now)  # no row: no change within the ten levels
        expected = by_number.get((row["sequence"], row["action"], row["order_id"]))
        if expected is None:
            continue
        assert now["bids"] == vendor_levels(expected, "bid"), row
        assert now["asks"] == vendor_levels(expected, "ask"), row
        met[row["action"]] += 1
    assert met == {"R": 1, "A": 560, "C": 463}


@pytest.mark.spec("PIPE-5")
def test_changes_of_a_real_slice_equal_those_of_the_given_book(samples: Path) -> None:
    """Orders from before the slice are unknown; every other change matches exactly, to the share."""
    slice_ = of_file(samples / "itch" / real.NAME.format("all"), day=date(2019, 1, 30))
    given = real.rows(samples / "itch" / "aapl_20190130_0930_events_book10_rows00001-05000.csv.gz")
    sides = {row["source_seq"]: row["side"] for row in slice_["book_event"].to_pylist()}
    assert len(given) - len(sides) == 326
    made = {row["source_seq"]: row for row in books([slice_["book_event"]], levels=10_000)["depth"]}
    held: dict[str, Any] = {"bids": [], "asks": []}
    before = real.given_sides(given[0])
    compared = 0
    for number, row in enumerate(given, 1):
        now = real.given_sides(row)
        if number in sides and number > 1:
            side = 0 if sides[number] == "buy" else 1
            was, has = (sizes(each, side) for each in (held, made[number]))
            for at in {real.price(row[name]) for name in ("price", "old_price") if row[name]}:
                if all(real.visible(book[side], at, side) for book in (before, now)):
                    assert has[at] - was[at] == now[side].get(at, 0) - before[side].get(at, 0), row
                    compared += 1
        held, before = made.get(number, held), now
    assert compared == 2611


def sizes(row: dict[str, Any], side: int) -> Counter[int]:
    return Counter({int(level["price"] * 10**8): level["size"] for level in row[("bids", "asks")[side]]})


@pytest.mark.spec("PIPE-5")
def test_spark_reads_rows_and_files_alike(spark: Any, day: dict[str, pa.Table], tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    whole = books([day["book_event"]])
    last = day["book_event"]["seq"][-1].as_py()
    steps = run(spark, Books(), cut(day, [last // 3, last // 2]))
    assert {name: sorted(rows, key=repr) for name, rows in whole.items()} == steps
    place = tmp_path / "date=2024-01-02" / "stream=1"
    place.mkdir(parents=True)
    pq.write_table(day["book_event"].drop_columns(["stream"]), place / "part.parquet", row_group_size=7_000)
    step = Step(
        new={"book_event": spark.createDataFrame(day["book_event"].slice(0, 0))},
        before={},
        is_final=True,
        files={"book_event": [str(place / "part.parquet")]},
    )
    (output,) = Books().step(step)
    read = [row.asDict(recursive=True) for row in table_frame(output, "top_of_book").collect()]
    assert sorted(read, key=repr) == sorted(whole["top_of_book"], key=repr)
