"""A real adapter process and what can happen to it: garbage, cut links, full disks, slow and revoked subscribers."""

import asyncio
import contextlib
import os
import resource
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest

from integration.command_kit import running
from integration.feed_kit import running_feed
from penstock.base.errors import ConfigurationError, PenstockError
from penstock.base.metrics import Metrics
from penstock.bench.adapters import AdapterProcess, wait_for
from penstock.feed.adapter_config import (
    AdapterConfig,
    AddressConfig,
    JournalCaptureConfig,
    PublishConfig,
    SourceStreamConfig,
)
from penstock.feed.config import ServiceConfig, SynchroniserConfig
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.feed.live.driver import LiveAdapter
from penstock.feed.live.outbound import Outbound
from penstock.feed.live.service_backend import CONTRIBUTION_JUMP_MAX
from penstock.feed.live.sources import SourceStreams
from penstock.middleware import DeliverBatch
from penstock.middleware.core.reserved_topics import DISCONTINUITY_TOPIC
from penstock.middleware.live import MulticastReceiver
from penstock.middleware.unicast import (
    CONNECTION,
    PROTOCOL,
    Contribute,
    Contributed,
    Contribution,
    ImageBegin,
    ImageEnd,
    OpenStream,
    Packets,
    StreamOpened,
    StreamRefused,
    UnicastMessage,
)
from penstock.net.live.control_driver import ControlConnection, connect_control
from penstock.net.udp import free_channel, free_ports, host_socket
from penstock.wire import Extension, Origin, OriginFlag, decode, decode_origin, encode_nack

PATIENCE_SECONDS = 120

Connection: TypeAlias = ControlConnection[UnicastMessage]


@contextlib.asynccontextmanager
async def opened(adapter: AdapterProcess, *topics: str, **options: object) -> AsyncIterator[Connection]:
    port = adapter.facts["service_port"]
    async with await connect_control(PROTOCOL, "127.0.0.1", port, node="test", config=CONNECTION) as connection:
        await connection.send(OpenStream("", list(topics), **options))  # type: ignore[arg-type]
        yield connection


async def until(connection: Connection, is_last: Callable[[UnicastMessage], bool]) -> list[UnicastMessage]:
    """Read messages up to the first one that fulfils the condition."""
    found: list[UnicastMessage] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (found and is_last(found[-1])):
            message = await connection.receive()
            assert message is not None, found
            found.append(message)
    return found


def contents(said: list[UnicastMessage]) -> list[tuple[str, Origin]]:
    packets = [packet for each in said if isinstance(each, Packets) for packet in each.packets]
    return [
        (message.topic, decode_origin(message.extensions[Extension.ORIGIN]))
        for packet in packets
        for message in decode(packet)
    ]


def without_discontinuities(messages: list[tuple[str, Origin]]) -> list[tuple[str, Origin]]:
    """The messages of the feed. An adapter that was paused announces a discontinuity, whose number occurs twice."""
    return [(topic, origin) for topic, origin in messages if topic != DISCONTINUITY_TOPIC]


def packet_count(said: list[UnicastMessage]) -> int:
    return sum(len(each.packets) for each in said if isinstance(each, Packets))


@pytest.mark.spec("FEED-6")
@pytest.mark.spec("SUB-5")
def test_a_stream_over_tcp_begins_with_an_image_and_goes_on_without_a_gap(tmp_path: Path) -> None:
    with running_feed(tmp_path, 1, publish={"transport": "tcp"}) as feed:
        (adapter,) = feed.adapters
        wait_for(lambda: adapter.status().streams[0].next_message_sequence > 3_000, "messages flow")

        async def subscribe() -> tuple[list[UnicastMessage], list[UnicastMessage]]:
            async with opened(adapter, ">", image=True) as connection:
                image = await until(connection, lambda said: isinstance(said, ImageEnd))
                live: list[UnicastMessage] = []
                while packet_count(live) < 50:
                    live += await until(connection, lambda said: isinstance(said, Packets))
                return image, live

        image, live = asyncio.run(subscribe())
        assert isinstance(image[0], StreamOpened)
        assert isinstance(image[1], ImageBegin)
        end = image[-1]
        assert isinstance(end, ImageEnd)
        picture, updates = contents(image), without_discontinuities(contents(live))
        assert {origin.flags & OriginFlag.IMAGE for _, origin in picture} == {OriginFlag.IMAGE}
        numbers = [origin.message_sequence for _, origin in updates]
        assert numbers == list(range(end.positions[0].message_sequence + 1, numbers[-1] + 1))
        assert {topic.split(".")[0] for topic, _ in updates} == {"md"}


