"""The journal of a real adapter process equals the conversion of the same file in slices."""

import random
from decimal import Decimal
from pathlib import Path

import pytest

from feed_slices_kit import Message, converted_slices, messages_of, write_day
from integration.feed_kit import running_feed
from penstock.bench.adapters import AdapterProcess, wait_for
from penstock.capture.core.rows import PacketRows
from penstock.convert import TableChoice
from penstock.feed.adapter_config import AdapterConfig, JournalCaptureConfig, PublishConfig, SourceStreamConfig
from penstock.feed.config import ServiceConfig, SynchroniserConfig
from penstock.model import shipped
from penstock.net.udp import free_channel
from penstock.spark.feedindex import plan_slices
from penstock.spark.feedslices import Conversion
from penstock.spark.journals import JournalPlace
from penstock.wire import decode_origin

STREAM = 2
DAY = "2026-01-30"  # the date of the kit's adapter


def recorded(journal: Path) -> list[Message]:
    """The messages of the stream, in the order of their numbers."""
    place = JournalPlace(str(journal))
    extent = place.measure()
    packets = PacketRows()
    made: dict[int, Message] = {}
    for batch in place.read(extent.first_sequence, extent.next_sequence - 1):
        rows = packets.take(batch)
        is_ours = (rows.origins["stream_id"] == STREAM) & (rows.rows["model_id"] > 0)
        for number, message in zip(
            rows.origins["seq"][is_ours].tolist(), messages_of(rows.select(is_ours)), strict=True
        ):
            made.setdefault(number, message)
    return [made[number] for number in sorted(made)]


def without_term(message: Message) -> Message:
    """Remove the term: which adapter was active, and whether a backup was in sync, is not in the file."""
    topic, origin, model_id, record = message
    told = decode_origin(origin[4:])
    return (
        topic,
        repr((told.stream_id, told.message_index, told.source_sequence, told.message_sequence)).encode(),
        model_id,
        record,
    )


@pytest.mark.spec("PIPE-4")
def test_the_journal_of_an_adapter_has_what_the_slices_give(samples: Path, tmp_path: Path) -> None:
    path = samples / "itch" / "aapl_20190130_0930_rows00001-05000_REENCODED_all.itch"
    replay = SourceStreamConfig(id=STREAM, name="replay", framing="file", url=str(path))
    conversion = Conversion("itch", STREAM, DAY)
    slices = plan_slices(path, conversion=conversion, slice_size=30_000, cache=tmp_path / "cache")
    expected = converted_slices(slices)
    journal = JournalCaptureConfig(path=str(tmp_path / "journal"))
    with running_feed(tmp_path, 1, streams=(replay,), journal=journal) as feed:
        (adapter,) = feed.adapters
        wait_for(
            lambda: adapter.status().streams[1].next_message_sequence == len(expected) + 1,
            "all of the file is published",
        )
        wait_for(lambda: len(recorded(tmp_path / "journal")) == len(expected), "all of it is in the journal")
        live = recorded(tmp_path / "journal")
    assert [without_term(message) for message in live] == [without_term(message) for message in expected]


@pytest.mark.spec("DAY-2")
def test_an_adapter_takes_the_date_of_a_replayed_file_from_its_name(tmp_path: Path) -> None:
    path = tmp_path / "01302019.NASDAQ_ITCH50"
    write_day(path, 1_000)
    expected = converted_slices(plan_slices(path, conversion=Conversion("itch", STREAM, "2019-01-30")))
    config = AdapterConfig(
        name="a-0",
        feed="itch",
        table="itch",
        streams=(SourceStreamConfig(id=STREAM, name="replay", framing="file", url=str(path)),),
        publish=PublishConfig(channel=free_channel()),
        sync=SynchroniserConfig(startup_ms=300),
        service=ServiceConfig(open=True),
        journal=JournalCaptureConfig(path=str(tmp_path / "journal")),
        state_directory=str(tmp_path / "state"),
    )
    with AdapterProcess(config, tmp_path):
        wait_for(lambda: len(recorded(tmp_path / "journal")) == len(expected), "all of the file is in the journal")
        live = recorded(tmp_path / "journal")
    assert [without_term(message) for message in live] == [without_term(message) for message in expected]


def mixed_ticks() -> list[str]:
    """Instruments of a venue that trades fractions beside whole shares: definitions, trades and quotes."""
    time_ns = 1_700_000_000_000_000_000
    decimals = {"BTC-USD": (2, 8), "SHIB-USD": (8, 0), "ETH-BTC": (5, 4), "AAPL": (2, 0)}
    lines = [f"define,{time_ns},{symbol},1,{price},{quantity}" for symbol, (price, quantity) in decimals.items()]
    source = random.Random(5)
    for number in range(800):
        symbol = source.choice(list(decimals))
        price, size = (Decimal(source.randrange(1, 10**7)).scaleb(-each) for each in decimals[symbol])
        size = Decimal("0.00000001") if symbol == "BTC-USD" and number % 3 == 0 else size
        if number % 2:
            lines.append(f"trade,{time_ns + number},{symbol},{price:f},{size:f},{number}")
        else:
            lines.append(f"quote,{time_ns + number},{symbol},{price:f},{size:f},{price:f},{size:f}")
    lines[-1] = f"trade,{time_ns + 900},AAPL,190.255,0.5,900"  # finer than the instrument
    return lines


@pytest.mark.spec("DAY-9", "PIPE-4")
def test_fractions_and_whole_shares_are_the_same_live_and_in_slices(tmp_path: Path) -> None:
    path = tmp_path / "ticks.csv"
    lines = mixed_ticks()
    path.write_text("\n".join(lines) + "\n")
    conversion = Conversion("csv-ticks", STREAM, DAY, quantity_decimals=8)
    slices = plan_slices(path, conversion=conversion, slice_size=5_000, cache=tmp_path / "cache")
    assert len(slices) > 1
    expected = converted_slices(slices)
    config = AdapterConfig(
        name="a-0",
        feed="ticks",
        table=TableChoice(name="csv-ticks", quantity_decimals=8),
        streams=(SourceStreamConfig(id=STREAM, name="replay", framing="file", url=str(path)),),
        publish=PublishConfig(channel=free_channel()),
        sync=SynchroniserConfig(startup_ms=300),
        service=ServiceConfig(open=True),
        journal=JournalCaptureConfig(path=str(tmp_path / "journal")),
        state_directory=str(tmp_path / "state"),
    )
    with AdapterProcess(config, tmp_path):
        wait_for(lambda: len(recorded(tmp_path / "journal")) == len(expected), "all of it is in the journal")
        live = recorded(tmp_path / "journal")
    assert [without_term(message) for message in live] == [without_term(message) for message in expected]
    model = shipped("trade_8")
    trades = [model.view(record) for _, _, model_id, record in live if model_id == model.id]
    told = [line.split(",") for line in lines if line.startswith("trade")]
    assert [(each.symbol, each.scaled("price"), each.scaled("quantity")) for each in trades] == [
        (symbol, int(Decimal(price).scaleb(8)), int(Decimal(size).scaleb(8))) for _, _, symbol, price, size, _ in told
    ]
    assert min(each.scaled("quantity") for each in trades) == 1
