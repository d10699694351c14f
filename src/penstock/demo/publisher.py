"""The process that publishes."""

import time

from penstock.demo.generator import TickGenerator
from penstock.demo.process import Supervised
from penstock.demo.reports import DemoOptions, PublisherReport, Ready
from penstock.demo.schedule import Schedule
from penstock.middleware.driver import MulticastPublisher

BATCH_MAX = 512
"""Messages handed over at once when the publisher is behind its schedule."""


def run(supervised: Supervised, options: DemoOptions) -> None:
    generator = TickGenerator(options.seed, options.symbols)
    with MulticastPublisher(options.channel) as publisher:
        supervised.tell(Ready())
        supervised.go.wait()
        schedule = Schedule(options.rate)
        while not supervised.stop.is_set():
            times_ns = schedule.due(BATCH_MAX)
            if len(times_ns):
                publisher.publish_batch(generator.take(times_ns))
            elif not options.spin:
                time.sleep(schedule.seconds_to_next())
            if supervised.is_report_due():
                supervised.tell(PublisherReport(time.monotonic_ns(), list(publisher.counters)))
        publisher.say_goodbye()
        supervised.leave.wait()
        publisher.close(linger=False)
    supervised.tell(PublisherReport(time.monotonic_ns(), list(publisher.counters)))
