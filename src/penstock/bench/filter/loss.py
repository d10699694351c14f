"""Repair of packets lost between publisher and filter module: sender and number of the requests.

Publisher and filter run on their own hosts (network namespaces), with random loss between them. Without namespaces, the
applications drop datagrams from the filter themselves.
"""

import statistics
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from multiprocessing.connection import Connection

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.bench.filter.process import RunningFilter, running_filter
from penstock.bench.harness import Result, result
from penstock.bench.hosts import Host, Network, reason_without
from penstock.bench.ticker import Ticker
from penstock.bench.transports import PAYLOAD_SIZE, check, now, other_process, stamp
from penstock.filter.client import FilteredReceiver
from penstock.middleware import Deliver, DeliverBatch, LossReceipt
from penstock.middleware.live import MulticastPublisher
from penstock.net.udp import Channel, free_channel

LOSS = 0.01
RATE = 5_000
MESSAGES = 20_000
APPLICATIONS = 3
TOPIC = "md.us.eq.AAPL.quote"
SILENCE_S = 10.0
CONDITIONS = (
    f"{MESSAGES} packets of one message at {RATE} per second, {LOSS:.0%} of the datagrams lost at random, including "
    f"repairs; {APPLICATIONS} applications that want all messages"
)


class Story(msgspec.Struct):
    """An application's results: latency of each delivery's first message in nanoseconds, and lost messages."""

    taken_ns: list[int] = []
    messages: int = 0
    lost: int = 0


def run() -> Iterator[Result]:
    reason = reason_without()
    if reason:
        sys.stderr.write(f"loss between filter and application only: {reason}\n")
    with Network() if not reason else nullcontext() as network:
        hosts = (None, None) if network is None else (network.add_host(), network.add_host())
        stories, losses, requests = _measure(*hosts)
    where = "between two hosts, in front of the filter" if not reason else "between the filter and each application"
    conditions = f"{CONDITIONS}; {where}: {losses} datagrams lost, {requests} requests"
    missing = sum(MESSAGES - story.messages for story in stories)
    losses_each = losses if not reason else losses // APPLICATIONS
    slowest = [taken for story in stories for taken in sorted(story.taken_ns)[-max(1, losses_each) :]]
    for metric, value, unit, what in (
        ("unrepaired", missing, "messages", "of all applications"),
        ("nacks_per_loss", requests / max(1, losses), "ratio", "requests for repair per datagram lost"),
        (
            "repair_us_p50",
            statistics.median(slowest) / 1_000,
            "µs",
            "from publishing to delivery: median of the slowest messages, as many as were lost",
        ),
    ):
        yield result("filter", metric, value, unit, against=what, against_value=0, conditions=conditions)


def _measure(publishing: Host | None, subscribing: Host | None) -> tuple[list[Story], int, int]:
    """Return the applications' results, the number of lost datagrams, and the number of requests."""
    channel = free_channel()
    with ExitStack() as stack:
        with _on(subscribing):
            interface = subscribing.address if subscribing is not None else "127.0.0.1"
            module = stack.enter_context(running_filter(channels=(str(channel),), interface=interface))
            receivers = [_receiver(module, stack, 0.0 if subscribing else LOSS) for _ in range(APPLICATIONS)]
        with _on(publishing):
            interface = publishing.address if publishing is not None else "127.0.0.1"
            orders = stack.enter_context(other_process(_publish, _at(channel, interface)))
        check(orders.recv() == "ready", "the publisher did not start")
        if subscribing is not None:
            subscribing.lose(LOSS)
        orders.send("go")
        stories = [Story() for _ in receivers]
        threads = [threading.Thread(target=_read, args=pair) for pair in zip(receivers, stories, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        orders.send("enough")
        if subscribing is not None:
            return stories, subscribing.lost, module.counters().get("nacks_sent", 0)
        counters = [receiver.counters for receiver in receivers]
        return stories, *(sum(each[name] for each in counters) for name in ("datagrams_discarded", "nacks_sent"))  # type: ignore[return-value]


def _on(host: Host | None) -> AbstractContextManager[None]:
    return nullcontext() if host is None else host.entered()


def _at(channel: Channel, interface: str) -> Channel:
    return Channel(group=channel.group, port=channel.port, interface=interface)


def _receiver(module: RunningFilter, stack: ExitStack, loss: float) -> FilteredReceiver:
    return stack.enter_context(FilteredReceiver(module.address, [TOPIC], loss=loss))


def _read(receiver: FilteredReceiver, story: Story) -> None:
    """Read until every message has arrived or is reported lost, or until nothing arrives any more."""
    while story.messages + story.lost < MESSAGES and (received := receiver.receive(SILENCE_S)):
        arrived, is_first = now(), True
        for each in received:
            if isinstance(each, LossReceipt):
                story.lost += each.last - each.first + 1
            elif isinstance(each, DeliverBatch | Deliver) and each.messages:
                if is_first:
                    story.taken_ns.append(arrived - stamp.unpack_from(each.messages[0].payload)[0])
                is_first = False
                story.messages += len(each.messages)


def _publish(channel: Channel, orders: Connection) -> None:
    payload = bytearray(PAYLOAD_SIZE)
    with MulticastPublisher(channel) as publisher:
        orders.send("ready")
        orders.recv()
        with Ticker(NS_PER_SECOND // RATE) as ticker:
            for _ in range(MESSAGES):
                ticker.wait()
                stamp.pack_into(payload, 0, now())
                publisher.publish(TOPIC, payload)
        orders.recv()