def test_only_the_topics_asked_for_come(tmp_path: Path) -> None:
    with running_feed(tmp_path, 1) as feed:

        async def subscribe() -> list[UnicastMessage]:
            said: list[UnicastMessage] = []
            async with opened(feed.adapters[0], "md.us.eq.AAPL.quote", "penstock.nothing") as connection:
                while len(contents(said)) < 20:
                    said += await until(connection, lambda each: isinstance(each, Packets))
            return said

        topics = {topic for topic, _ in contents(asyncio.run(subscribe()))}
        assert topics <= {"md.us.eq.AAPL.quote", DISCONTINUITY_TOPIC}


def udp_ports_of(pid: int) -> set[int]:
    """The receive buffers of a process's UDP sockets on the loopback address."""
    links = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed in the meantime
            links.append(os.readlink(path))
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/udp").read_text().splitlines()[1:]]
    local = [row[1].split(":") for row in rows if row[9] in inodes]
    return {int(port, 16) for address, port in local if address == "0100007F"}


def derived_in(said: list[UnicastMessage]) -> list[tuple[str, int]]:
    return [(topic, origin.source_sequence) for topic, origin in contents(said) if topic.startswith("alpha.")]


@pytest.mark.spec("SUB-3")
def test_a_contribution_appears_under_its_topics(tmp_path: Path) -> None:
    derived = SourceStreamConfig(id=9, name="derived", framing="contribution")
    with running_feed(tmp_path, 1, streams=(derived,)) as feed:
        wait_for(lambda: feed.adapters[0].status().role == "active", "the adapter is active")

        async def contribute() -> list[UnicastMessage]:
            async with (
                opened(feed.adapters[0], "alpha.>") as reader,
                opened(feed.adapters[0]) as writer,
            ):
                await until(reader, lambda said: isinstance(said, StreamOpened))
                await until(writer, lambda said: isinstance(said, StreamOpened))
                messages = [Contribution(f"alpha.{number}", 7, 1, bytes([number])) for number in range(3)]
                await writer.send(Contribute("derived", 1, messages))
                await writer.send(Contribute("derived", 2, [*messages[1:], Contribution("alpha.9", 7, 1, b"new")]))
                confirmed = await until(writer, lambda said: said == Contributed("derived", 5))
                assert Contributed("derived", 4) in confirmed
                async with opened(feed.adapters[0]) as wrong:
                    await wrong.send(Contribute("derived", 6 + CONTRIBUTION_JUMP_MAX, messages))
                    *_, refused = await until(wrong, lambda said: isinstance(said, StreamRefused))
                    assert isinstance(refused, StreamRefused)
                    assert (refused.code, "the position" in refused.reason) == ("contribution", True), refused.reason
                said: list[UnicastMessage] = []
                while len(derived_in(said)) < 4:
                    said += await until(reader, lambda each: isinstance(each, Packets))
                return said

        assert derived_in(asyncio.run(contribute())) == [("alpha.0", 1), ("alpha.1", 2), ("alpha.2", 3), ("alpha.9", 4)]


def test_a_slow_subscriber_is_told_and_cut_off(tmp_path: Path) -> None:
    service = ServiceConfig(open=True, queue_bytes_max=200_000)
    with running_feed(tmp_path, 1, rate=20_000, service=service) as feed:
        adapter = feed.adapters[0]

        async def dawdle() -> UnicastMessage:
            async with opened(adapter, ">") as connection:  # on a busy machine, cut off even before `opened`
                await asyncio.to_thread(
                    wait_for, lambda: "cause=slow" in adapter.log, "the subscriber is cut off", PATIENCE_SECONDS
                )
                return (await until(connection, lambda said: isinstance(said, StreamRefused)))[-1]

        refusal = asyncio.run(dawdle())
        assert isinstance(refusal, StreamRefused)
        assert refusal.code == "slow"
        wait_for(lambda: adapter.status().subscribers == [], "the subscriber is forgotten")


def test_garbage_on_every_port_changes_nothing(tmp_path: Path) -> None:
    with running_feed(tmp_path, 1) as feed:
        (adapter,) = feed.adapters
        wait_for(lambda: adapter.status().streams[0].next_message_sequence > 1_000, "messages flow")
        wait_for(lambda: adapter.status().role == "active", "the adapter is active")
        garbage = bytes(range(256)) * 4
        with host_socket("127.0.0.1") as datagrams:
            for line in feed.exchange.lines:
                for size in (0, 1, 19, 20, 21, 300, 1_024):
                    datagrams.sendto(garbage[:size], (line.group, line.port))
        for port in (adapter.facts["service_port"], adapter.facts["peers_port"]):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(garbage)
                with contextlib.suppress(OSError):
                    while connection.recv(4_096):
                        continue
        before = adapter.status()
        wait_for(
            lambda: adapter.status().streams[0].next_message_sequence > before.streams[0].next_message_sequence + 1_000,
            "further messages",
        )
        assert adapter.status().term == before.term  # no discontinuity
        assert b"packets_dropped" in adapter.page("/metrics")


