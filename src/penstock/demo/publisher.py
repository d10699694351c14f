"""The process that publishes."""

import time

from penstock.demo.generator import TickGenerator
from penstock.demo.process import Supervised
from penstock.demo.reports import PublisherReport, Ready, Task
from penstock.demo.schedule import Schedule
from penstock.middleware import PublisherConfig
from penstock.middleware.driver import MulticastPublisher

BATCH_MAX = 512
"""Messages handed over at once when the publisher is behind its schedule."""

CONFIG = PublisherConfig(retransmission_packets_max=65_536, retransmission_bytes_max=64 * 1024 * 1024, linger_ms=60_000)
"""On a busy machine a subscriber may be seconds behind: what it asks for is still there, until it says it is done."""


def run(supervised: Supervised, task: Task) -> None:
    options = task.options
    generator = TickGenerator(options.seed, options.symbols)
    with MulticastPublisher(options.channel, publisher_id=task.publisher_id, epoch=1, config=CONFIG) as publisher:
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
