"""Real captures and files of exchanges: the messages equal published facts about these files."""

import gzip
import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import PacketError
from penstock.feed.core.lines.arbiter import SessionEnded, SessionStarted, SourceLost, SourceReady
from penstock.feed.formats.iextp import IexTp
from penstock.feed.formats.mold import MoldUDP64
from penstock.feed.formats.pcap import CaptureReader
from penstock.feed.formats.stream import ByteStream
from penstock.feed.recorded.files import open_source

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="needs the real data samples in ../shared/data")

ITCH_FILES = [
    "itch/aapl_20190130_0930_rows00001-05000_REENCODED_all.itch",
    "itch/aapl_20190130_0930_rows00001-05000_REENCODED_closed.itch",
    "itch/nasdaq_tv50_20230822_open_bytype.itch",
    "itch/nasdaq_tv50_first1000_session_start.itch",
    "itch/synthetic/ritch_ex20101224_ARTIFICIAL.itch",
]
IEX_FILES = [
    "pcap_iex/iex_deep10_20231002_first3000.pcap.gz",
    "pcap_iex/iex_tops16_20170710_testfeed.pcapng.gz",
    "pcap_iex/iex_tops16_20180103_example1.pcapng",
]


def facts(kind: str) -> dict[str, Any]:
    known: dict[str, Any] = json.loads((DATA / "facts.json").read_text())[kind]["files"]
    return known


def messages_of(path: Path) -> list[bytes]:
    with open_source(path) as source:
        return [message for batch in source.batches() for _, message in batch]


@pytest.mark.spec("FEED-7")
@pytest.mark.parametrize("name", ITCH_FILES)
def test_itch_files_have_the_expected_messages(name: str) -> None:
    known = facts("itch")[name]
    messages = messages_of(DATA / name)
    assert len(messages) == known["messages"]
    assert Counter(chr(message[0]) for message in messages) == known["by_type"]
    times = [int.from_bytes(message[5:11], "big") for message in messages]
    assert (times[0], times[-1]) == (known["first_ts_ns"], known["last_ts_ns"])
    executed = sum(struct.unpack_from(">I", message, 19)[0] for message in messages if message[:1] in b"EC")
    assert executed == known.get("executed_shares_E_C", executed)


@pytest.mark.spec("FEED-7")
@pytest.mark.parametrize("name", IEX_FILES)
def test_iex_captures_have_the_expected_messages_volumes_and_numbers(name: str) -> None:
    known = facts("iex")[name]
    messages: list[bytes] = []
    sessions, lost = [], 0
    with open_source(DATA / name) as source:
        for event in source:
            match event:
                case SourceReady():
                    messages += [message for _, message in event.batch]
                case SessionStarted():
                    sessions.append(event.name)
                case SourceLost():
                    lost += 1
    assert len(messages) == known["messages"]
    assert Counter(chr(message[0]) for message in messages) == known["by_type"]
    assert lost == known["seq_discontinuities"] == 0
    assert [f"{int(protocol, 16):04x}-{channel}-{session}" for protocol, (channel, session) in
            zip(known["proto"], known["sessions"], strict=True)] == sessions  # fmt: skip
    trades = [message for message in messages if message[:1] == b"T"]
    assert len(trades) == known["trades"]
    assert sum(struct.unpack_from("<I", message, 18)[0] for message in trades) == known["traded_shares"]
    by_symbol: Counter[str] = Counter()
    for message in trades:
        by_symbol[message[10:18].decode().rstrip()] += struct.unpack_from("<I", message, 18)[0]
    assert by_symbol == {symbol: each["volume"] for symbol, each in known["per_symbol_trades"].items()}


@pytest.mark.parametrize("name", IEX_FILES)
def test_iex_captures_have_the_expected_segments(name: str) -> None:
    known = facts("iex")[name]
    with (DATA / name).open("rb") as file:
        captured = list(CaptureReader(ByteStream(file)))
    segments = [IexTp().decode(each.data) for each in captured]
    assert len(segments) == known["segments"]
    assert sum(not segment.messages for segment in segments) == known["heartbeats"]
    assert {f"{each.destination[0]}:{each.destination[1]}" for each in captured} == set(known["dest"])


