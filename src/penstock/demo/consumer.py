"""A process that consumes through a distribution node like any client: every update, the newest records, or a few
updates per second.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

import penstock
from penstock.base.errors import PenstockError
from penstock.base.log import configure
from penstock.client import Client, NodeSubscription
from penstock.demo.reports import ConsumerReport, ConsumerTask, Subscribed
from penstock.node.process import Supervised

WAIT_SECONDS = 0.1
SLOW_SECONDS = 0.001
"""Processing time of a screen per message."""

PRICING_SECONDS = 0.02
"""Interval between two reads of the pricing consumer."""


class Consumed:
    """Counts of received messages. An item's version counts its updates, so the last versions give the number of
    updates.
    """

    def __init__(self, supervised: Supervised) -> None:
        self._supervised = supervised
        self._versions: dict[str, int] = {}
        self._newest: dict[str, int] = {}
        self.messages = 0
        self.merged = 0

    def note(self, message: Any) -> None:
        self._versions[message.topic] = message.seq
        self._newest[message.topic] = message.source_seq
        self.messages += 1
        self.merged += max(0, message.source.merged - 1)

    def report(self, lost: int) -> None:
        self._supervised.tell(
            ConsumerReport(
                time.monotonic_ns(),
                self.messages,
                self.merged,
                lost,
                len(self._versions),
                sum(self._versions.values()),
                sum(self._newest.values()),
            )
        )


def main() -> None:
    """Entry point of the process; its only argument is its task."""
    configure(level="ERROR")
    task = msgspec.json.decode(sys.argv[1], type=ConsumerTask)
    supervised = Supervised()
    kinds: dict[str, Callable[[Client, ConsumerTask, Supervised], None]] = {
        "critical": _follow,
        "metered": _watch,
        "adaptive": _price,
    }
    try:
        with penstock.connect(task.url, credentials=task.credentials) as client:
            kinds[task.cls](client, task, supervised)
    except PenstockError as error:
        sys.stderr.write(f"error [{error.code}]: {error}\n")
        sys.exit(1)


def _follow(client: Client, task: ConsumerTask, supervised: Supervised) -> None:
    """Receive every update, like a trading algorithm."""
    _take(client.subscribe(*task.topics, node=task.node), supervised, 0.0)


def _watch(client: Client, task: ConsumerTask, supervised: Supervised) -> None:
    """Receive a few updates per second and process them slowly, like a screen."""
    _take(client.metered(*task.topics, per_second=task.per_second, node=task.node), supervised, SLOW_SECONDS)


def _take(messages: NodeSubscription, supervised: Supervised, pause_s: float) -> None:
    consumed = Consumed(supervised)
    supervised.tell(Subscribed())
    while not supervised.stop.is_set():
        message = messages.next(WAIT_SECONDS)
        if message is not None:
            consumed.note(message)
            if pause_s:
                time.sleep(pause_s)
        if message is None or supervised.is_report_due():
            consumed.report(messages.loss_count)
    consumed.report(messages.loss_count)


def _price(client: Client, task: ConsumerTask, supervised: Supervised) -> None:
    """Read the newest records at its own pace, like a pricing engine."""
    consumed = Consumed(supervised)
    with client.records(*task.topics, node=task.node) as records, records.changes() as changes:
        supervised.tell(Subscribed())
        while not supervised.stop.is_set():
            for message in changes.batch(WAIT_SECONDS):
                consumed.note(message)
            if supervised.is_report_due():
                consumed.report(0)
            time.sleep(PRICING_SECONDS)
        consumed.report(0)