def test_whoever_asks_for_packets_without_end_does_not_hold_up_the_data(tmp_path: Path) -> None:
    with running_feed(tmp_path, 1) as feed, MulticastReceiver(feed.channels) as receiver:
        (adapter,) = feed.adapters
        wait_for(lambda: adapter.status().streams[0].next_message_sequence > 5_000, "messages flow")
        deliveries = [each for each in receiver.receive(10) if isinstance(each, DeliverBatch)]
        packet = decode(bytes(deliveries[0].messages.packet_data(0)))
        everything = [(first, first + 63) for first in range(1, packet.sequence, 64)][-64:]
        request = encode_nack(packet.publisher_id, packet.group, packet.epoch, everything)
        start = feed.exchange.next_sequence
        with host_socket("127.0.0.1") as asking:
            for port in udp_ports_of(adapter.pid):
                for _ in range(2_000):
                    asking.sendto(request, ("127.0.0.1", port))
        wait_for(lambda: adapter.status().streams[0].next_source_sequence > start + 10_000, "further data", seconds=8)


@pytest.mark.spec("ADM-2")
def test_a_delayed_stream_comes_from_the_journal_exactly_as_late(tmp_path: Path) -> None:
    journal = JournalCaptureConfig(path=str(tmp_path / "journal"))
    with running_feed(tmp_path, 1, journal=journal) as feed:
        adapter = feed.adapters[0]

        async def subscribe(delay_s: int) -> list[UnicastMessage]:
            async with opened(adapter, ">", delay_s=delay_s) as connection:
                said: list[UnicastMessage] = []
                while len(contents(said)) < 200:
                    said += await until(connection, lambda each: isinstance(each, Packets))
                return said

        delayed = contents(asyncio.run(subscribe(1)))
        numbers = [origin.message_sequence for _, origin in without_discontinuities(delayed)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        live = contents(asyncio.run(subscribe(0)))
        assert live[0][1].message_sequence > numbers[-1]


def test_an_adapter_whose_disk_takes_nothing_more_goes_on_and_says_so(tmp_path: Path) -> None:
    journal = JournalCaptureConfig(path=str(tmp_path / "journal"))
    with running_feed(tmp_path, 1, journal=journal) as feed:
        (adapter,) = feed.adapters
        wait_for(lambda: adapter.status().streams[0].next_message_sequence > 1_000, "messages flow")
        assert adapter.status().journal_trouble == ""
        _, hard = resource.prlimit(adapter.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(adapter.pid, resource.RLIMIT_FSIZE, (65_536, hard))
        wait_for(lambda: adapter.status().journal_trouble != "", "the report of the failure")
        before = adapter.status().streams[0].next_message_sequence
        wait_for(lambda: adapter.status().streams[0].next_message_sequence > before + 1_000, "further messages")
        assert b"not recording" in adapter.page("/health")
        resource.prlimit(adapter.pid, resource.RLIMIT_FSIZE, (hard, hard))
        wait_for(lambda: adapter.status().journal_trouble == "", "the adapter to record again")


@pytest.mark.spec("FEED-5")
def test_health_is_readable_as_status_and_as_metrics(tmp_path: Path) -> None:
    with running_feed(tmp_path, 1) as feed:
        (adapter,) = feed.adapters
        wait_for(lambda: adapter.status().health.messages_per_s > 0, "a measured message rate")
        status = adapter.status()
        assert 0 < status.health.memory_free <= 1
        assert 0 < status.score <= 1_000
        metrics = adapter.page("/metrics").decode()
        for name in ("memory_free_ratio", "cpu_free_ratio", "errors_per_second", "messages_per_second", "lag_seconds"):
            assert f"penstock_adapter_{name} " in metrics
        wait_for(lambda: b"active" in adapter.page("/health"), "the only adapter is active, and says so")


def written(generator: ItchGenerator, day: Path) -> Path:
    with day.open("wb") as file:
        while blocks := bytes(generator.blocks()):
            file.write(blocks)
    return day


def test_a_file_is_replayed_like_any_other_source(tmp_path: Path) -> None:
    generator = ItchGenerator(GeneratorConfig(symbols=5, messages=3_000))
    day = written(generator, tmp_path / "day.itch")
    replay = SourceStreamConfig(id=2, name="replay", framing="file", url=str(day))
    with running_feed(tmp_path, 1, streams=(replay,)) as feed:
        (adapter,) = feed.adapters
        wait_for(
            lambda: adapter.status().streams[1].next_source_sequence == generator.next_sequence,
            "full conversion",
        )
        assert adapter.status().streams[1].next_message_sequence > 1_000


def replaying(directory: Path, path: Path) -> AdapterConfig:
    return AdapterConfig(
        name="a-0",
        feed="itch",
        table="itch",
        streams=(SourceStreamConfig(id=1, name="replay", framing="file", url=str(path)),),
        publish=PublishConfig(channel=free_channel()),
        sync=SynchroniserConfig(startup_ms=600_000),
        service=ServiceConfig(open=True),
        state_directory=str(directory / "state"),
    )


@pytest.mark.spec("DAY-2")
def test_a_replayed_file_without_a_date_is_refused_at_the_start(tmp_path: Path) -> None:
    """The times of the file count from midnight: without a date the adapter would publish events of 1970."""
    day = written(ItchGenerator(GeneratorConfig(symbols=5, messages=100)), tmp_path / "day.itch")
    with pytest.raises(ConfigurationError, match=r"day\.itch: the table 'itch' needs a date") as caught:
        SourceStreams(replaying(tmp_path, day), Metrics())
    assert "set trading_date of the adapter a-0" in caught.value.hint
    (tmp_path / "day.dbn").write_bytes(b"DBN\x02\x40\0\0\0GLBX.MDP3" + bytes(60))
    with pytest.raises(ConfigurationError, match="this is Databento Binary Encoding"):
        SourceStreams(replaying(tmp_path, tmp_path / "day.dbn"), Metrics())


def test_an_adapter_whose_data_thread_fails_ends_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay, which waits for the data thread repeatedly, ends as well."""
    is_broken, tick = threading.Event(), Outbound.tick
    day = written(ItchGenerator(GeneratorConfig(symbols=5, messages=100)), tmp_path / "day.itch")

    def fail_once_broken(outbound: Outbound, now_ns: int) -> None:
        if is_broken.is_set():
            raise OSError("on purpose")
        tick(outbound, now_ns)

    monkeypatch.setattr(Outbound, "tick", fail_once_broken)
    config = msgspec.structs.replace(replaying(tmp_path, day), trading_date="2026-01-30")

    async def live() -> None:
        adapter = LiveAdapter(config)
        await adapter.node.start()
        is_broken.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "penstock-replay" in [each.name for each in threading.enumerate()]:
                await asyncio.sleep(0.01)
            await adapter.node.run(asyncio.Event())

    with pytest.raises(OSError, match="on purpose"):
        asyncio.run(live())


def sockets_open() -> list[str]:
    paths = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    links = [os.readlink(path) for path in paths if os.path.lexists(path)]
    return [link for link in links if link.startswith(("socket", "anon_inode:[eventfd"))]


@pytest.mark.parametrize("place", ["metrics", "service"])
def test_an_adapter_whose_port_is_in_use_leaves_nothing_open(tmp_path: Path, place: str) -> None:
    day = written(ItchGenerator(GeneratorConfig(symbols=5, messages=100)), tmp_path / "day.itch")
    config = msgspec.structs.replace(replaying(tmp_path, day), trading_date="2026-01-30")

    async def live() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            before = sockets_open()
            ports = {"metrics_port": port} if place == "metrics" else {"service": ServiceConfig(open=True, port=port)}
            adapter = LiveAdapter(msgspec.structs.replace(config, **ports))
            assert len(sockets_open()) > len(before)
            with pytest.raises(ConfigurationError, match="cannot listen"):
                await adapter.node.start()
            assert len(sockets_open()) == len(before)
        assert not [each.name for each in threading.enumerate() if each.name.startswith("penstock-replay")]

    asyncio.run(live())


def test_a_soupbintcp_server_is_a_source_like_any_other(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    soup = SourceStreamConfig(
        id=3, name="soup", framing="soupbintcp", server=AddressConfig(host="127.0.0.1", port=port), user="demo"
    )
    command = ["feed", "play", "--soup", "--port", str(port), "--messages", "2000", "--symbols", "5", "--speed", "0"]
    with running(*command), running_feed(tmp_path, 1, streams=(soup,)) as feed:
        (adapter,) = feed.adapters
        wait_for(lambda: adapter.status().streams[1].next_source_sequence > 2_000, "full conversion")


def test_sigterm_ends_it_in_order(tmp_path: Path) -> None:
    with running_feed(tmp_path, 1) as feed:
        assert feed.adapters[0].stop() == 0
        assert "Traceback" not in feed.adapters[0].log


def test_a_configuration_that_serves_nobody_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(PenstockError, match="no subscriber could connect"),
        running_feed(tmp_path, 1, service=ServiceConfig()),
    ):
        raise AssertionError("the adapter was started with an invalid configuration")
