"""Players and receivers on real sockets: lines with loss, requests, logins, garbage, servers that die."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.base.errors import ConfigurationError, RefusedError
from penstock.feed.config import LineConfig
from penstock.feed.core.lines.arbiter import SessionEnded, SessionStarted, SourceLost, SourceReady
from penstock.feed.core.play.config import PlayerConfig
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.feed.formats import MoldUDP64
from penstock.feed.live.line_receiver import LineReceiver
from penstock.feed.live.play.mold_player import MoldPlayer
from penstock.feed.live.play.soup_player import SoupPlayer
from penstock.feed.live.soup_client import SoupClient, SoupClientConfig
from penstock.net.config import StreamConfig
from penstock.net.udp import free_channel
from waiting import wait_until

DAY = GeneratorConfig(seed=5, symbols=20, messages=4_000)
GARBAGE = [b"GET / HTTP/1.1\r\n\r\n" * 4_000, b"\0\0\0", b"\0\x01R", b"\0\x2fL" + b"\xff" * 46]
SOUP = StreamConfig(ping_ms=50, silence_ms=2_000, handshake_ms=1_000, linger_ms=200)
PLAYED = PlayerConfig(protocol="soupbintcp", generate=DAY, speed=0)


def day() -> list[bytes]:
    return list(ItchGenerator(DAY))


def chunks() -> list[bytes]:
    """The day in pieces, each message with its size before it."""
    generator = ItchGenerator(DAY)
    return [bytes(blocks) for blocks in iter(lambda: generator.blocks(100), b"")]


def without_time(told: Any) -> Any:
    """When a session's first datagram was received is another thing each time."""
    return msgspec.structs.replace(told, receive_ns=0) if isinstance(told, SessionStarted) else told


@pytest.mark.spec("FEED-1", "FEED-7")
@pytest.mark.parametrize("loss", [(0.0, 0.0), (1.0, 0.0), (0.3, 0.3)])
def test_two_lines_with_loss_and_a_request_server_give_every_message_once(loss: tuple[float, float]) -> None:
    lines = free_channel(), free_channel()
    config = PlayerConfig(generate=DAY, lines=lines, loss=loss, rate=20_000, heartbeat_ms=20)
    stop = threading.Event()
    received: list[bytes] = []
    told: list[object] = []
    with MoldPlayer(config) as player:
        receiver = LineReceiver(
            lines,
            MoldUDP64(),
            request_address=("127.0.0.1", player.request_port),
            config=LineConfig(join="start", request_attempts_max=20, window_messages_max=2**20),
        )

        def take() -> bool:
            for event in receiver.receive(0.2):
                if isinstance(event, SourceReady):
                    received.extend(message for _, message in event.batch)
                else:
                    told.append(event)
            return any(isinstance(each, SessionEnded) for each in told)

        with receiver:
            playing = threading.Thread(target=player.run, args=(stop,))
            playing.start()
            try:
                wait_until(take)
            finally:
                stop.set()
                playing.join()
    assert received == day()
    assert SessionStarted("PENSTOCK", 1) in map(without_time, told)
    assert not [each for each in told if isinstance(each, SourceLost)]
    if all(loss):
        assert player.counters["source_requests_answered"] > 0
        assert receiver.counters["retransmissions_requested"] > 0


def test_a_request_server_that_is_not_there_costs_only_what_is_lost() -> None:
    lines = free_channel(), free_channel()
    config = PlayerConfig(generate=DAY, lines=lines, loss=(0.3, 0.3), rate=20_000, heartbeat_ms=20)
    nobody = ("127.0.0.1", lines[0].port)  # free, as far as unicast goes
    stop = threading.Event()
    received: dict[int, bytes] = {}
    lost: set[int] = set()
    lines_config = LineConfig(join="start", request_attempts_max=2, request_retry_ms=5)
    with (
        MoldPlayer(config) as player,
        LineReceiver(lines, MoldUDP64(), request_address=nobody, config=lines_config) as receiver,
    ):
        has_ended = False

        def take() -> bool:
            nonlocal has_ended
            for event in receiver.receive(0.2):
                if isinstance(event, SourceReady):
                    received.update(event.batch)
                elif isinstance(event, SourceLost):
                    lost.update(range(event.first, event.last + 1))
                has_ended = has_ended or isinstance(event, SessionEnded)
            return has_ended

        playing = threading.Thread(target=player.run, args=(stop,))
        playing.start()
        try:
            wait_until(take)
        finally:
            stop.set()
            playing.join()
    whole = dict(enumerate(day(), 1))
    assert lost
    assert received == {sequence: message for sequence, message in whole.items() if sequence not in lost}


async def receive_all(client: SoupClient) -> tuple[list[tuple[int, bytes]], list[object]]:
    received: list[tuple[int, bytes]] = []
    told: list[object] = []
    async for event in client.events():
        if isinstance(event, SourceReady):
            received += list(event.batch)
        else:
            told.append(event)
    return received, told


@pytest.mark.spec("FEED-7")
def test_soup_replays_from_any_number_and_goes_on_live() -> None:
    async def run() -> None:
        async with SoupPlayer(PLAYED, stream=SOUP) as player:
            for blocks in chunks():
                player.add(blocks)
            from_start = asyncio.ensure_future(receive_all(SoupClient(SoupClientConfig(port=player.port), stream=SOUP)))
            late = asyncio.ensure_future(
                receive_all(SoupClient(SoupClientConfig(port=player.port, sequence=4_000), stream=SOUP))
            )
            await asyncio.sleep(0)
            player.end()
            async with asyncio.timeout(120):
                whole, told = await from_start
                rest, _ = await late
        expected = list(enumerate(day(), 1))
        assert whole == expected
        assert rest == expected[3_999:]
        assert [*map(without_time, told)] == [
            SessionStarted("PENSTOCK", 1),
            SessionEnded("PENSTOCK", len(expected) + 1),
        ]

    asyncio.run(run())


