"""A process that subscribes as any client does, and measures."""

import sys
import time

import msgspec
import numpy

import penstock
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import PenstockError
from penstock.base.histogram import LatencyHistogram
from penstock.base.log import configure
from penstock.client import Batch, Subscription
from penstock.demo.reports import Gap, Subscribed, SubscriberReport, SubscriberTask
from penstock.node.process import Supervised

WAIT_SECONDS = 0.1


class Gaps:
    """The longest time between two deliveries, second by second."""

    def __init__(self) -> None:
        self._last_ns = 0
        self._longest: dict[int, int] = {}

    def note(self, now_ns: int) -> None:
        """Something was delivered. A gap counts in every second that it touches."""
        if self._last_ns:
            gap_ns = now_ns - self._last_ns
            for second in range(self._last_ns // NS_PER_SECOND, now_ns // NS_PER_SECOND + 1):
                self._longest[second] = max(self._longest.get(second, 0), gap_ns)
        self._last_ns = now_ns

    def take(self, now_ns: int) -> list[Gap]:
        """The seconds that are over."""
        over = [second for second in self._longest if second < now_ns // NS_PER_SECOND]
        return [Gap(second, self._longest.pop(second)) for second in sorted(over)]


class Meter:
    def __init__(self, supervised: Supervised, subscription: Subscription) -> None:
        self._supervised = supervised
        self._subscription = subscription
        self._latency = LatencyHistogram()
        self._gaps = Gaps()

    def take(self, batch: Batch) -> None:
        self._gaps.note(time.monotonic_ns())
        now_ns = time.time_ns()
        for model, records in batch.records.items():
            if "receive_time" in (model.dtype.names or ()):
                received_ns = records["receive_time"].astype(numpy.int64)
                self._latency.record(now_ns - received_ns[received_ns > 0])

    def report(self) -> None:
        statistics = self._subscription.statistics()
        now_ns = time.monotonic_ns()
        self._supervised.tell(
            SubscriberReport(
                now_ns,
                statistics.messages,
                statistics.duplicates,
                statistics.lost,
                statistics.discontinuities,
                statistics.repairs,
                self._latency.state(),
                self._gaps.take(now_ns),
            )
        )


def main() -> None:
    """What the process runs; its task is its only argument."""
    configure(level="ERROR")
    task = msgspec.json.decode(sys.argv[1], type=SubscriberTask)
    supervised = Supervised()
    try:
        with penstock.connect(task.url, credentials=task.credentials) as client:
            subscription = client.subscribe(*task.topics)
            meter = Meter(supervised, subscription)
            supervised.tell(Subscribed())
            while not supervised.stop.is_set():
                for batch in subscription.batches(WAIT_SECONDS):
                    meter.take(batch)
                    if supervised.is_report_due():
                        meter.report()
                        if supervised.stop.is_set():
                            break
                meter.report()
    except PenstockError as error:
        sys.stderr.write(f"error [{error.code}]: {error}\n")
        sys.exit(1)
