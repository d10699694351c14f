"""Pacing and numbering, without sockets."""

import gzip
import io
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ConfigurationError
from penstock.feed.core.play.config import PlayerConfig
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.feed.core.play.mold_server import MoldServer
from penstock.feed.core.play.pace import Pace
from penstock.feed.core.play.script import Script
from penstock.feed.formats.mold import MoldUDP64, encode_header
from penstock.feed.formats.stream import ByteStream
from penstock.feed.live.play.mold_player import MoldPlayer, open_script
from penstock.net.udp import Channel
from unit.test_feed_files import frame, pcap

DAY = GeneratorConfig(seed=5, symbols=5, messages=3_000)


def blocks(*times_ns: int) -> bytes:
    messages = [b"S" + bytes(4) + time_ns.to_bytes(6, "big") + b"O" for time_ns in times_ns]
    return b"".join(len(message).to_bytes(2, "big") + message for message in messages)


def script(data: bytes) -> Script:
    return Script.of_file(ByteStream(io.BytesIO(data)))


def test_a_file_and_the_generator_give_the_same_messages() -> None:
    generator = ItchGenerator(DAY)
    whole = b"".join(bytes(part) for part in iter(generator.blocks, b""))
    made_up, read = Script.made_up(ItchGenerator(DAY)), script(whole)
    assert b"".join(iter(lambda: made_up.take(7), b"")) == b"".join(iter(lambda: read.take(1_000), b"")) == whole


def test_a_truncated_message_is_not_played() -> None:
    data = blocks(1, 2, 3)
    cut = script(data[:-1])
    assert cut.take(10) == blocks(1, 2)
    assert cut.next_time_ns() is None


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lambda data: pa.Codec("zstd").compress(data, asbytes=True)])
def test_a_compressed_file_is_played(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    file = tmp_path / "day"
    file.write_bytes(pack(blocks(1, 2, 3)))
    with ExitStack() as files:
        assert open_script(PlayerConfig(lines=(Channel(),), file=str(file)), files).take(10) == blocks(1, 2, 3)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b'{"stream": "depth"}\n', "this is JSON"),
        ("a.dbn", b"DBN\x02\x40\0\0\0GLBX.MDP3" + bytes(80), r"DBN version 2\) of GLBX\.MDP3"),
        ("a.pcap", pcap([frame(b"x")]), "this is a capture, which cannot be played"),
        ("a.csv", b"trade,1700000000000000000,AAPL,190.25,100,1\n", "this is text, which cannot be played"),
    ],
    ids=["json", "dbn", "capture", "text"],
)
def test_a_file_without_itch_messages_is_not_played(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=said):
        MoldPlayer(PlayerConfig(lines=(Channel(),), file=str(file)))


def test_an_even_rate() -> None:
    pace = Pace(script(blocks(*range(10))), speed=1.0, rate=2.0, now_ns=0)
    assert pace.due(0) == blocks(0)
    assert pace.due(0) == b""
    assert pace.wait_ns(NS_PER_SECOND * 48 // 100) == NS_PER_SECOND * 2 // 100
    assert pace.due(NS_PER_SECOND) == blocks(1, 2)
    assert pace.due(100 * NS_PER_SECOND) == blocks(*range(3, 10))
    assert pace.due(101 * NS_PER_SECOND) == b""
    assert pace.is_over


def test_original_speed_and_faster() -> None:
    times = [5 * NS_PER_SECOND, 6 * NS_PER_SECOND, 9 * NS_PER_SECOND]
    pace = Pace(script(blocks(*times)), speed=2.0, rate=0.0, now_ns=1_000)
    assert pace.due(1_000) == blocks(times[0])
    assert pace.due(1_000 + NS_PER_SECOND // 2 - 1) == b""
    assert pace.due(1_000 + NS_PER_SECOND // 2) == blocks(times[1])
    assert not pace.is_over
    assert pace.due(1_000 + 2 * NS_PER_SECOND) == blocks(times[2])


def test_unlimited_speed() -> None:
    pace = Pace(script(blocks(1, 10**13)), speed=0.0, rate=0.0, now_ns=0)
    assert pace.due(0) == blocks(1, 10**13)
    assert pace.wait_ns(0) == 0


def test_messages_that_are_too_old_cannot_be_requested() -> None:
    server = MoldServer("S", packet_size_max=100, kept_bytes_max=60)
    for number in range(10):
        server.send(blocks(number, number))
    assert server.answer(encode_header("S", 1, 1)) == []
    answers = [MoldUDP64().decode(each) for each in server.answer(encode_header("S", 18, 100))]
    assert [(each.first_sequence, len(each.messages)) for each in answers] == [(18, 1)]
    assert MoldUDP64().decode(server.heartbeat()).first_sequence == 21


def test_a_player_without_lines_or_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs lines"):
        PlayerConfig()
    with pytest.raises(ConfigurationError, match="more entries than lines"):
        PlayerConfig(lines=(Channel(),), loss=(0.1, 0.1))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        MoldPlayer(PlayerConfig(lines=(Channel(),), file=str(tmp_path / "none")))
