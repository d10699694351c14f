"""Verdicts about files: an unsuitable file is not reported as a feed, and an unread file is not reported as valid."""

import gzip
import io
import json
import random
import struct
import subprocess
import zipfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from command_here import run_here
from feed_slices_kit import blocks_of, pcap_of, write_day
from penstock.base.errors import ConfigurationError
from penstock.feed.formats.mold import encode_packet
from penstock.feed.formats.stream import ZSTD_READ_SIZE, ByteStream
from penstock.feed.recorded.files import guess_format, open_source
from penstock.spark.feedindex import plan_slices
from unit.test_feed_files import frame, pcap


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


def zipped(data: bytes, *names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names or ("content",):
            archive.writestr(name, data)
    return file.getvalue()


def zipped_files() -> bytes:
    file = io.BytesIO()
    zipfile.ZipFile(file, "w").close()
    return file.getvalue()


def tcp(data: bytes = b"x") -> bytes:
    made = bytearray(frame(data))
    made[14 + 9] = 6
    return bytes(made)


DBN = b"DBN\x02\x40\0\0\0GLBX.MDP3\0\0\0\0\0\0\0" + bytes(60)
DBZ = b"\x51\x2a\x4d\x18\x40\0\0\0DBZ\x01" + bytes(60)

FOREIGN = {
    "a.dbn": (DBN, "DBN version 2) of GLBX.MDP3"),
    "a.dbn.zst": (zstd(DBN), "DBN version 2) of GLBX.MDP3 (in zstd)"),
    "a.dbz": (DBZ, "DBZ"),
    "a.json": (b'{"stream": "depth", "u": 1}\n', "JSON"),
    "a.jsonl": (b'1723161256172216566 {"stream":"btcusdt@trade"}\n', "JSON"),
    "a.csv": (b'[{"price": 1}]', "JSON"),
    "a.parquet": (b"PAR1" + bytes(40), "Parquet"),
    "a.bz2": (b"BZh91AY&SY" + bytes(40), "bzip2"),
    "a.gz.gz": (gzip.compress(gzip.compress(b"x")), "compressed twice, the second time with gzip"),
    "readme.md": (b"# Readme\n\nSome words.\n", "begins '# Readme'"),
    "mold.dat": (encode_packet("", 1, [b"A" * 36]), "binary data of unknown format that begins 20 20"),
    "noise": (random.Random(7).randbytes(5_000), "binary data of unknown format"),
    "two.zip": (zipped(b"1,2\n", "a.csv", "b.csv"), "has 2 files, not one: a.csv, b.csv"),
    "none.zip": (zipped_files(), "a zip archive without a file"),
    "cut.zip": (zipped(b"1,2\n", "a.csv")[:-30], "the zip file is damaged"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_that_is_not_a_feed_is_an_error_that_names_its_content(tmp_path: Path, name: str) -> None:
    data, said = FOREIGN[name]
    path = tmp_path / name
    path.write_bytes(data)
    for command in (("feed", "info", path), ("convert", "run", "itch", path)):
        done = run_here(*command)
        assert done.returncode == 1
        assert "ITCH messages" not in done.stdout
        assert "undamaged" not in done.stdout
        assert said in done.stderr
        assert name in done.stderr
    with pytest.raises(ConfigurationError):
        open_source(path)
    with pytest.raises(ConfigurationError):
        plan_slices(path)  # in the driver, before any worker


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd, zipped], ids=["plain", "gzip", "zstd", "zip"])
def test_a_compressed_file_is_read_by_its_real_format(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    data = write_day(tmp_path / "plain", 20_000)
    path = tmp_path / "day"
    path.write_bytes(pack(data))
    with open_source(path) as source, open_source(tmp_path / "plain") as plain:
        read = [message for batch in source.batches() for _, message in batch]
        assert read == [message for batch in plain.batches() for _, message in batch]
    assert len(read) > 10_000
    assert source.damages.total == 0
    shown = run_here("feed", "info", path)
    assert shown.returncode == 0
    assert shown.stdout.startswith("ITCH messages")
    assert f"{len(data):,} bytes" in shown.stdout


def test_the_member_name_selects_the_format_of_a_table_in_a_zip_archive(tmp_path: Path) -> None:
    path = tmp_path / "ticks.zip"
    path.write_bytes(zipped(b"trade,1700000000000000000,AAPL,190.25,100,1\n", "ticks.csv"))
    assert '"topic": "md.ticks.AAPL.trade"' in run_here("convert", "run", "csv-ticks", path).stdout


@pytest.mark.parametrize("pack", [zstd, zipped], ids=["zstd", "zip"])
def test_a_truncated_or_damaged_compressed_file_is_reported(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    data = random.Random(3).randbytes(300_000)
    packed = pack(data)
    for size in (40, 1_000, len(packed) // 2, len(packed) - 5):
        stream = ByteStream(io.BytesIO(packed[:size]))
        got = stream.read(len(data))
        assert data.startswith(got)
        assert stream.damage is not None
        if pack is zstd:
            assert len(got) >= size - 200_000 - ZSTD_READ_SIZE
    broken = bytearray(packed)
    broken[len(broken) // 2] ^= 0xFF
    stream = ByteStream(io.BytesIO(bytes(broken)))
    got = stream.read(len(data))
    assert stream.damage is not None or got != data


def test_all_frames_of_a_zstd_file_are_read() -> None:
    stream = ByteStream(io.BytesIO(zstd(b"one") + zstd(b"two")))
    assert stream.read(100) == b"onetwo"
    assert stream.damage is None


def test_a_capture_of_tcp_is_not_reported_as_valid(tmp_path: Path) -> None:
    path = tmp_path / "soup.pcap"
    path.write_bytes(pcap([tcp(), tcp()]))
    shown = run_here("feed", "info", path)
    assert shown.returncode == 1
    assert "skipped: 2 frames, TCP, not UDP" in shown.stdout
    assert shown.stdout.endswith("the file is not a known feed\n")
    ran = run_here("convert", "run", "itch", path)
    assert ran.returncode == 1
    assert "the capture has no UDP datagram; of 2 frames: 2 TCP, not UDP" in ran.stderr
    assert "nothing was converted" in ran.stderr


def test_a_capture_of_an_unknown_protocol_is_reported_with_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "other.pcap"
    path.write_bytes(pcap([frame(b"\x1f\xd2\x26\x01other")]))
    shown = run_here("feed", "info", path)
    assert shown.returncode == 1
    assert "the first of those datagrams, to 239.1.2.3:5000 (at 24), begins 1f d2 26 01" in shown.stdout
    assert "undamaged" not in shown.stdout
    assert run_here("convert", "run", "itch", path).returncode == 1


def test_skipped_data_appears_in_the_verdict(tmp_path: Path) -> None:
    path = tmp_path / "mixed.pcap"
    path.write_bytes(pcap([frame(encode_packet("s", 1, [b"A"])), tcp()]))
    shown = run_here("feed", "info", path)
    assert shown.returncode == 0
    assert shown.stdout.endswith("the parts that were read are undamaged; 1 frames were skipped\n")


@pytest.mark.spec("DAY-2")
def test_a_file_without_a_date_is_refused_and_a_date_in_its_name_is_used(tmp_path: Path) -> None:
    """Never 1970: ITCH times count from midnight."""
    undated, dated = tmp_path / "day.itch", tmp_path / "S013019-v50_01302019.itch"
    for path in (undated, dated):
        write_day(path, 200)
    refused = run_here("convert", "run", "itch", undated)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "the table 'itch' needs a date, and neither the file's content nor its name has one" in refused.stderr
    assert "--date 2019-01-30" in refused.stderr
    assert dates_of(run_here("convert", "run", "itch", dated)) == {"2019-01-30"}
    assert dates_of(run_here("convert", "run", "itch", dated, "--date", "2019-01-31")) == {"2019-01-31"}
    assert dates_of(run_here("convert", "run", "itch", undated, "--trading-date", "2019-02-01")) == {"2019-02-01"}
    ambiguous = undated.rename(tmp_path / "20190130-20190131.itch")
    refused = run_here("convert", "run", "itch", ambiguous)
    assert refused.returncode == 1
    assert "the name says 2019-01-30 and 2019-01-31" in refused.stderr


def dates_of(done: "subprocess.CompletedProcess[str]") -> set[str]:
    """The dates of all events."""
    assert done.returncode == 0, done.stderr
    seconds = {json.loads(line)["message"]["event_time"] // 10**9 for line in done.stdout.splitlines()}
    return {datetime.fromtimestamp(each, ZoneInfo("America/New_York")).date().isoformat() for each in seconds}


@pytest.mark.spec("DAY-2")
def test_a_capture_needs_no_date(tmp_path: Path) -> None:
    path = tmp_path / "lines.pcap"
    messages = blocks_of(write_day(tmp_path / "day.itch", 200))
    at_ns = 1_548_864_000 * 10**9  # 2019-01-30 11:00 in New York
    frames = [(at_ns + first, 0, encode_packet("s", first + 1, [message])) for first, message in enumerate(messages)]
    path.write_bytes(pcap_of(frames))
    assert dates_of(run_here("convert", "run", "itch", path)) == {"2019-01-30"}


@pytest.mark.parametrize("name", ["empty.itch", "empty.csv"])
def test_an_empty_file_has_no_messages_to_convert(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    assert run_here("feed", "info", path).returncode == 1
    ran = run_here("convert", "run", "itch", path)
    assert ran.returncode == 1
    assert "the file has no message" in ran.stderr


def test_a_file_of_malformed_messages_only_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "ticks.csv"
    path.write_bytes(b"nonsense,1\ntrade,x,AAPL,190.25,100,1\n")
    ran = run_here("convert", "run", "csv-ticks", path)
    assert ran.returncode == 1
    assert "nothing was converted: all 2 messages are malformed" in ran.stderr
    path.write_bytes(b"nonsense,1\ntrade,1700000000000000000,AAPL,190.25,100,1\n")
    assert run_here("convert", "run", "csv-ticks", path).returncode == 0


def test_messages_of_another_protocol_are_not_reported_as_itch(tmp_path: Path) -> None:
    path = tmp_path / "lamps.bin"
    path.write_bytes(b"".join(struct.pack(">H", 21) + b"\x01" + bytes(20) for _ in range(5)))
    shown = run_here("feed", "info", path)
    assert shown.returncode == 1
    assert shown.stdout.startswith("messages with their sizes before them, none of a type of ITCH 5.0")
    assert "no message is of a known format: whether the file is damaged is unknown" in shown.stdout


def test_itch_messages_of_a_wrong_size_are_not_reported_as_valid(tmp_path: Path) -> None:
    path = tmp_path / "20190130.itch"
    wrong = b"\0\5A1234"
    path.write_bytes(20 * wrong)
    shown = run_here("feed", "info", path)
    assert shown.stdout.startswith("messages with their sizes before them, none with the size of its type in ITCH 5.0")
    assert "no message is of a known format: whether the file is damaged is unknown" in shown.stdout
    ran = run_here("convert", "run", "itch", path)
    assert ran.returncode == 1
    assert "nothing was converted: all 20 messages are malformed" in ran.stderr
    good = write_day(path, 100)
    count = len(blocks_of(good))
    path.write_bytes(good + 3 * wrong)
    shown = run_here("feed", "info", path)
    assert shown.returncode == 1
    assert shown.stdout.startswith("ITCH messages")
    assert f"damaged: 3 messages, from message {count + 1:,}, lack the size of their type" in shown.stdout
    assert "undamaged" not in shown.stdout
    assert json.loads(run_here("feed", "info", path, "--json").stdout)["missized"] == 3


@pytest.mark.parametrize("cut", [4, 6, 24, 30])
def test_a_capture_truncated_before_its_first_frame_has_no_frames(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(pcap([frame(encode_packet("s", 1, [b"A"]))])[:cut])
    assert run_here("feed", "info", path).returncode == 1
    ran = run_here("convert", "run", "itch", path)
    assert ran.returncode == 1
    assert "the capture has no readable frame" in ran.stderr


def test_the_format_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "ticks"
    path.write_bytes(b"trade,1700000000000000000,AAPL,190.25,100,1\n")
    assert "or set the format csv" in run_here("feed", "info", path).stderr
    assert run_here("feed", "info", path, "--format", "csv").returncode == 0
    assert '"AAPL"' in run_here("convert", "run", "csv-ticks", path, "--format", "csv").stdout
    with path.open("rb") as file, pytest.raises(ConfigurationError):
        guess_format(path, ByteStream(file))
