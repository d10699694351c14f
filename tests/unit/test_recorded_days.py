"""Recorded files keep their own dates, streams and venues: found, assigned by the archive, or refused."""

import struct
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from feed_slices_kit import converted_slices, mold_day, pcap_of
from penstock.base.calendar import TradingCalendar
from penstock.base.errors import ConfigurationError
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.feed.recorded.dates import find_date
from penstock.model import shipped
from penstock.spark.feedindex import plan_slices
from penstock.spark.feedoptions import FeedSourceOptions
from penstock.spark.feedslices import Conversion, FeedSlice
from penstock.spark.pipeline.archive.commits import Catalogue
from penstock.spark.pipeline.sources.capture import FeedSource
from penstock.spark.pipeline.sources.find import find_feeds
from unit.itch_messages import directory, trade
from unit.recordings_kit import pipeline_options as options

CALENDAR = TradingCalendar.of_venue("XNAS")
TRADE = shipped("trade")
FRIDAY, MONDAY = date(2019, 2, 1), date(2019, 2, 4)


def feed_file(path: Path, seed: int = 1) -> Path:
    path.write_bytes(bytes(ItchGenerator(GeneratorConfig(seed=seed, symbols=2, messages=50)).blocks()))
    return path


def capture_file(path: Path, seconds: int) -> Path:
    """A single UDP packet of four bytes."""
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 32, 0, 0, 64, 17, 0, bytes([127, 0, 0, 1]), bytes([239, 1, 1, 1]))
    frame = bytes(12) + b"\x08\x00" + ip + struct.pack(">HHHH", 1, 2, 12, 0) + b"tick"
    header = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 1)
    path.write_bytes(header + struct.pack("<IIII", seconds, 0, len(frame), len(frame)) + frame)
    return path


def taken(catalogue: Catalogue, feeds: list[FeedSource]) -> list[tuple[int, str, str]]:
    """Stream, date and venue of each file that is read now; afterwards they are in the catalogue."""
    found = []
    for feed in feeds:
        for piece in feed.pieces(catalogue):
            assert isinstance(piece.slice, FeedSlice)
            conversion = piece.slice.conversion
            assert conversion is not None
            found.append((conversion.stream_id, conversion.trading_date, conversion.load()[1].venue))
            catalogue.sources[piece.source] = piece.position
    return found


@pytest.mark.spec("DAY-6")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("02012019.NASDAQ_ITCH50", FRIDAY),
        ("itch_20190201.bin", FRIDAY),
        ("itch-2019-02-01-10h.bin", FRIDAY),
        ("2019.02.01.itch", FRIDAY),
        ("day.itch", None),
        ("120190201.itch", None),
        ("20190230.itch", None),
        ("31129999.itch", None),
    ],
)
def test_a_date_is_found_in_a_name(tmp_path: Path, name: str, expected: date | None) -> None:
    (tmp_path / name).write_bytes(b"\x00\x01S")
    assert find_date(tmp_path / name, CALENDAR) == expected


@pytest.mark.spec("DAY-6", "DAY-2")
def test_the_trading_date_is_found_in_a_capture_by_the_calendar_of_the_venue(tmp_path: Path) -> None:
    midnight = 1_549_065_600  # 2019-02-02 00:00 UTC, 19:00 of the previous day in New York
    assert find_date(capture_file(tmp_path / "a.pcap", midnight), CALENDAR) == FRIDAY
    assert find_date(capture_file(tmp_path / "a.20190201.pcap", midnight), CALENDAR) == FRIDAY
    with pytest.raises(ConfigurationError, match="trading date 2019-02-01, the name says 2019-02-04") as caught:
        find_date(capture_file(tmp_path / "20190204.pcap", midnight), CALENDAR)
    assert "--date" in str(caught.value.hint)
    sunday_evening = midnight + 49 * 3_600  # 20:00 in New York
    for name in ("b.pcap", "b.20190203.pcap", "b.20190204.pcap"):
        assert find_date(capture_file(tmp_path / name, sunday_evening), CALENDAR) == MONDAY
    with pytest.raises(ConfigurationError, match="the name says 2019-02-01 and 2019-02-04"):
        find_date(feed_file(tmp_path / "20190201-20190204.itch"), CALENDAR)


@pytest.mark.spec("DAY-6")
def test_each_file_has_its_own_date_venue_and_stream_and_keeps_them(tmp_path: Path) -> None:
    files = [feed_file(tmp_path / f"{day}.itch", seed) for seed, day in enumerate(("20190201", "20190204"))]
    catalogue = Catalogue()
    venues = ["XNAS", "XBOS"]
    feeds = find_feeds(options(venues=venues), files, 1)
    assert taken(catalogue, feeds) == [(1, "2019-02-01", "XNAS"), (2, "2019-02-04", "XBOS")]
    assert taken(catalogue, find_feeds(options(venues=venues[::-1]), files[::-1], 1)) == [], "any order, no row twice"
    renamed = files[1].rename(tmp_path / "monday.itch")
    told = options(venues=["XBOS"], trading_dates=["2019-02-04"])
    assert taken(catalogue, find_feeds(told, [renamed], 1)) == [], "the same content, under another name"
    third = feed_file(tmp_path / "20190205.itch", 7)
    assert taken(catalogue, find_feeds(options(), [third], 1)) == [(3, "2019-02-05", "XNAS")]
    catalogue.cursors["4"] = []
    fourth = feed_file(tmp_path / "20190206.itch", 8)
    assert taken(catalogue, find_feeds(options(), [fourth], 1))[0][0] == 5, "4 is a stream of a journal"


