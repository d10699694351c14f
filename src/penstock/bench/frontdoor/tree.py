"""The per-message API of a tree with a root and one agent, and acknowledgements of single messages.

Can be run separately: python -m penstock.bench.frontdoor.tree
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.bench.frontdoor.beside_nats import PATTERN, TOPIC, Publish, Way, compare
from penstock.bench.harness import Result, result
from penstock.bench.transports import PAYLOAD_SIZE, check
from penstock.bench.tree.party import TREE_NAME
from penstock.bench.tree.process import RunningAgent, running_chain
from penstock.tree.client import open_publisher, open_stream
from penstock.tree.config import StreamConfig

ACKNOWLEDGED_SECONDS = 2.0
ACKNOWLEDGED_GOAL = 5_000
OPEN_SECONDS = 30.0


def run() -> Iterator[Result]:
    with (
        tempfile.TemporaryDirectory() as name,
        running_chain(Path(name), "agent", streams=(StreamConfig(name="app", topics=(PATTERN,)),)) as (root, agent),
    ):
        way = Way("root and agent", _publisher, _subscription)
        yield from compare("tree", way, f"{root.place} {agent.place}")
        yield _single_acknowledgements(root)


def _single_acknowledgements(root: RunningAgent) -> Result:
    payload, count = bytes(PAYLOAD_SIZE), 0
    with open_publisher(root.place, tree=TREE_NAME) as publisher:
        publisher.publish(TOPIC, payload)
        check(publisher.flush(OPEN_SECONDS), "the root acknowledges nothing")
        begin = time.perf_counter()
        while (seconds := time.perf_counter() - begin) < ACKNOWLEDGED_SECONDS:
            publisher.publish(TOPIC, payload)
            check(publisher.flush(OPEN_SECONDS), "the root acknowledges nothing")
            count += 1
    return result(
        "frontdoor",
        "tree_single_acks_per_s",
        count / seconds,
        "1/s",
        against="the goal",
        against_value=ACKNOWLEDGED_GOAL,
        conditions=f"one publisher over loopback, one publish() and flush() per message of {PAYLOAD_SIZE} bytes; the "
        "root stores every message (persist = written), and has one agent below it",
    )


@contextmanager
def _publisher(place: str) -> Iterator[Publish]:
    with open_publisher(place.split()[0], tree=TREE_NAME) as publisher:
        yield publisher.publish
        publisher.flush(OPEN_SECONDS)


@contextmanager
def _subscription(place: str) -> Iterator[Iterator[bytes]]:
    with open_stream(place.split()[1], PATTERN, tree=TREE_NAME) as subscription:
        deadline = time.monotonic() + OPEN_SECONDS
        while not subscription.is_live:
            check(time.monotonic() < deadline, "the subscription does not become live")
            subscription.next(0.01)
        yield (bytes(message.payload) for message in subscription)


if __name__ == "__main__":
    for each in run():
        sys.stdout.write(f"{each.metric}: {each.value:,.2f} {each.unit} ({each.conditions})\n")
