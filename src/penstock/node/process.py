"""The supervised side of a process: orders arrive on standard input, reports go to standard output.

When standard input ends, the supervisor has ended for some reason, and the process ends at once, so that no process is
left behind. Each report is a line with a JSON document; logs go to standard error.
"""

import os
import threading
import time
from collections.abc import Callable

import msgspec

from penstock.base.clock import NS_PER_SECOND

STDIN, STDOUT = 0, 1

ORPHANED = 3
"""Exit status of a process whose supervisor has ended."""

TELL_SECONDS = 0.25

STOP = "stop"
"""The order to shut down."""


class Supervised:
    """The process's side of the pipes. Orders are words; each has an event, which is set when the order arrives."""

    def __init__(self) -> None:
        self._events: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()
        self._next_ns = 0
        self.stop = self.order(STOP)
        threading.Thread(target=self._listen, name="penstock-orders", daemon=True).start()

    def order(self, word: str) -> threading.Event:
        with self._lock:
            return self._events.setdefault(word, threading.Event())

    def when(self, word: str, call: Callable[[], object]) -> None:
        """Call `call` in a thread of its own when the order arrives."""
        event = self.order(word)
        threading.Thread(target=lambda: (event.wait(), call()), name=f"penstock-{word}", daemon=True).start()

    def is_report_due(self) -> bool:
        """True a few times per second, when the next report is due."""
        now_ns = time.monotonic_ns()
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + round(TELL_SECONDS * NS_PER_SECOND)
        return True

    def tell(self, line: msgspec.Struct) -> None:
        data = memoryview(self._encoder.encode(line) + b"\n")
        try:
            while data:
                data = data[os.write(STDOUT, data) :]
        except BrokenPipeError:
            os._exit(ORPHANED)

    def _listen(self) -> None:
        # not through sys.stdin: this thread would hold its lock when the interpreter exits
        rest = b""
        for data in iter(lambda: os.read(STDIN, 4_096), b""):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.order(line.decode("ascii", "replace")).set()
        os._exit(ORPHANED)