def test_a_wrong_password_is_refused_and_not_tried_again(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("open up\n")
    config = PlayerConfig(protocol="soupbintcp", generate=DAY, username="alice", password_file=str(secret))
    right = {"user": "alice", "password": "open up"}

    async def run() -> None:
        async with SoupPlayer(config, stream=SOUP) as player:
            for wrong in ({"password": "guess"}, {"user": "eve"}, {"session": "yesterday"}):
                chosen = SoupClientConfig(port=player.port, **{**right, **wrong})  # type: ignore[arg-type]
                with pytest.raises(RefusedError) as refused:
                    await receive_all(SoupClient(chosen, stream=SOUP))
                assert refused.value.peer_code == ("S" if "session" in wrong else "A")
                assert "guess" not in repr(chosen)
            assert player.counters.by_cause("connections_refused") == {"authentication": 3}
            player.end()
            _, told = await receive_all(SoupClient(SoupClientConfig(port=player.port, **right), stream=SOUP))  # type: ignore[arg-type]
            assert [*map(without_time, told)] == [SessionStarted("PENSTOCK", 1), SessionEnded("PENSTOCK", 1)]

    asyncio.run(run())


@pytest.mark.spec("FEED-8")
@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n" * 4_000, b"\0\0\0", b"\0\x01R", b"\0\x2fL" + b"\xff" * 46]
)
def test_garbage_on_the_port_is_refused_and_others_are_served(garbage: bytes) -> None:
    async def run() -> None:
        async with SoupPlayer(PLAYED, stream=SOUP) as player:
            reader, writer = await asyncio.open_connection("127.0.0.1", player.port)
            writer.write(garbage)
            async with asyncio.timeout(120):
                while await reader.read(4_096):
                    continue
            writer.close()
            assert player.counters.by_cause("connections_refused") == {"handshake": 1}
            for blocks in chunks():
                player.add(blocks)
            player.end()
            received, _ = await receive_all(SoupClient(SoupClientConfig(port=player.port), stream=SOUP))
        assert len(received) == len(day())

    asyncio.run(run())


@pytest.mark.spec("FEED-7")
def test_a_server_that_dies_and_comes_back_costs_no_message_and_repeats_none() -> None:
    async def run() -> None:
        expected = list(enumerate(day(), 1))
        whole = chunks()
        received: list[tuple[int, bytes]] = []
        told: list[object] = []
        first = SoupPlayer(PLAYED, stream=SOUP)
        await first.start()
        port = first.port
        client = SoupClient(SoupClientConfig(port=port, retry_ms=5, retry_ms_max=20), stream=SOUP)

        async def take() -> None:
            async for event in client.events():
                if isinstance(event, SourceReady):
                    received.extend(event.batch)
                else:
                    told.append(event)

        taking = asyncio.ensure_future(take())
        for blocks in whole[:20]:
            first.add(blocks)
        async with asyncio.timeout(120):
            while len(received) < 200:
                await asyncio.sleep(0.001)
            for connection in list(first._connections):
                connection._writer.transport.abort()  # as a killed process does
            await first.close()
            second = SoupPlayer(msgspec.structs.replace(PLAYED, port=port), stream=SOUP)
            for blocks in whole:
                second.add(blocks)
            async with second:
                second.end()
                await taking
        assert received == expected
        assert [*map(without_time, told)] == [
            SessionStarted("PENSTOCK", 1),
            SessionEnded("PENSTOCK", len(expected) + 1),
        ]
        assert client.counters["connections_opened"] == 2

    asyncio.run(run())


def test_a_silent_server_is_given_up_and_a_silent_client_is_too() -> None:
    quick = StreamConfig(ping_ms=50, silence_ms=200, handshake_ms=1_000, linger_ms=100)
    deaf = StreamConfig(ping_ms=60_000, silence_ms=60_000, handshake_ms=1_000, linger_ms=100)

    async def run() -> None:
        async with SoupPlayer(PLAYED, stream=quick) as player:
            client = SoupClient(SoupClientConfig(port=player.port), stream=deaf)
            taking = asyncio.ensure_future(receive_all(client))
            async with asyncio.timeout(120):
                while player.counters.by_cause("connections_closed") != {"silent": 1}:
                    await asyncio.sleep(0.005)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        async with SoupPlayer(PLAYED, stream=deaf) as player:
            client = SoupClient(SoupClientConfig(port=player.port), stream=quick)
            taking = asyncio.ensure_future(receive_all(client))
            async with asyncio.timeout(120):
                while not client.counters.by_cause("connections_closed").get("silent"):
                    await asyncio.sleep(0.005)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    asyncio.run(run())


def test_a_day_is_played_at_its_pace_until_its_end() -> None:
    config = PlayerConfig(protocol="soupbintcp", generate=DAY, rate=50_000)

    async def run() -> None:
        is_stopped = asyncio.Event()
        async with SoupPlayer(config, stream=SOUP) as player:
            running = asyncio.ensure_future(player.run(is_stopped.is_set))
            async with asyncio.timeout(120):
                received, _ = await receive_all(SoupClient(SoupClientConfig(port=player.port), stream=SOUP))
                is_stopped.set()
                await running
        assert [message for _, message in received] == day()

    asyncio.run(run())


def test_beyond_this_machine_a_password_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="need a password"):
        SoupPlayer(PlayerConfig(protocol="soupbintcp", host="0.0.0.0"))
    with pytest.raises(ConfigurationError, match="cannot read the password"):
        SoupPlayer(PlayerConfig(protocol="soupbintcp", username="alice", password_file=str(tmp_path / "none")))
