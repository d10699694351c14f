"""Repeated kill -9 of the active one of two adapters, measured at a subscriber that merges both; then of nodes that
clients depend on (nodes.py).
"""

import contextlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.errors import ProcessError
from penstock.bench.adapters import COMMAND, AdapterProcess, die_with_parent, is_synchronised_pair, wait_for
from penstock.bench.failover import nodes
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
from penstock.feed.config import ServiceConfig, SynchroniserConfig
from penstock.middleware import PublisherConfig, ReceiverConfig
from penstock.net.udp import Channel, free_channel, free_ports

KILLS = 20
RATE = 50_000
SYMBOLS = 100
MESSAGES = 50_000_000
UNDISTURBED_SECONDS = 1.5
AFTER_SECONDS = 1.0
RETURN_SECONDS = 180.0
REACH_SECONDS = 30.0
END = -1
HALF_NS = NS_PER_SECOND // 2
PATIENT_PUBLISHER = PublisherConfig(
    repair_packets_max=64, retransmission_packets_max=1 << 17, retransmission_bytes_max=256 << 20
)
PATIENT_RECEIVER = ReceiverConfig(window_packets_max=1 << 17, window_bytes_max=256 << 20)
PATIENT_PEERS = SynchroniserConfig(active_lost_ms=5_000)
"""A long timeout, so that a busy machine does not lose its peer; a killed process is detected at once by its closed
connection.
"""

CONDITIONS = (
    f"{KILLS} times kill -9 of the active one of two adapter processes, {RATE} source messages per second on lines A "
    "and B, loopback multicast; a subscriber process merges both streams; the killed adapter returns as a synchronised "
    "backup before the next kill"
)


LAG_MAX_NS = 100 * NS_PER_MS
"""Maximum lag of the subscriber at a kill. A slower subscriber still reads earlier messages of the killed adapter and
does not notice the kill, so the run is invalid.
"""


class Run(msgspec.Struct):
    """Results of a run, with times on the monotonic clock."""

    kills_ns: list[int] = []
    lags_ns: list[int] = []
    """Lag of the subscriber behind the active adapter just before each kill."""

    undisturbed_ns: list[int] = []
    """Starts of undisturbed seconds."""

    book: Book = msgspec.field(default_factory=Book)
    """The subscriber's record of deliveries."""


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as directory:
        measured = _measure(Path(directory))
    book, lag_ns = measured.book, statistics.median(measured.lags_ns)
    lags = f"{lag_ns / NS_PER_MS:.1f} ms (median; {max(measured.lags_ns) / NS_PER_MS:.1f} ms at most)"
    conditions = f"{CONDITIONS}; {book.messages} messages delivered, the subscriber {lags} behind at the kills"
    if lag_ns > LAG_MAX_NS:
        conditions = f"NOT VALID, the subscriber was too far behind; {conditions}"
    discontinuities = len(book.discontinuities)
    for metric, value, unit in (
        ("lost", book.lost, "messages"),
        ("duplicated", book.duplicated, "messages"),
        ("discontinuities", discontinuities, "announcements"),
    ):
        yield result("failover", metric, value, unit, against="the goal", against_value=0, conditions=conditions)
    yield _gap_ratio(measured, conditions)
    yield from nodes.run()


def _gap_ratio(measured: Run, conditions: str) -> Result:
    book = measured.book
    at_kill = [book.longest_gap_ns(kill - HALF_NS, kill + HALF_NS) for kill in measured.kills_ns]
    at_rest = [book.longest_gap_ns(start, start + NS_PER_SECOND) for start in measured.undisturbed_ns]
    killed, rest = statistics.median(at_kill), statistics.median(at_rest)
    return result(
        "failover",
        "gap_ratio",
        killed / rest,
        "ratio",
        against=f"{killed / NS_PER_MS:.2f} ms in the second around a kill, else {rest / NS_PER_MS:.2f} ms, medians",
        against_value=1,
        conditions=conditions,
    )


def _measure(directory: Path) -> Run:
    lines, channels = (free_channel(), free_channel()), [free_channel(), free_channel()]
    (requests,) = free_ports(1)
    measured = Run()
    with contextlib.ExitStack() as stack:
        pair = [stack.enter_context(each) for each in adapter_pair(directory, lines, requests, channels)]
        stack.enter_context(player(lines, requests))
        wait_for(lambda: is_synchronised_pair(*pair) or is_synchronised_pair(*pair[::-1]), "two adapters in step")
        pipe = stack.enter_context(other_process(_subscribe, channels))
        pipe.recv()  # the subscriber is listening
        for _ in range(KILLS):
            time.sleep(UNDISTURBED_SECONDS)
            slept_ns = round(UNDISTURBED_SECONDS * NS_PER_SECOND)
            measured.undisturbed_ns.append(time.monotonic_ns() - slept_ns + NS_PER_SECOND // 4)
            active, backup = pair if pair[0].status().role == "active" else pair[::-1]
            measured.lags_ns.append(_lag_ns(active, pipe))
            measured.kills_ns.append(active.kill())
            time.sleep(AFTER_SECONDS)
            active.start()
            wait_for(
                lambda: is_synchronised_pair(backup, active),  # noqa: B023
                "the killed adapter is back and in step",
                RETURN_SECONDS,
            )
        _lag_ns(backup, pipe)  # all earlier messages must have arrived
        pipe.send(END)
        measured.book = pipe.recv()
    return measured


def _lag_ns(adapter: AdapterProcess, pipe: Connection) -> int:
    """Return how long the subscriber takes to reach the adapter's position, including the query of the adapter."""
    asked_ns = time.monotonic_ns()
    pipe.send(adapter.status().streams[0].next_message_sequence - 1)
    if not pipe.poll(REACH_SECONDS):
        raise ProcessError(
            f"the subscriber did not reach the position of {adapter.config.name} within {REACH_SECONDS:g} s"
        )
    reached_ns: int = pipe.recv()
    return reached_ns - asked_ns


def adapter_pair(
    directory: Path, lines: tuple[Channel, Channel], requests: int, channels: list[Channel]
) -> list[AdapterProcess]:
    source = SourceStreamConfig(
        id=1,
        name="itch",
        lines=tuple(LineAddress(group=each.group, port=each.port, interface=each.interface) for each in lines),
        request=AddressConfig(host="127.0.0.1", port=requests),
    )
    ports = free_ports(len(channels))
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
    """Run the exchange as a process."""
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
    """Report when a given number has been reached; END ends the process."""
    subscriber = MergingSubscriber(channels, PATIENT_RECEIVER)
    pipe.send("listening")
    number: int | None = None
    while number != END:
        subscriber.take()
        if number is None and pipe.poll():
            number = pipe.recv()
        if number is not None and number != END and subscriber.book.last_number >= number:
            pipe.send(time.monotonic_ns())
            number = None
    pipe.send(subscriber.book)
    subscriber.close()
