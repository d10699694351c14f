"""A real session of a venue with fractional trades: trades and quotes of BTCUSDT compared with published facts."""

import gzip
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.convert import Converter, ConverterTable, SourceBatch, TableChoice

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
FILE = DATA / "crypto_binance" / "spot_btcusdt_20240808.jsonl.gz"

pytestmark = pytest.mark.skipif(not FILE.exists(), reason="needs the real data samples in ../shared/data")

CHOICE = TableChoice(name="csv-ticks", venue="BINA", prefix="md.crypto", quantity_decimals=8)


def updates() -> Iterator[tuple[str, dict[str, Any]]]:
    with gzip.open(FILE, "rt") as lines:
        for line in lines:
            update = json.loads(line.split(" ", 1)[1])
            if "stream" in update:
                yield update["stream"].partition("@")[2], update["data"]


def ticks() -> Iterator[str]:
    """The recorded JSON as lines that the table csv-ticks reads; prices and quantities keep their digits."""
    for stream, data in updates():
        if stream == "trade":
            yield f"trade,{data['E'] * 1_000_000},BTCUSDT,{data['p']},{data['q']},{data['t']}"
        elif stream == "bookTicker":
            yield f"quote,{1_723_161_600_000_000_000},BTCUSDT,{data['b']},{data['B']},{data['a']},{data['A']}"


def exact(scaled: int | None) -> Decimal:
    assert scaled is not None
    return Decimal(scaled).scaleb(-8)


@pytest.mark.spec("DAY-9")
def test_every_trade_and_quote_keeps_its_digits_and_the_day_is_correct() -> None:
    told = json.loads((DATA / "facts.json").read_text())["tabular"]["files"][
        "crypto_binance/spot_btcusdt_20240808.jsonl.gz"
    ]
    converter = Converter(ConverterTable.find(CHOICE).compile(), stream_id=1)
    models = {output.model.id: output.model for output in converter.plan.outputs}
    lines = [line.encode() for line in ticks()]
    messages: dict[str, list[Any]] = {}
    for _, _, number, record in converter.convert(SourceBatch.from_messages(lines, 1)):
        messages.setdefault(models[number].name, []).append(models[number].view(bytes(record)))
    trades, quotes, days = messages["trade_8"], messages["quote_8"], messages["day_statistics_8"]
    source = [data for stream, data in updates() if stream == "trade"]
    assert len(trades) == told["trades"] == 9_757
    assert [exact(each.scaled("quantity")) for each in trades] == [Decimal(each["q"]) for each in source]
    assert [exact(each.scaled("price")) for each in trades] == [Decimal(each["p"]) for each in source]
    last = days[-1]
    assert exact(last.scaled("volume")) == Decimal(told["volume"])
    assert [exact(last.scaled(name)) for name in ("open", "high", "low", "last")] == [
        Decimal(each) for each in told["ohlc"]
    ]
    turnover = sum(Decimal(each["p"]) * Decimal(each["q"]) for each in source)
    assert Decimal(last.scaled("turnover")).scaleb(-4) == turnover.quantize(Decimal("0.0001"), rounding="ROUND_DOWN")
    names = ("bid_price", "bid_size", "ask_price", "ask_size")
    assert [exact(quotes[-1].scaled(name)) for name in names] == [Decimal(each) for each in told["last_bookTicker"]]
    assert converter.counters.by_cause("source_messages_malformed") == {}
