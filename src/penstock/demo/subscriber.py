"""A process that subscribes, and measures."""

import time
from typing import Any

import numpy
from numpy.typing import NDArray

from penstock.base.histogram import LatencyHistogram
from penstock.demo.generator import QUOTE
from penstock.demo.process import Supervised
from penstock.demo.reports import REPORT_SECONDS, DemoOptions, Ready, SubscriberReport
from penstock.middleware import Deliver, DeliverBatch, ReceiverConfig, StreamEnded
from penstock.middleware.driver import MulticastReceiver, Received


def run(supervised: Supervised, options: DemoOptions) -> None:
    latency = LatencyHistogram()
    config = ReceiverConfig(join="start")  # should the first packets be lost, they are wanted all the same
    with MulticastReceiver([options.channel], config=config, spin=options.spin, loss=options.loss) as receiver:

        def report(end: str = "") -> None:
            counts = list(receiver.counters)
            supervised.tell(SubscriberReport(time.monotonic_ns(), counts, latency.state(), end))

        supervised.tell(Ready())
        while not supervised.stop.is_set():
            for each in receiver.receive(timeout=REPORT_SECONDS):
                if isinstance(each, StreamEnded):
                    return report(end=each.cause)
                records = _quotes(each)
                if len(records):
                    latency.record(time.time_ns() - records["event_time"])
            if supervised.is_report_due():
                report()
        return report(end="stopped")


def _quotes(each: Received) -> NDArray[Any]:
    """The quotes in what was received, as an array."""
    match each:
        case DeliverBatch(messages):
            return messages.records(QUOTE.dtype, QUOTE.id)
        case Deliver(messages=messages):
            payloads = [message.payload for message in messages if message.model_id == QUOTE.id]
            return numpy.frombuffer(b"".join(each for each in payloads if len(each) == QUOTE.record_size), QUOTE.dtype)
    return numpy.empty(0, QUOTE.dtype)
