"""Real feeds in slices: every message equals, byte by byte, the one that a live adapter publishes for the same
input."""

import csv
import gzip
import zipfile
from datetime import datetime
from pathlib import Path

import pytest

from feed_slices_kit import Message, converted_slices, messages_of
from penstock.convert import Converter
from penstock.feed.config import SynchroniserConfig
from penstock.feed.core.events import Announce, PublishConverted, SessionBegan
from penstock.feed.core.lines.events import SessionStarted, SourceLost, SourceReady
from penstock.feed.core.session_dates import SessionDates
from penstock.feed.core.sync.flow import StreamFlow
from penstock.spark.feedindex import plan_slices
from penstock.spark.feedslices import Conversion, FeedOptions, open_as_told

FEEDS = Path(__file__).parent / "feeds"

FILES = [
    ("itch", "itch/aapl_20190130_0930_rows00001-05000_REENCODED_all.itch", "2019-01-30"),
    ("itch", "itch/aapl_20190130_0930_rows00001-05000_REENCODED_closed.itch", "2019-01-30"),
    ("itch", "itch/nasdaq_tv50_20230822_open_bytype.itch", "2023-08-22"),
    ("itch", "itch/nasdaq_tv50_first1000_session_start.itch", "2023-08-22"),
    ("itch", "itch/synthetic/ritch_ex20101224_ARTIFICIAL.itch", "2010-12-24"),
    ("iex-deep", "pcap_iex/iex_deep10_20231002_first3000.pcap.gz", ""),
    ("iex-tops", "pcap_iex/iex_tops16_20170710_testfeed.pcapng.gz", ""),
    ("iex-tops", "pcap_iex/iex_tops16_20180103_example1.pcapng", ""),
    (str(FEEDS / "lean.toml"), "equity_ticks_lean/ibm_20131007_trade_tick.zip", "2013-10-07"),
    (str(FEEDS / "mbo.toml"), "mbo_mbp_csv/XNAS_ARL_20250717_mbo_first_rows.csv.gz", ""),
]


def as_feed(path: Path, directory: Path) -> Path:
    """Files in formats without a reader, as lines that the tables of this test read."""
    if path.suffix == ".zip":
        symbol = path.name.partition("_")[0].upper()
        with zipfile.ZipFile(path) as archive:
            text = archive.read(archive.namelist()[0]).decode()
        made = directory / "ticks.csv"
        made.write_text("".join(f"{symbol},{line}\n" for line in text.splitlines()))
        return made
    if "mbo" in path.name:
        made = directory / "orders.csv"
        with gzip.open(path, "rt", newline="") as file, made.open("w") as out:
            for row in csv.DictReader(file):
                whole, _, fraction = row["ts_event"].removesuffix("Z").partition(".")
                time_ns = int(datetime.fromisoformat(f"{whole}+00:00").timestamp()) * 10**9 + int(
                    fraction.ljust(9, "0")
                )
                values = (
                    row["action"],
                    time_ns,
                    row["symbol"],
                    row["side"],
                    row["price"],
                    row["size"],
                    row["order_id"],
                )
                out.write(",".join(str(value) for value in values) + "\n")
        return made
    return path


def nanoseconds(text: str) -> int:
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(f"{whole}+00:00").timestamp()) * 10**9 + int(fraction.ljust(9, "0"))


def published(path: Path, conversion: Conversion) -> list[Message]:
    """The messages that an adapter publishes: its stream's flow, driven by an adapter's input."""
    day = conversion.day()
    plan = conversion.load()[1]
    converter = Converter(plan, conversion.stream_id, trading_date=day)
    flow = StreamFlow(conversion.stream_id, converter, SynchroniserConfig(), SessionDates.of_plan(plan, day))
    made = []
    with open_as_told(path, FeedOptions()) as source:
        for event in source:
            flow.begin_event()
            if isinstance(event, SessionStarted):
                began = SessionBegan(conversion.stream_id, event.name, event.first, event.is_reset, event.receive_ns)
                flow.begin_session(began)
            elif isinstance(event, SourceLost):
                flow.lose(event.first, event.last)
            elif isinstance(event, SourceReady):
                for each in flow.take(event.batch):
                    if isinstance(each, PublishConverted):
                        made += messages_of(each.converted)
                    else:
                        assert isinstance(each, Announce), "the end of the session"
    return made


@pytest.mark.spec("PIPE-3", "PIPE-4")
@pytest.mark.parametrize(("table", "name", "day"), FILES, ids=[name.rpartition("/")[2] for _, name, _ in FILES])
def test_slices_give_the_messages_of_an_adapter(samples: Path, tmp_path: Path, table: str, name: str, day: str) -> None:
    path = as_feed(samples / name, tmp_path)
    conversion = Conversion(table, trading_date=day)
    expected = published(path, conversion)
    assert expected
    size = path.stat().st_size
    for slice_size in (None, size // 5 + 1) if path.suffix == ".itch" else (size // 5 + 1,):
        slices = plan_slices(path, conversion=conversion, slice_size=slice_size, cache=tmp_path / "cache")
        assert converted_slices(slices) == expected