def test_packets_of_nasdaq_are_decoded() -> None:
    """Also packets with anonymised headers: their messages have no numbers, which is reported, not guessed."""
    names = [name for name in facts("omi") if "TotalView.Itch" in name]
    assert len(names) > 20
    for name in names:
        with (DATA / name).open("rb") as file:
            segments = [MoldUDP64().decode(each.data) for each in CaptureReader(ByteStream(file))]
        told = [
            f"mold session='{each.session}' seq={each.first_sequence} count={len(each.messages)} "
            f"types={''.join(chr(message[0]) for message in each.messages)}"
            for each in segments
        ]
        known = [detail.split("B ", 1)[1] for detail in facts("omi")[name]["detail"]]
        assert told == known, name
        with open_source(DATA / name) as source:
            delivered = sum(len(batch) for batch in source.batches())
        numbered = [each for each in segments if each.first_sequence]
        assert delivered == sum(len(each.messages) for each in numbered)
        assert source.damages.total == len(segments) - len(numbered)


def test_packets_of_borsa_istanbul_are_decoded_up_to_a_truncated_one() -> None:
    data = (DATA / "itch" / "bist_moldudp64_sample.dat").read_bytes()
    found, at = [], 0
    while at < len(data):
        count = int.from_bytes(data[at + 18 : at + 20], "big")
        end = at + 20
        for _ in range(count):
            end += 2 + int.from_bytes(data[end : end + 2], "big")
        found.append(data[at:end])
        at = end
    whole = [MoldUDP64().decode(packet) for packet in found[:2]]
    assert [(each.session, each.first_sequence, len(each.messages)) for each in whole] == [("", 1, 15), ("", 16, 13)]
    assert Counter(chr(message[0]) for message in whole[0].messages) == {"T": 2, "S": 1, "R": 6, "L": 6}
    with pytest.raises(PacketError) as refused:
        MoldUDP64().decode(found[2])
    assert refused.value.cause == "truncated"


@pytest.mark.spec("FEED-8")
@pytest.mark.parametrize("name", [IEX_FILES[0], IEX_FILES[1]])
@pytest.mark.parametrize("share", [0.999, 0.5, 0.01])
def test_a_truncated_capture_gives_its_valid_part_and_the_position_of_its_end(
    tmp_path: Path, name: str, share: float
) -> None:
    whole = messages_of(DATA / name)
    data = (DATA / name).read_bytes()
    cut = tmp_path / Path(name).name
    cut.write_bytes(data[: int(len(data) * share)])
    with open_source(cut) as source:
        messages = [message for batch in source.batches() for _, message in batch]
    assert len(messages) < len(whole)
    assert messages == whole[: len(messages)]
    assert len(messages) > len(whole) * share / 3
    assert "truncated" in next(iter(source.damages)).what


@pytest.mark.spec("FEED-8")
def test_a_compressed_capture_with_a_damaged_byte_gives_its_valid_part(tmp_path: Path) -> None:
    name = IEX_FILES[0]
    data = bytearray((DATA / name).read_bytes())
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "damaged.pcap.gz"
    path.write_bytes(data)
    with open_source(path) as source:
        messages = [message for batch in source.batches() for _, message in batch]
    whole = messages_of(DATA / name)
    assert messages[:10_000] == whole[:10_000]
    assert source.damages.total > 0


@pytest.mark.spec("FEED-9")
def test_a_capture_whose_numbers_restart_is_read(tmp_path: Path) -> None:
    """Two captures of the same session concatenated, as a careless script joins them."""
    raw = gzip.decompress((DATA / IEX_FILES[0]).read_bytes())
    path = tmp_path / "joined.pcap"
    path.write_bytes(raw + raw[24:])
    with open_source(path) as source:
        events = [len(event.batch) if isinstance(event, SourceReady) else event for event in source]
    assert sum(each for each in events if isinstance(each, int)) == 2 * facts("iex")[IEX_FILES[0]]["messages"]
    assert [type(each) for each in events if not isinstance(each, int)] == [SessionStarted, SessionEnded] * 2
    assert [damage for damage in source.damages if "restarted its numbers" in damage.what]
