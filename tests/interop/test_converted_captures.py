"""Real feeds through the shipped tables: the output equals published facts about these feeds."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from penstock.convert import Converter, ConverterTable
from penstock.feed.recorded.files import open_source
from penstock.model import shipped

ITCH_PRICE = 10**4  # from four decimals to eight


@pytest.fixture(scope="module")
def facts(samples: Path) -> dict[str, Any]:
    known: dict[str, Any] = json.loads((samples / "facts.json").read_text())
    return known


def converted_file(samples: Path, table: str, name: str, topic: str = "") -> tuple[Converter, list[tuple[str, bytes]]]:
    """The converter at the end, and the records whose topic has this ending."""
    converter = Converter(ConverterTable.load(table).compile(), 1, trading_date=date(2019, 1, 30))
    kept = []
    with open_source(samples / name) as source:
        for batch in source.batches():
            kept += [
                (each, record) for each, _, _, record in converter.convert(batch) if topic and each.endswith(topic)
            ]
    return converter, kept


def counts_by_type(converter: Converter, table: str) -> dict[str, int]:
    messages = ConverterTable.load(table).format.messages
    found = {}
    for name, count in converter.counters.by_cause("source_messages").items():
        found[(messages[name].key or b"").decode()] = count
    return found


def scaled(quote: list[int | None]) -> list[int | None]:
    """The [bid price, bid size, ask price, ask size] of Penstock's quotes."""
    bid, bid_size, ask, ask_size = quote
    return [
        bid * ITCH_PRICE if bid and bid_size else None,
        bid_size or 0,
        ask * ITCH_PRICE if ask and ask_size else None,
        ask_size or 0,
    ]


def last_quotes(kept: list[tuple[str, bytes]]) -> dict[str, list[int | None]]:
    model = shipped("quote")
    found = {}
    for _, record in kept:
        quote = model.view(record)
        found[quote.symbol] = [quote.scaled("bid_price"), quote.bid_size, quote.scaled("ask_price"), quote.ask_size]
    return found


def test_iex_deep(samples: Path, facts: dict[str, Any]) -> None:
    name = "pcap_iex/iex_deep10_20231002_first3000.pcap.gz"
    known = facts["iex"]["files"][name]
    converter, kept = converted_file(samples, "iex-deep", name, ".quote")
    assert counts_by_type(converter, "iex-deep") == known["by_type"]
    assert converter.counters["source_messages_malformed"] == 0
    wanted = {
        symbol: scaled(quote)
        for symbol, quote in known["final_bbo_from_price_levels_bidpx_bidsz_askpx_asksz_1e4"].items()
    }
    books = {symbol: converter.state.book(symbol, 1) for symbol in wanted}
    assert wanted == {
        symbol: [
            book.bids[0].price if book.bids else None,
            book.bids[0].size if book.bids else 0,
            book.asks[0].price if book.asks else None,
            book.asks[0].size if book.asks else 0,
        ]
        for symbol, book in books.items()
    }
    assert last_quotes(kept).items() <= wanted.items()
    for symbol, day in known["per_symbol_trades"].items():
        statistics = converter.state.statistics(symbol)
        assert statistics.volume + statistics.extended_volume == day["volume"]


def test_iex_tops(samples: Path, facts: dict[str, Any]) -> None:
    name = "pcap_iex/iex_tops16_20170710_testfeed.pcapng.gz"
    known = facts["iex"]["files"][name]
    converter, kept = converted_file(samples, "iex-tops", name, ".quote")
    assert counts_by_type(converter, "iex-tops") == known["by_type"]
    wanted = {symbol: scaled(quote) for symbol, quote in known["last_quote_bidpx_bidsz_askpx_asksz_1e4"].items()}
    assert last_quotes(kept) == wanted
    statistics = [converter.state.day_statistics(number) for number in range(converter.state.instrument_count)]
    rows = [converter.state.trade_rows(number) for number in range(converter.state.instrument_count)]
    assert sum(int(each["size"].sum()) for each in rows) == known["traded_shares"]
    broken = converter.counters.by_cause("source_messages")["trade_break"]
    unknown = converter.counters.by_cause("source_messages_unmatched").get("unknown_trade", 0)
    assert sum(each.trade_count + each.extended_trade_count for each in statistics) == known["trades"] - (
        broken - unknown
    )


@pytest.mark.parametrize(
    "name",
    [
        "itch/aapl_20190130_0930_rows00001-05000_REENCODED_all.itch",
        "itch/aapl_20190130_0930_rows00001-05000_REENCODED_closed.itch",
        "itch/nasdaq_tv50_20230822_open_bytype.itch",
        "itch/nasdaq_tv50_first1000_session_start.itch",
        "itch/synthetic/ritch_ex20101224_ARTIFICIAL.itch",
    ],
)
def test_itch_files(samples: Path, facts: dict[str, Any], name: str) -> None:
    known = facts["itch"]["files"][name]
    converter, _ = converted_file(samples, "itch", name)
    assert counts_by_type(converter, "itch") == known["by_type"]
    assert converter.counters["source_messages_malformed"] == 0
    if "orphan_refs" in known:
        unknown = converter.counters.by_cause("source_messages_unmatched").get("unknown_order", 0)
        assert unknown == known["orphan_refs"]


def test_the_closed_itch_slice_has_the_published_volume(samples: Path, facts: dict[str, Any]) -> None:
    name = "itch/aapl_20190130_0930_rows00001-05000_REENCODED_closed.itch"
    known = facts["itch"]["files"][name]
    converter, _ = converted_file(samples, "itch", name)
    volume = sum(int(each["size"]) for each in converter.state.trade_rows(converter.state.find("AAPL")))
    assert volume == known["executed_shares_E_C"]
    last = max(known["book_after_n_messages"], key=int)
    given = known["book_after_n_messages"][last]
    if int(last) == known["messages"]:
        book = converter.state.book("AAPL", 5)
        assert [[each.price // ITCH_PRICE, each.size] for each in book.bids] == given["bids"]
        assert [[each.price // ITCH_PRICE, each.size] for each in book.asks] == given["asks"]
