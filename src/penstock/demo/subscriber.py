"""A process that subscribes, and measures."""

import time

import numpy
from numpy.typing import NDArray

from penstock.base.histogram import LatencyHistogram
from penstock.demo.generator import QUOTE
from penstock.demo.process import Supervised
from penstock.demo.reports import REPORT_SECONDS, Ready, SubscriberReport, Task
from penstock.middleware import Deliver, DeliverBatch, ReceiverConfig, StreamEnded, records_of
from penstock.middleware.driver import MulticastReceiver, Received

NOTHING = numpy.empty(0, numpy.int64)


def run(supervised: Supervised, task: Task) -> None:
    options = task.options
    latency = LatencyHistogram()
    config = ReceiverConfig(join="start")  # should the first packets be lost, they are wanted all the same
    with MulticastReceiver([options.channel], config=config, spin=options.spin, loss=options.loss) as receiver:

        def report(end: str = "") -> None:
            counts = list(receiver.counters)
            supervised.tell(SubscriberReport(time.monotonic_ns(), counts, latency.state(), end))

        supervised.tell(Ready())
        while not supervised.stop.is_set():
            received = receiver.receive(timeout=REPORT_SECONDS)
            event_times_ns = _event_times_ns(received)
            latency.record(time.time_ns() - event_times_ns)
            for each in received:
                if isinstance(each, StreamEnded) and each.stream.publisher_id == task.publisher_id:
                    return report(end=each.cause)
            if supervised.is_report_due():
                report()
        return report(end="stopped")


def _event_times_ns(received: list[Received]) -> NDArray[numpy.int64]:
    """When the quotes in what was received were due."""
    quotes = [records_of(each, QUOTE) for each in received if isinstance(each, Deliver | DeliverBatch)]
    return numpy.concatenate([NOTHING, *(each["event_time"] for each in quotes)])
