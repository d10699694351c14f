"""Publishing from an asyncio loop: the futures of tasks, and the time of sending.

A message is sent at once if no earlier one is unacknowledged. Otherwise the messages of one turn of the loop are sent
together: every SENT_TOGETHER of them, and the rest at the end of the turn. Acknowledgements that arrive together wake
the loop once.

If the session only publishes, its link is handed over to the loop (inline_commit.py), which then writes to the socket
and reads from it. Otherwise the session's own thread does both.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.assured.client._acknowledgement import Acknowledgement
from penstock.assured.client._inline_commit import Readiness
from penstock.base.errors import PenstockError

if TYPE_CHECKING:
    from penstock.assured.client.connection import Assured
    from penstock.assured.core.session.parts import PublisherPart


SENT_TOGETHER = 64
"""Messages of a turn of the loop that are sent before its end, so that the router works while the loop does."""


class AsyncPublishing:
    """The publishing state of one publisher in one asyncio loop. Methods are called in the loop's thread unless their
    docstring says otherwise. `put` puts a message into the publisher's window and returns its number, or 0 if the
    window is full; `acknowledged` is called with this object when the loop has received acknowledgements."""

    def __init__(
        self,
        assured: "Assured",
        part: "PublisherPart",
        put: Callable[..., int],
        acknowledged: Callable[["AsyncPublishing"], None],
    ) -> None:
        self.part = part
        self.readiness = Readiness()
        self._assured = assured
        self._put = put
        self._acknowledged = acknowledged
        self._window = part.window
        self._loop = asyncio.get_running_loop()
        self._awaited: dict[int, Acknowledgement] = {}  # by message number
        self._answered: deque[tuple[Acknowledgement, int, int]] = deque()
        # tasks that wait for room in the window
        self._waiting: deque[tuple[Acknowledgement, tuple[Any, ...]]] = deque()
        self._is_flush_due = self._is_wake_due = self._is_over = False
        self._loop.add_reader(self.readiness.fd, self._receive)

    @property
    def is_left(self) -> bool:
        """True if the loop has ended."""
        return self._loop.is_closed()

    def publish(self, *message: Any) -> Acknowledgement:
        """Publish the message of these arguments of `put`, after all earlier ones."""
        future = Acknowledgement(self._loop)
        number = 0 if self._waiting else self._put(*message)
        # another thread may have checked for waiting futures before this one was added
        if number:
            self._awaited[number] = future
            self._flush_soon()
            if self._is_over or self._window.answered > number:
                self.changed()
        elif (error := self._assured.failure_of(self.part)) is not None:
            raise error
        else:
            self._waiting.append((future, message))
            if self._is_over or self._window.room:
                self.changed()
        return future

    def changed(self) -> None:
        """Called in any thread: messages may have outcomes, or the session has ended."""
        self._is_over = self._assured.failure_of(self.part) is not None
        self._window.take_outcomes(self._awaited, self._answered)
        if not self._is_wake_due and (self._answered or self._waiting or self._is_over):
            self.wake()

    def wake(self) -> None:
        """Called in any thread: update all futures in the loop's next turn."""
        self._is_wake_due = True
        with contextlib.suppress(RuntimeError):  # the loop has ended, and its waiting tasks with it
            self._loop.call_soon_threadsafe(self._see_to_all)

    def close(self) -> None:
        """Called in any thread: all waiting futures get the session's or the publisher's error."""
        self.changed()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.remove_reader, self.readiness.fd)

    def _see_to_all(self) -> None:
        self._is_wake_due = False
        self._answer()
        if self._is_over:
            self._fail()
        else:
            self._put_waiting()

    def _answer(self) -> None:
        self._window.take_outcomes(self._awaited, self._answered)
        answered = self._answered
        try:
            while answered:
                future, number, outcome = answered.popleft()
                future.answer(number, outcome)
        finally:
            if answered:  # a task has ended the loop
                self.wake()

    def _fail(self) -> None:
        error = self._assured.failure_of(self.part)
        futures = [*self._awaited.values(), *(future for future, _ in self._waiting)]
        self._awaited.clear()
        self._waiting.clear()
        for future in futures:
            if error is not None:
                future.fail(error)

    def _put_waiting(self) -> None:
        while self._waiting:
            future, message = self._waiting[0]
            if not future.done():
                try:
                    number = self._put(*message)
                except (PenstockError, TypeError) as error:
                    future.fail(error)
                else:
                    if not number:
                        break
                    self._awaited[number] = future
            self._waiting.popleft()
        if self._window.is_unsent:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._is_flush_due:
            if self._window.unsent_messages >= SENT_TOGETHER:
                self._send()
            return
        if self._window.next_number - self._window.unresolved == 1:
            self._flush()
        else:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        self._send()

    def _send(self) -> None:
        if not self._assured.send_inline(self):
            self._assured.flush_soon()

    def _receive(self) -> None:
        if self._assured.receive_inline(self):
            self._answer()
            self._put_waiting()
            self._acknowledged(self)
