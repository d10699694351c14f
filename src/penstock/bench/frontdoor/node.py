"""A publisher's messages through a distribution node of the same host, to a reader of its ring.

Runs by itself, too: python -m penstock.bench.frontdoor.node
"""

import statistics
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from penstock.base.clock import NS_PER_SECOND
from penstock.bench.engine.edge import running_node
from penstock.bench.harness import Result, result
from penstock.bench.ticker import Ticker
from penstock.bench.transports import check, now, other_process, stamp
from penstock.engine.client import open_messages
from penstock.middleware.live import MulticastPublisher
from penstock.model import shipped
from penstock.net.udp import Channel, free_channel
from penstock.plant.config import PlantAccess, PlantConfig

TOPIC = "md.us.eq.AAPL.quote"
RATE = 10_000
ROUNDS = 5
MESSAGES = 20_000
WARM_UP = 2_000
END_SECONDS = 0.2
"""Interval of the messages that tell the reader the end."""
GOAL_NS = 25_000
QUOTE = shipped("quote")


def run() -> Iterator[Result]:
    rounds = [_measure() for _ in range(ROUNDS)]
    conditions = (
        f"publisher, ticker plant and reader in processes of their own on one host, multicast to the plant, a ring to "
        f"the reader; quotes of {QUOTE.record_size} bytes of one item; plant and reader block, one publish() and one "
        f"step of a `for` loop per message; {RATE} messages/s, the sender sleeps; {ROUNDS} rounds of {MESSAGES}: "
    )
    for index, (percent, against, goal) in enumerate(((50, "the goal", GOAL_NS), (99, "none", 0))):
        values = sorted(each[index] for each in rounds)
        shown = conditions + ", ".join(f"{each:.0f}" for each in values)
        value = statistics.median(values)
        name = f"node_one_way_ns_p{percent}"
        yield result("frontdoor", name, value, "ns", against=against, against_value=goal, conditions=shown)


def _measure() -> tuple[float, float]:
    """The median and the 99th percentile of the latency in nanoseconds."""
    channel = free_channel()
    config = PlantConfig(name="plant", control=PlantAccess(port=0), channels=(str(channel),))
    with (
        running_node(config) as node,
        other_process(_read, node.control_port) as reading,
        other_process(_send, channel) as sending,
    ):
        check(reading.recv() == "ready", "the reader did not start")
        sending.send("go")
        latencies = reading.recv()
        sending.send("enough")
    check(len(latencies) == WARM_UP + MESSAGES, f"{WARM_UP + MESSAGES - len(latencies)} messages are missing")
    latencies = sorted(latencies[WARM_UP:])
    return statistics.median(latencies), latencies[len(latencies) * 99 // 100]


def _send(channel: Channel, orders: Connection) -> None:
    record = bytearray(QUOTE.record_size)
    with MulticastPublisher(channel) as publisher:

        def publish(sent_ns: int) -> None:
            stamp.pack_into(record, 0, sent_ns)
            publisher.publish(TOPIC, record, model_id=QUOTE.id, model_version=QUOTE.version)

        orders.recv()
        publish(0)  # the plant joins the stream
        time.sleep(END_SECONDS)
        with Ticker(NS_PER_SECOND // RATE) as ticker:
            for _ in range(WARM_UP + MESSAGES):
                ticker.wait()
                publish(now())
        while not orders.poll(END_SECONDS):
            publish(0)
        publisher.close(linger=False)


def _read(port: int, orders: Connection) -> None:
    """Until a message without a time follows the others."""
    latencies: list[int] = []
    with open_messages(f"127.0.0.1:{port}", TOPIC) as messages:
        orders.send("ready")
        for message in messages:
            arrived_ns = now()
            sent_ns = stamp.unpack_from(bytes(message))[0]
            if sent_ns:
                latencies.append(arrived_ns - sent_ns)
            elif latencies:
                break
        orders.send(latencies)


if __name__ == "__main__":
    for each in run():
        sys.stdout.write(f"{each.metric}: {each.value:,.0f} {each.unit} ({each.conditions})\n")
