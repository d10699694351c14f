"""A process that subscribes, and measures."""

import time
from typing import Any

import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.base.histogram import LatencyHistogram
from penstock.demo.generator import QUOTE
from penstock.demo.process import Supervised
from penstock.demo.reports import REPORT_SECONDS, DemoOptions, Ready, SubscriberReport
from penstock.middleware import Deliver, DeliverBatch, ReceiverConfig, StreamEnded
from penstock.middleware.driver import MulticastReceiver, Received
from penstock.wire import PacketMessage

NOTHING = numpy.empty(0, numpy.int64)


def run(supervised: Supervised, options: DemoOptions) -> None:
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
                if isinstance(each, StreamEnded):
                    return report(end=each.cause)
            if supervised.is_report_due():
                report()
        return report(end="stopped")


def _event_times_ns(received: list[Received]) -> NDArray[numpy.int64]:
    """When the quotes in what was received were due."""
    singles: list[Buffer] = []
    arrays: list[NDArray[Any]] = []
    for each in received:
        if isinstance(each, DeliverBatch):
            arrays.append(each.messages.records(QUOTE.dtype, QUOTE.id))
        elif isinstance(each, Deliver):
            singles += [message.payload for message in each.messages if _is_quote(message)]
    if singles:
        arrays.append(numpy.frombuffer(b"".join(singles), QUOTE.dtype))
    return numpy.concatenate([NOTHING, *(array["event_time"] for array in arrays)])


def _is_quote(message: PacketMessage) -> bool:
    return message.model_id == QUOTE.id and len(message.payload) == QUOTE.record_size
