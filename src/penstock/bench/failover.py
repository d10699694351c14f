"""kill -9 of the active of two adapters, again and again, and what a subscriber that merges both saw of it."""

import contextlib
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.bench.adapters import COMMAND, AdapterProcess, die_with_parent, is_synchronised_pair, wait_for
from penstock.bench.harness import Result, result
from penstock.bench.merging import Book, MergingSubscriber
from penstock.bench.transports import other_process
from penstock.feed.adapter_config import (
    AdapterConfig,
    AddressConfig,
    LineAddress,
    PeerConfig,
    PeersConfig,
    PublishConfig,
    SourceStreamConfig,
)
from penstock.feed.config import SynchroniserConfig
from penstock.feed.service_config import ServiceConfig
from penstock.middleware import PublisherConfig, ReceiverConfig
from penstock.net.udp import Channel, free_channel

KILLS = 20
RATE = 50_000
SYMBOLS = 100
MESSAGES = 50_000_000
UNDISTURBED_SECONDS = 1.5
AFTER_SECONDS = 1.0
RETURN_SECONDS = 180.0
HALF_NS = NS_PER_SECOND // 2
PATIENT_PUBLISHER = PublisherConfig(
    repair_packets_max=64, retransmission_packets_max=1 << 17, retransmission_bytes_max=256 << 20
)
PATIENT_RECEIVER = ReceiverConfig(window_packets_max=1 << 17, window_bytes_max=256 << 20)
PATIENT_PEERS = SynchroniserConfig(active_lost_ms=5_000)
"""So that a machine that is busy with something else for a while loses nothing by it, and takes nobody for dead; a
killed process is known by its connection's end at once."""

CONDITIONS = (
    f"{KILLS} times kill -9 of the active of two adapters (processes), {RATE} source messages a second over lines A "
    "and B, loopback multicast; a subscriber (process) merges both; the killed one returns as a synchronised backup "
    "before the next"
)


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as directory:
        book, kills, undisturbed = _measure(Path(directory))
    at_kill = [book.longest_gap_ns(kill - HALF_NS, kill + HALF_NS) for kill in kills]
    at_rest = [book.longest_gap_ns(start, start + NS_PER_SECOND) for start in undisturbed]
    announced = len(book.discontinuities)
    conditions = f"{CONDITIONS}; {book.messages} messages delivered, {announced} discontinuities announced"
    for metric, value in (("lost", book.lost), ("duplicated", book.duplicated)):
        yield result("failover", metric, value, "messages", against="the goal", against_value=0, conditions=conditions)
    killed, rest = statistics.median(at_kill), statistics.median(at_rest)
    yield result(
        "failover",
        "gap_ratio",
        killed / rest,
        "ratio",
        against=f"{killed / NS_PER_MS:.2f} ms in the second around a kill over {rest / NS_PER_MS:.2f} ms, medians",
        against_value=1,
        conditions=conditions,
    )


def _measure(directory: Path) -> tuple[Book, list[int], list[int]]:
    """What the subscriber saw, when the kills were, and when undisturbed seconds began."""
    lines, channels = (free_channel(), free_channel()), [free_channel(), free_channel()]
    requests = free_port(socket.SOCK_DGRAM)
    kills: list[int] = []
    undisturbed: list[int] = []
    with contextlib.ExitStack() as stack:
        pair = [stack.enter_context(each) for each in adapter_pair(directory, lines, requests, channels)]
        stack.enter_context(player(lines, requests))
        wait_for(lambda: is_synchronised_pair(*pair) or is_synchronised_pair(*pair[::-1]), "two adapters in step")
        pipe = stack.enter_context(other_process(_subscribe, channels))
        pipe.recv()  # it listens
        for _ in range(KILLS):
            time.sleep(UNDISTURBED_SECONDS)
            undisturbed.append(time.monotonic_ns() - round(UNDISTURBED_SECONDS * NS_PER_SECOND) + NS_PER_SECOND // 4)
            active, backup = pair if pair[0].status().role == "active" else pair[::-1]
            kills.append(active.kill())
            time.sleep(AFTER_SECONDS)
            active.start()
            wait_for(
                lambda: is_synchronised_pair(backup, active),  # noqa: B023
                "the killed adapter is back and in step",
                RETURN_SECONDS,
            )
        pipe.send("stop")
        book: Book = pipe.recv()
    return book, kills, undisturbed


def adapter_pair(
    directory: Path, lines: tuple[Channel, Channel], requests: int, channels: list[Channel]
) -> list[AdapterProcess]:
    source = SourceStreamConfig(
        id=1,
        name="itch",
        lines=tuple(LineAddress(group=each.group, port=each.port, interface=each.interface) for each in lines),
        request=AddressConfig(host="127.0.0.1", port=requests),
    )
    ports = [free_port(socket.SOCK_STREAM) for _ in channels]
    return [
        AdapterProcess(
            AdapterConfig(
                name=f"adapter-{index}",
                feed="itch",
                index=index,
                table="itch",
                trading_date="2026-01-30",
                streams=(source,),
                publish=PublishConfig(channel=channel, publisher=PATIENT_PUBLISHER),
                peers=PeersConfig(port=ports[index], others=(PeerConfig(index=1 - index, port=ports[1 - index]),)),
                sync=PATIENT_PEERS,
                service=ServiceConfig(open=True),
                state_directory=str(directory / f"state-{index}"),
            ),
            directory,
        )
        for index, channel in enumerate(channels)
    ]


@contextlib.contextmanager
def player(lines: tuple[Channel, Channel], requests: int) -> Iterator[None]:
    """The exchange, as a process."""
    options = ["--rate", str(RATE), "--symbols", str(SYMBOLS), "--messages", str(MESSAGES)]
    process = subprocess.Popen(
        [*COMMAND, "feed", "play", str(lines[0]), str(lines[1]), "--request-port", str(requests), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _subscribe(channels: list[Channel], pipe: Connection) -> None:
    subscriber = MergingSubscriber(channels, PATIENT_RECEIVER)
    pipe.send("listening")
    while not pipe.poll():
        subscriber.take()
    pipe.send(subscriber.book)
    subscriber.close()


def free_port(kind: socket.SocketKind) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
