"""The thread that reads the messages of a live widget."""

import threading
import time
from collections.abc import Callable
from typing import Any

from penstock.base.errors import PenstockError
from penstock.engine.client import Records
from penstock.model import Message


class Follower:
    """Reads a subscription, or the changes of records, until the source ends or stop().

    `take` gets each message; `show` runs at most every `interval_s` seconds; `end` gets the reason when the source
    has ended. All run in the follower's thread.
    """

    def __init__(
        self,
        source: Any,
        take: Callable[[Message], None],
        show: Callable[[], None],
        end: Callable[[str], None],
        interval_s: float,
    ) -> None:
        self._source = source
        self._take = take
        self._show = show
        self._end = end
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-notebook", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Read nothing more; returns when the thread has ended. The source stays open."""
        self._stop.set()
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            if isinstance(self._source, Records):
                with self._source.changes() as changes:
                    self._follow(changes)
            else:
                self._follow(self._source)
        except PenstockError as error:
            self._end(str(error))
        else:
            self._end("stopped" if self._stop.is_set() else "the subscription is closed")

    def _follow(self, messages: Any) -> None:
        due = time.monotonic() + self._interval_s
        while not self._stop.is_set() and not self._source.is_over:
            message = messages.next(max(due - time.monotonic(), 0.0))
            if isinstance(message, Message):
                self._take(message)
            if time.monotonic() >= due:
                self._show()
                due = time.monotonic() + self._interval_s
