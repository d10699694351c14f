"""Interruption of a leaf's subscriber when the leaf's parent is killed, with missed and duplicate messages."""

import asyncio
import statistics
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

from penstock.bench.brokers import HOST, free_port
from penstock.bench.harness import Result, result
from penstock.bench.transports import ALL_CORES, check, now, other_process
from penstock.bench.tree.latency import is_of_a_stream, publish_steadily, sent_ns
from penstock.bench.tree.party import BareParty, run_party
from penstock.bench.tree.process import RunningAgent, running_agent, running_root
from penstock.tree.config import BackoffConfig, ReactionConfig
from penstock.tree.core.kernel._frame import split_packets

KILLS = 20
RATE = 1_000
INTERVAL_NS = 1_000_000_000 // RATE
MESSAGES_MAX = 1_000 * RATE
PAUSE_SECONDS = 1.0
CONDITIONS = (
    f"root, two intermediates, leaf, publisher of {RATE} messages/s and subscriber in separate processes, "
    f"{len(ALL_CORES)} cores; the leaf's parent is killed with SIGKILL, the other intermediate is its alternate; from "
    f"the kill to the arrival of the first message published after it; median of {KILLS} kills; the killed agent is "
    "restarted and is the alternate for the next kill"
)


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder:
        taken_ms, sequences = _measure(Path(folder))
    conditions = f"{CONDITIONS}; worst {max(taken_ms):.0f} ms"
    lost = sequences[-1] - sequences[0] + 1 - len(set(sequences))
    duplicated = len(sequences) - len(set(sequences))
    yield result(
        "tree",
        "recovery_ms_p50",
        statistics.median(taken_ms),
        "ms",
        against="the goal",
        against_value=100.0,
        conditions=conditions,
    )
    for metric, value in (("lost", lost), ("duplicated", duplicated)):
        against = f"{len(sequences)} received messages, in order: {sequences == sorted(sequences)}"
        yield result(
            "tree", metric, value, "messages", against=against, against_value=len(sequences), conditions=conditions
        )


def _measure(folder: Path) -> tuple[list[float], list[int]]:
    places = [f"{HOST}:{free_port()}" for _ in range(2)]
    on = ReactionConfig(parent_lost=("parent", "alternate", "wait"))
    with ExitStack() as stack:
        root = stack.enter_context(running_root(folder))
        stacks = [stack.enter_context(ExitStack()) for _ in places]
        middles = [_middle(stacks[index], index, place, root) for index, place in enumerate(places)]
        leaf = stack.enter_context(
            running_agent("leaf", parent=places[0], alternates=(places[1],), on=on, backoff=BackoffConfig(base_ms=5))
        )
        subscriber = stack.enter_context(other_process(_subscribe, leaf.place))
        publisher = stack.enter_context(other_process(publish_steadily, root.place, MESSAGES_MAX, INTERVAL_NS))
        check(subscriber.recv() == "ready" and publisher.recv() == "ready", "the parties did not start")
        publisher.send("go")
        taken_ms = []
        wait = threading.Event()
        for kill in range(KILLS):
            wait.wait(PAUSE_SECONDS)
            index = kill % 2
            middles[index].kill()
            killed_ns = now()
            subscriber.send(killed_ns)
            taken_ms.append(subscriber.recv() / 1e6)
            stacks[index].close()
            middles[index] = _middle(stacks[index], index, places[index], root)
        publisher.send("enough")
        wait.wait(PAUSE_SECONDS)
        subscriber.send(0)
        return taken_ms, subscriber.recv()


def _middle(stack: ExitStack, index: int, place: str, root: RunningAgent) -> RunningAgent:
    return stack.enter_context(running_agent(f"middle{index}", place=place, parent=root.place))


def _subscribe(place: str, orders: Connection) -> None:
    run_party(_listen(place, orders))


async def _listen(place: str, orders: Connection) -> None:
    """Given a time, report when the first message published after that time arrived; given 0, report all numbers
    received.
    """
    sequences: list[int] = []
    arrivals: deque[tuple[int, int]] = deque(maxlen=2 * RATE)
    since_ns = 0

    def answer() -> None:
        nonlocal since_ns
        found = next((arrived_ns for published_ns, arrived_ns in arrivals if published_ns > since_ns), 0)
        if since_ns and found:
            orders.send(found - since_ns)
            since_ns = 0

    def taken(packets: bytes) -> None:
        arrived_ns = now()
        for each in filter(is_of_a_stream, split_packets(packets)):
            sequences.append(int.from_bytes(each[32:40], "little"))
            arrivals.append((sent_ns(each), arrived_ns))
        answer()

    party = BareParty("subscriber", "subscriber", taken)
    await party.connect(place)
    await party.subscribe()
    over = asyncio.Event()

    def hear() -> None:
        nonlocal since_ns
        since_ns = orders.recv()
        if since_ns:
            answer()
        else:
            loop.remove_reader(orders.fileno())  # no further orders follow
            over.set()

    loop = asyncio.get_running_loop()
    loop.add_reader(orders.fileno(), hear)
    orders.send("ready")
    await over.wait()
    orders.send(sequences)
    await party.close()
