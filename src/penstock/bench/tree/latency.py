"""Latency of a message from a publisher through root, intermediate and leaf to a subscriber."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy

from penstock.bench.harness import Result, result
from penstock.bench.transports import ALL_CORES, PAYLOAD_SIZE, check, now, other_process, stamp
from penstock.bench.tree.party import BareParty, run_party
from penstock.bench.tree.process import running_chain
from penstock.bench.tree.rate import PUBLISHER, SYMBOLS, topic_of
from penstock.tree.core.infostream import id_of
from penstock.tree.core.kernel._frame import KIND_PUBLISHED, encode_block, split_packets
from penstock.tree.core.kernel._number import encode_published

ROUNDS = 5
RATE = 10_000
MESSAGES = 20_000
WARM_UP = 2_000
INTERVAL_NS = 1_000_000_000 // RATE
LOOK_EACH = 100
"""Number of messages between two checks for the end."""
PAYLOAD_AT = -PAYLOAD_SIZE
"""Position of the payload, at the end of a packet."""

CONDITIONS = (
    f"publisher, root, intermediate, leaf and subscriber in separate processes on {len(ALL_CORES)} cores, over "
    f"loopback; {RATE} messages of {PAYLOAD_SIZE} bytes per second, by an absolute schedule, one at a time, each in "
    "the root's journal (persist = written) before it is distributed; from before a message is made until its bytes "
    f"arrive; median of {ROUNDS} rounds of {MESSAGES}"
)


def run() -> Iterator[Result]:
    medians, highs = [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            taken = measured(Path(folder))
        medians.append(float(numpy.percentile(taken, 50)) / 1_000)
        highs.append(float(numpy.percentile(taken, 99)) / 1_000)
    conditions = f"{CONDITIONS}; quietest round {min(medians):.0f} us"
    for metric, values in (("one_way_us_p50", medians), ("one_way_us_p99", highs)):
        yield result(
            "tree",
            metric,
            statistics.median(values),
            "us",
            against="the goal of the median",
            against_value=300.0,
            conditions=conditions,
        )


def measured(folder: Path) -> list[int]:
    with (
        running_chain(folder, "middle", "leaf") as agents,
        other_process(_subscribe, agents[-1].place, MESSAGES + WARM_UP) as subscriber,
        other_process(publish_steadily, agents[0].place, MESSAGES + WARM_UP, INTERVAL_NS) as publisher,
    ):
        check(subscriber.recv() == "ready" and publisher.recv() == "ready", "the parties did not start")
        publisher.send("go")
        taken: list[int] = subscriber.recv()
        return taken[WARM_UP:]


def publish_steadily(place: str, messages: int, interval_ns: int, orders: Connection) -> None:
    """Publish by an absolute schedule from the start order until all are sent, or another order arrives."""
    run_party(_publish(place, messages, interval_ns, orders))


async def _publish(place: str, messages: int, interval_ns: int, orders: Connection) -> None:
    party = BareParty(PUBLISHER, "publisher")
    await party.connect(place)
    orders.send("ready")
    orders.recv()
    party.without_pings()
    # In a thread: the loop's clock has a resolution of milliseconds, which would cause bursts.
    await asyncio.to_thread(_write_steadily, party, messages, interval_ns, orders)
    while party.through < messages and not orders.poll():
        await asyncio.sleep(0.01)
    await party.close()


def _write_steadily(party: BareParty, messages: int, interval_ns: int, orders: Connection) -> None:
    payload, publisher_id = bytearray(PAYLOAD_SIZE), id_of(PUBLISHER)
    topics = [topic_of(number) for number in range(SYMBOLS)]
    due_ns = now()
    for number in range(1, messages + 1):
        due_ns += interval_ns
        if (left_ns := due_ns - now()) > 0:
            time.sleep(left_ns / 1e9)
        if number % LOOK_EACH == 0 and orders.poll():
            return
        stamp.pack_into(payload, 0, now())
        packet = encode_published(publisher_id, number, 0, topics[number % SYMBOLS], payload)
        party.write_now(encode_block(packet, kind=KIND_PUBLISHED))


def _subscribe(place: str, messages: int, orders: Connection) -> None:
    run_party(_listen(place, messages, orders))


async def _listen(place: str, messages: int, orders: Connection) -> None:
    taken_ns: list[int] = []
    done = asyncio.Event()

    def taken(packets: bytes) -> None:
        at_ns = now()
        taken_ns.extend(at_ns - sent_ns(each) for each in split_packets(packets) if is_of_a_stream(each))
        if len(taken_ns) >= messages:
            done.set()

    party = BareParty("subscriber", "subscriber", taken)
    await party.connect(place)
    await party.subscribe()
    orders.send("ready")
    await asyncio.wait_for(done.wait(), 30 + messages * INTERVAL_NS / 1e9)
    orders.send(taken_ns)
    await party.close()


def is_of_a_stream(packet: bytes) -> bool:
    """True for packets of a stream, false for the infostream, whose group is 0."""
    return packet[24:28] != bytes(4)


def sent_ns(packet: bytes) -> int:
    found: int = stamp.unpack_from(packet, len(packet) + PAYLOAD_AT)[0]
    return found
