"""Latency of a live adapter from a datagram's arrival to the sending of its messages."""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from penstock.base.clock import NS_PER_US
from penstock.bench.adapters import AdapterProcess, wait_for
from penstock.bench.failover.bench import adapter_pair
from penstock.bench.harness import Result, result
from penstock.bench.transports import ALL_CORES, pin
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.feed.formats.mold import encode_packet
from penstock.net.udp import Channel, Outlet, free_channel, host_socket

RATE = 10_000
MESSAGES = 60_000
SYMBOLS = 100
SENDS = 20_000


def run() -> Iterator[Result]:
    cores = sorted(ALL_CORES)
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        lines = (free_channel(), free_channel())
        config = adapter_pair(Path(directory), lines, 1, [free_channel(), free_channel()])[0].config
        spinning = msgspec.structs.replace(config, spin=True, cpu=cores[-1])
        adapter = stack.enter_context(AdapterProcess(spinning, Path(directory)))
        pin(cores[0])
        wait_for(lambda: adapter.status().role == "active", "the adapter to become active")
        send_at_rate(lines)
        wait_for(
            lambda: adapter.status().streams[0].next_source_sequence > MESSAGES * 9 // 10,
            "all messages to be converted",
        )
        p50_ns = adapter.status().latency_us["p50"] * NS_PER_US
        bare_ns = bare_send_ns(config.publish.channel)
    yield result(
        "feed",
        "adapter_ns_p50",
        p50_ns,
        "ns",
        against="sending a single packet of this size, median",
        against_value=bare_ns,
        conditions=(
            f"one adapter process, its data thread spinning on one of {len(cores)} cores; {MESSAGES} ITCH messages in "
            f"MoldUDP64 packets of one message, {RATE} per second on lines A and B, loopback multicast; from the "
            "read of all sockets of the stream, the datagram's own socket first, until the messages are sent and "
            "local subscribers notified"
        ),
    )


def send_at_rate(lines: tuple[Channel, Channel]) -> None:
    with host_socket("127.0.0.1") as sending:
        outlet = Outlet(sending.fileno())
        start = time.perf_counter()
        messages = ItchGenerator(GeneratorConfig(symbols=SYMBOLS, messages=MESSAGES))
        for number, message in enumerate(messages):
            packet = encode_packet("BENCH", number + 1, [message])
            while time.perf_counter() < start + number / RATE:
                continue
            for line in lines:
                outlet.send(line.key, packet)
        outlet.close()


def bare_send_ns(channel: Channel) -> float:
    """Measure the lower bound: the operating system's cost of sending one datagram with the size of a quote."""
    with host_socket(channel.interface) as sending:
        outlet = Outlet(sending.fileno())
        packet = bytes(232)
        times = []
        for _ in range(SENDS):
            started = time.perf_counter_ns()
            outlet.send(channel.key, packet)
            times.append(time.perf_counter_ns() - started)
        outlet.close()
    return statistics.median(times)