@pytest.mark.spec("DAY-2", "DAY-6")
def test_each_session_of_a_capture_has_the_date_that_an_adapter_assigns(tmp_path: Path) -> None:
    """The first session begins on Sunday evening; the last one follows a day without a session."""
    sunday_evening = 1_549_242_000 * 10**9  # 2019-02-03 20:00 in New York
    hour_ns = 3_600 * 10**9
    frames = [
        (sunday_evening + hours * hour_ns + index, 0, datagram)
        for name, hours in (("MONDAY", 0), ("TUESDAY", 38), ("THURSDAY", 86))
        for index, datagram in enumerate(mold_day([directory(), trade(100, 1_600_000, 1)] * 4, name))
    ]
    path = tmp_path / "days.pcap"
    path.write_bytes(pcap_of(frames))
    (feed,) = find_feeds(options(), [path], 1)
    assert feed.day == MONDAY.isoformat()
    assert taken(Catalogue(), [feed]) == [(1, "", "XNAS")], "no configured date"
    conversion = Conversion("itch").dated(path)
    plan = conversion.load()[1]
    for size in (None, 300):
        slices = plan_slices(path, conversion=conversion, slice_size=size, cache=tmp_path / "cache")
        assert len(slices) > 1 or size is None
        records = [record for _, _, model, record in converted_slices(slices) if model == TRADE.id]
        times = [TRADE.view(record).event_time - 34_200 * 10**9 for record in records]
        assert list(dict.fromkeys(map(plan.date_of, times))) == [MONDAY, date(2019, 2, 5), date(2019, 2, 7)]


@pytest.mark.spec("DAY-6")
def test_files_that_would_be_mixed_are_refused(tmp_path: Path) -> None:
    files = [feed_file(tmp_path / f"{name}.itch", seed) for seed, name in enumerate(("one", "two"))]
    with pytest.raises(ConfigurationError, match="neither the file's content nor its name has one") as caught:
        find_feeds(options(), files, 1)
    assert caught.value.where == str(files[0])
    assert "--date" in str(caught.value.hint)
    for given in ({"trading_dates": ["2019-02-01"]}, {"streams": [1]}):
        with pytest.raises(ConfigurationError, match="1 time for 2 files"):
            find_feeds(options(**given), files, 1)
    with pytest.raises(ConfigurationError, match="3 times for 2 files"):
        find_feeds(options(tables=["itch"] * 3), files, 1)
    same = ["2019-02-01", "2019-02-01"]
    with files[1].open("ab") as file:
        file.write(b"\x00\x01S")
    with pytest.raises(ConfigurationError, match="may be parts of one session"):
        find_feeds(options(trading_dates=same), files, 1)
    catalogue = Catalogue()
    told = options(trading_dates=same, streams=[7, 8])
    assert [stream for stream, *_ in taken(catalogue, find_feeds(told, files, 1))] == [7, 8], "requested"
    assert taken(catalogue, find_feeds(options(trading_dates=same[:1]), files[:1], 1)) == []
    with pytest.raises(ConfigurationError, match="is archived as stream 7, not 9"):
        taken(catalogue, find_feeds(options(trading_dates=same[:1], streams=[9]), files[:1], 1))
    other = feed_file(tmp_path / "20190204.itch", 5)
    with pytest.raises(ConfigurationError, match=r"which is the stream of .*two.itch"):
        taken(catalogue, find_feeds(options(streams=[8]), [other], 1))
    third = feed_file(tmp_path / "20190201.itch", 9)
    with pytest.raises(ConfigurationError, match=r"venue XNAS, and so have .*one.itch and .*two.itch"):
        taken(catalogue, find_feeds(options(), [third], 1))


@pytest.mark.spec("DAY-6")
def test_a_file_without_messages_uses_no_day(tmp_path: Path) -> None:
    catalogue = Catalogue()
    empty, full = feed_file(tmp_path / "20190201.itch"), feed_file(tmp_path / "2019-02-01.itch", 5)
    assert taken(catalogue, find_feeds(options(), [empty], 1)) == [(1, "2019-02-01", "XNAS")]
    (key,) = catalogue.sources
    with pytest.raises(ConfigurationError, match=r"venue XNAS, and so has .*20190201.itch"):
        taken(catalogue, find_feeds(options(), [full], 1))
    catalogue.sources[key] |= {"is_empty": True}
    assert taken(catalogue, find_feeds(options(), [full], 1)) == [(2, "2019-02-01", "XNAS")]


@pytest.mark.spec("DAY-6")
def test_files_of_a_frame_have_separate_streams_and_dates(tmp_path: Path) -> None:
    names = ("20190201.itch", "20190204.itch")
    paths = tuple(str(feed_file(tmp_path / name, seed)) for seed, name in enumerate(names))

    def conversions(**given: Any) -> list[tuple[int, str]]:
        found = [piece.conversion for piece in FeedSourceOptions(path=paths, table="itch", **given).slices()]
        return [(each.stream_id, each.trading_date) for each in found if each is not None]

    assert conversions() == [(1, "2019-02-01"), (2, "2019-02-04")]
    assert conversions(stream=5, date="2020-01-02,2020-01-03") == [(5, "2020-01-02"), (6, "2020-01-03")]
    with pytest.raises(ConfigurationError, match="1 date is given for 2 files"):
        conversions(date="2020-01-02")
