"""One process of a plant: its orders come on standard input, its reports go to standard output.

When standard input ends, whoever started the process is gone, however that happened, and the process ends at once.
"""

import os
import sys
import threading
import time

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import PenstockError
from penstock.base.log import configure
from penstock.demo.reports import GO, LEAVE, REPORT_SECONDS, STOP, Line, Task

STDIN, STDOUT = 0, 1

ORPHANED = 3
"""Exit status of a process whose supervisor is gone."""


class Supervised:
    """The process' side of the pipes. Its thread sets the events as the orders come."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.stop = threading.Event()
        self.leave = threading.Event()
        self._encoder = msgspec.json.Encoder()
        self._next_ns = 0
        threading.Thread(target=self._listen, name="penstock-orders", daemon=True).start()

    def is_report_due(self) -> bool:
        """Whether it is time to say how things are, which is a few times per second."""
        now_ns = time.monotonic_ns()
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + round(REPORT_SECONDS * NS_PER_SECOND)
        return True

    def tell(self, line: Line) -> None:
        data = memoryview(self._encoder.encode(line) + b"\n")
        try:
            while data:
                data = data[os.write(STDOUT, data) :]
        except BrokenPipeError:
            os._exit(ORPHANED)

    def _listen(self) -> None:
        # not by sys.stdin: its lock, held by this thread, would be waited for when the interpreter ends
        events = {GO: self.go, STOP: self.stop, LEAVE: self.leave}
        for orders in iter(lambda: os.read(STDIN, 4_096), b""):
            for order in orders.splitlines(keepends=True):
                events[order].set()
        os._exit(ORPHANED)


def main() -> None:
    """What a process of a plant runs; its task is its only argument."""
    from penstock.demo import publisher, subscriber  # they import this module

    configure()
    task = msgspec.json.decode(sys.argv[1], type=Task)
    run = publisher.run if task.role == "publisher" else subscriber.run
    try:
        run(Supervised(), task)
    except PenstockError as error:
        sys.stderr.write(f"error [{error.code}]: {error}\n")
        sys.exit(1)
