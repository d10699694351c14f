"""Two processes on both sides of a message router: one publishes trades as assured messages, the other consumes them.

Each message carries its number, so that acknowledged and delivered messages can be compared.
"""

import struct
import sys
import time

import msgspec

import penstock
from penstock.assured.client import AssuredPublisher
from penstock.base.errors import PenstockError, RefusedError
from penstock.base.log import configure
from penstock.demo.reports import BookingReport, BookingTask, ClearingReport, ClearingTask, Subscribed
from penstock.node.process import Supervised

WAIT_SECONDS = 0.1
WINDOW = 4_096
"""Maximum number of unacknowledged trades, which accumulate while the router is unavailable."""

NUMBER = struct.Struct("<Q")


class Numbers:
    """The set of received numbers, which arrive nearly in order."""

    def __init__(self) -> None:
        self.through = 0
        self._beyond: set[int] = set()

    def add(self, number: int) -> bool:
        """Add a number; return whether it is new."""
        if number <= self.through or number in self._beyond:
            return False
        self._beyond.add(number)
        while self.through + 1 in self._beyond:
            self.through += 1
            self._beyond.remove(self.through)
        return True

    def __len__(self) -> int:
        return self.through + len(self._beyond)


def book() -> None:
    """Entry point of the publishing process; its only argument is its task."""
    configure(level="ERROR")
    task = msgspec.json.decode(sys.argv[1], type=BookingTask)
    supervised = Supervised()
    try:
        with (
            penstock.connect(task.url, credentials=task.credentials) as client,
            client.assured(task.router, send=[f"{task.prefix}.>"]) as assured,
            assured.publisher(window=WINDOW) as publisher,
        ):
            trades = client.subscribe(*task.topics, node=task.node)
            supervised.tell(Subscribed())
            published = 0
            while not supervised.stop.is_set():
                if (trade := trades.next(WAIT_SECONDS)) is not None:
                    published += 1
                    publisher.send(f"{task.prefix}.{trade.topic}", NUMBER.pack(published) + trade.source.body)
                if trade is None or supervised.is_report_due():
                    supervised.tell(_booked(publisher, published))
            _flush(publisher)
            supervised.tell(_booked(publisher, published))
    except PenstockError as error:
        sys.stderr.write(f"error [{error.code}]: {error}\n")
        sys.exit(1)


def _flush(publisher: AssuredPublisher) -> None:
    try:
        publisher.flush(timeout=WAIT_SECONDS)
    except RefusedError:
        return  # counted in the report


def _booked(publisher: AssuredPublisher, published: int) -> BookingReport:
    refused = sum(last - first + 1 for first, last, _ in publisher.refused)
    return BookingReport(published, published - publisher.unacknowledged - refused, refused)


def clear() -> None:
    """Entry point of the consuming process; its only argument is its task."""
    configure(level="ERROR")
    task = msgspec.json.decode(sys.argv[1], type=ClearingTask)
    supervised = Supervised()
    numbers = Numbers()
    delivered = redelivered = 0
    latest_ns = 0
    try:
        with (
            penstock.connect(task.url, credentials=task.credentials) as client,
            client.assured(task.router, receive=[f"queue.{task.endpoint}"], send=()) as assured,
            assured.endpoint(task.endpoint) as queue,
        ):
            supervised.tell(Subscribed())
            while not supervised.stop.is_set():
                if (message := queue.next(WAIT_SECONDS)) is not None:
                    numbers.add(NUMBER.unpack_from(message.payload)[0])
                    delivered += 1
                    redelivered += message.is_redelivered
                    latest_ns = time.monotonic_ns()
                    message.ack()
                if message is None or supervised.is_report_due():
                    supervised.tell(ClearingReport(latest_ns, delivered, redelivered, len(numbers)))
    except PenstockError as error:
        sys.stderr.write(f"error [{error.code}]: {error}\n")
        sys.exit(1)
