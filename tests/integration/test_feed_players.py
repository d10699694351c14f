"""Players and receivers on real sockets: lines with loss, requests, logins, garbage, servers that die."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.base.errors import ConfigurationError, RefusedError
from penstock.feed.config import LineConfig
from penstock.feed.formats import MoldUDP64
from penstock.feed.formats.mold import encode_header
from penstock.feed.generator import GeneratorConfig, ItchGenerator
from penstock.feed.history import Pace, Piece, pieces
from penstock.feed.line_driver import LineReceiver
from penstock.feed.lines import SessionEnded, SessionStarted, SourceLost, SourceReady
from penstock.feed.mold_player import MoldPlayer, MoldPlayerConfig
from penstock.feed.soup_client import SoupClient, SoupClientConfig
from penstock.feed.soup_player import SoupPlayer, SoupPlayerConfig
from penstock.net.config import StreamConfig
from penstock.net.udp import free_channel
from waiting import wait_until

DAY = GeneratorConfig(seed=5, symbols=20, messages=4_000)
GARBAGE = [b"GET / HTTP/1.1\r\n\r\n" * 4_000, b"\0\0\0", b"\0\x01R", b"\0\x2fL" + b"\xff" * 46]
SOUP = StreamConfig(ping_ms=50, silence_ms=2_000, handshake_ms=1_000, linger_ms=200)


def tape(size_max: int) -> Iterator[Piece]:
    generator = ItchGenerator(DAY)
    return pieces(iter(lambda: generator.blocks(500), b""), size_max)


def day() -> list[bytes]:
    return list(ItchGenerator(DAY))


def run_in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.spec("FEED-1", "FEED-7")
@pytest.mark.parametrize(("loss_a", "loss_b"), [(0.0, 0.0), (1.0, 0.0), (0.3, 0.3)])
def test_two_lines_with_loss_and_a_request_server_give_every_message_once(loss_a: float, loss_b: float) -> None:
    config = MoldPlayerConfig(
        line_a=free_channel(), line_b=free_channel(), request_port=0, loss_a=loss_a, loss_b=loss_b, heartbeat_ms=20
    )
    assert config.line_b is not None
    with MoldPlayer(config) as player:
        receiver = LineReceiver(
            [config.line_a, config.line_b],
            MoldUDP64(),
            request_address=player.request_address,
            config=LineConfig(join="start", request_attempts_max=20, window_messages_max=2**20),
        )
        is_done = threading.Event()

        def play() -> None:
            player.play(tape(player.piece_size), Pace(rate=20_000))
            player.end()
            while not is_done.is_set():
                player.serve(10_000_000)

        thread = run_in_thread(play)
        received: list[bytes] = []
        told: list[object] = []

        def take() -> bool:
            for event in receiver.receive(0.2):
                if isinstance(event, SourceReady):
                    received.extend(message for _, message in event.batch)
                else:
                    told.append(event)
            return any(isinstance(each, SessionEnded) for each in told)

        with receiver:
            wait_until(take)
        is_done.set()
        thread.join(10)
    expected = day()
    assert received == expected
    assert SessionStarted("PENSTOCK", 1) in told
    assert not [each for each in told if isinstance(each, SourceLost)]
    if loss_a and loss_b:
        assert player.counters["retransmissions_served"] > 0
        assert receiver.counters["retransmissions_requested"] > 0


def test_the_request_server_answers_only_good_requests() -> None:
    with (
        MoldPlayer(MoldPlayerConfig(line_a=free_channel(), line_b=None, request_port=0)) as player,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker,
    ):
        player.play(tape(player.piece_size), Pace())
        asker.connect(player.request_address)
        asker.settimeout(5)
        bad = [b"", b"x" * 19, b"y" * 21, encode_header("other", 1, 5), encode_header("PENSTOCK", 0, 5)]
        for data in [*bad, encode_header("PENSTOCK", 10**9, 1), encode_header("PENSTOCK", 7, 3)]:
            asker.send(data)
        wait_until(lambda: player.serve(10_000_000) or player.counters["retransmissions_served"] == 1)
        answer = MoldUDP64().decode(asker.recv(65_536))
        assert (answer.first_sequence, answer.messages) == (7, day()[6:9])
        assert player.counters["packets_dropped"] == 4
        assert player.counters["retransmissions_unavailable"] == 2


def test_a_taken_port_is_said_so() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ConfigurationError, match="choose another port"):
            MoldPlayer(MoldPlayerConfig(request_port=taken.getsockname()[1]))


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
        async with SoupPlayer(SoupPlayerConfig(port=0), stream=SOUP) as player:
            await player.play(tape(1_000), Pace())
            from_start = asyncio.ensure_future(receive_all(SoupClient(SoupClientConfig(port=player.port), stream=SOUP)))
            late = asyncio.ensure_future(
                receive_all(SoupClient(SoupClientConfig(port=player.port, sequence=4_000), stream=SOUP))
            )
            await asyncio.sleep(0)
            player.end()
            async with asyncio.timeout(20):
                whole, told = await from_start
                rest, _ = await late
        expected = list(enumerate(day(), 1))
        assert whole == expected
        assert rest == expected[3_999:]
        assert told == [SessionStarted("PENSTOCK", 1), SessionEnded("PENSTOCK", len(expected) + 1)]

    asyncio.run(run())


def test_a_wrong_password_is_refused_and_not_tried_again() -> None:
    async def run() -> None:
        async with SoupPlayer(SoupPlayerConfig(port=0), stream=SOUP) as player:
            for wrong in ({"password": "guess"}, {"user": "eve"}, {"session": "yesterday"}):
                client = SoupClient(SoupClientConfig(port=player.port, **wrong), stream=SOUP)  # type: ignore[arg-type]
                with pytest.raises(RefusedError) as refused:
                    await receive_all(client)
                assert refused.value.peer_code == ("S" if "session" in wrong else "A")
            assert player.counters.by_cause("connections_refused") == {"authentication": 3}
            assert "demo" not in repr(SoupPlayerConfig()).replace("user='demo'", "")

    asyncio.run(run())


@pytest.mark.spec("FEED-8")
@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n" * 4_000, b"\0\0\0", b"\0\x01R", b"\0\x2fL" + b"\xff" * 46]
)
def test_garbage_on_the_port_is_refused_and_others_are_served(garbage: bytes) -> None:
    async def run() -> None:
        async with SoupPlayer(SoupPlayerConfig(port=0), stream=SOUP) as player:
            reader, writer = await asyncio.open_connection("127.0.0.1", player.port)
            writer.write(garbage)
            async with asyncio.timeout(10):
                while await reader.read(4_096):
                    continue
            writer.close()
            assert player.counters.by_cause("connections_refused") == {"handshake": 1}
            await player.play(tape(1_000), Pace())
            player.end()
            received, _ = await receive_all(SoupClient(SoupClientConfig(port=player.port), stream=SOUP))
        assert len(received) == len(day())

    asyncio.run(run())


@pytest.mark.spec("FEED-7")
def test_a_server_that_dies_and_comes_back_costs_no_message_and_repeats_none() -> None:
    async def run() -> None:
        expected = list(enumerate(day(), 1))
        whole = list(tape(1_000))
        received: list[tuple[int, bytes]] = []
        told: list[object] = []
        first = SoupPlayer(SoupPlayerConfig(port=0), stream=SOUP)
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
        await first.play(whole[:20], Pace())
        async with asyncio.timeout(20):
            while len(received) < 200:
                await asyncio.sleep(0.001)
            for connection in list(first._connections):
                connection._writer.transport.abort()  # as a killed process does
            await first.close()
            second = SoupPlayer(SoupPlayerConfig(port=port), stream=SOUP)
            for piece in whole[:20]:
                second.history.add(piece)  # what the session had so far
            async with second:
                await second.play(whole[20:], Pace())
                second.end()
                await taking
        assert received == expected
        assert told == [SessionStarted("PENSTOCK", 1), SessionEnded("PENSTOCK", len(expected) + 1)]
        assert client.counters["connections_opened"] == 2

    asyncio.run(run())


def test_a_silent_server_is_given_up_and_a_silent_client_is_too() -> None:
    quick = StreamConfig(ping_ms=50, silence_ms=200, handshake_ms=1_000, linger_ms=100)
    deaf = StreamConfig(ping_ms=60_000, silence_ms=60_000, handshake_ms=1_000, linger_ms=100)

    async def run() -> None:
        async with SoupPlayer(SoupPlayerConfig(port=0), stream=quick) as player:
            client = SoupClient(SoupClientConfig(port=player.port), stream=deaf)
            taking = asyncio.ensure_future(receive_all(client))
            async with asyncio.timeout(10):
                while player.counters.by_cause("connections_closed") != {"silent": 1}:
                    await asyncio.sleep(0.005)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        async with SoupPlayer(SoupPlayerConfig(port=0), stream=deaf) as player:
            client = SoupClient(SoupClientConfig(port=player.port), stream=quick)
            taking = asyncio.ensure_future(receive_all(client))
            async with asyncio.timeout(10):
                while not client.counters.by_cause("connections_closed").get("silent"):
                    await asyncio.sleep(0.005)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    asyncio.run(run())


def test_beyond_this_machine_the_default_password_is_not_enough() -> None:
    with pytest.raises(ConfigurationError, match="choose a password"):
        SoupPlayer(SoupPlayerConfig(host="0.0.0.0", port=0))
