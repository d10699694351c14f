"""The player on real sockets: every line, the request server, the end of the day."""

import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.feed.core.play.config import PlayerConfig
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.feed.formats.mold import MoldUDP64, encode_header
from penstock.feed.live.play.mold_player import MoldPlayer
from penstock.net.udp import Channel, free_channel, group_socket

DAY = GeneratorConfig(seed=3, symbols=20, messages=2_000)
PATIENCE_SECONDS = 120.0


@pytest.fixture
def lines() -> Iterator[list[tuple[Channel, socket.socket]]]:
    channels = [free_channel(), free_channel()]
    sockets = [group_socket(channel) for channel in channels]
    for each in sockets:
        each.settimeout(PATIENCE_SECONDS)
    yield list(zip(channels, sockets, strict=True))
    for each in sockets:
        each.close()


def played(line: socket.socket) -> dict[int, bytes]:
    """All messages on a line until the session's end."""
    messages = {}
    while True:
        segment = MoldUDP64().decode(line.recv(65_536))
        messages |= dict(enumerate(segment.messages, segment.first_sequence))
        if segment.is_end:
            return messages


def test_a_day_goes_to_both_lines_and_what_is_lost_can_be_asked_for(lines: list[tuple[Channel, socket.socket]]) -> None:
    whole = dict(enumerate(ItchGenerator(DAY), 1))
    config = PlayerConfig(
        lines=tuple(channel for channel, _ in lines), loss=(0.3,), rate=50_000, generate=DAY, packet_size_max=300
    )
    stop = threading.Event()
    with (
        MoldPlayer(config) as player,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking,
    ):
        asking.settimeout(PATIENCE_SECONDS)
        thread = threading.Thread(target=player.run, args=(stop,))
        thread.start()
        try:
            assert played(lines[1][1]) == whole
            lossy = played(lines[0][1])
            missing = sorted(whole.keys() - lossy.keys())
            assert missing
            assert all(whole[number] == message for number, message in lossy.items())
            for number in missing[:50]:
                asking.sendto(encode_header("PENSTOCK", number, 1), ("127.0.0.1", player.request_port))
                segment = MoldUDP64().decode(asking.recv(65_536))
                assert (segment.first_sequence, segment.messages) == (number, [whole[number]])
            for nonsense in (b"", b"x" * 20, encode_header("OTHER", 1, 1), encode_header("PENSTOCK", 10**9, 1)):
                asking.sendto(nonsense, ("127.0.0.1", player.request_port))
            asking.sendto(encode_header("PENSTOCK", 1, 3), ("127.0.0.1", player.request_port))
            assert MoldUDP64().decode(asking.recv(65_536)).messages == [whole[n] for n in (1, 2, 3)]
            assert player.counters["source_requests_refused"] == 4
        finally:
            stop.set()
            thread.join()
