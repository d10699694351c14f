"""A process that subscribes like any client, and measures."""

import sys
import time
from typing import Any

import msgspec
import numpy
from numpy.typing import NDArray

import penstock
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import PenstockError
from penstock.base.histogram import LatencyHistogram
from penstock.base.log import configure
from penstock.client import Batch, ClientConfig, Subscription
from penstock.demo.reports import Gap, Subscribed, SubscriberReport, SubscriberTask, Tally
from penstock.model import MessageModel
from penstock.node.process import Supervised

WAIT_SECONDS = 0.1
WORD_SIZE = 8
MIX = numpy.uint64(0x9E37_79B9_7F4A_7C15)


class Gaps:
    """The longest time between two deliveries, second by second."""

    def __init__(self) -> None:
        self._last_ns = 0
        self._longest: dict[int, int] = {}

    def note(self, now_ns: int) -> None:
        """Record a delivery. A gap counts in every second that it touches."""
        if self._last_ns:
            gap_ns = now_ns - self._last_ns
            for second in range(self._last_ns // NS_PER_SECOND, now_ns // NS_PER_SECOND + 1):
                self._longest[second] = max(self._longest.get(second, 0), gap_ns)
        self._last_ns = now_ns

    def take(self, now_ns: int) -> list[Gap]:
        """Return the completed seconds."""
        over = [second for second in self._longest if second < now_ns // NS_PER_SECOND]
        return [Gap(second, self._longest.pop(second)) for second in sorted(over)]


class Tallies:
    """Count and digest of the messages by model, independent of their path."""

    def __init__(self) -> None:
        self.by_model: dict[str, Tally] = {}

    def note(self, model: MessageModel, records: NDArray[Any]) -> None:
        tally = self.by_model.setdefault(model.name, Tally())
        words = numpy.ascontiguousarray(records).view(numpy.uint64).reshape(len(records), -1)
        told = numpy.ones(words.shape[1], numpy.bool_)
        if (received := model.fields_by_name.get("receive_time")) is not None:
            told[received.offset // WORD_SIZE] = False  # two adapters have different receive times
        weights = (2 * numpy.arange(words.shape[1], dtype=numpy.uint64) + 1) * MIX
        mixed = words[:, told] @ weights[told]
        mixed ^= mixed >> numpy.uint64(32)
        tally.count += len(records)
        tally.digest = (tally.digest + int((mixed * MIX).sum(dtype=numpy.uint64))) % 2**64


class Meter:
    def __init__(self, supervised: Supervised, subscription: Subscription) -> None:
        self._supervised = supervised
        self._subscription = subscription
        self._latency = LatencyHistogram()
        self._gaps = Gaps()
        self._tallies = Tallies()

    def take(self, batch: Batch) -> None:
        self._gaps.note(time.monotonic_ns())
        now_ns = time.time_ns()
        for model, records in batch.records.items():
            self._tallies.note(model, records)
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
                self._tallies.by_model,
            )
        )


def main() -> None:
    """Entry point of the process; its only argument is its task."""
    configure(level="ERROR")
    task = msgspec.json.decode(sys.argv[1], type=SubscriberTask)
    supervised = Supervised()
    try:
        config = ClientConfig(filter=task.filter)
        with penstock.connect(task.url, credentials=task.credentials, config=config) as client:
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
