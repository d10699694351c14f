"""Mail for a thread that exclusively uses a core, sockets and rings: calls that other threads ask it to make.

mailbox = Mailbox(inlet.wake, "the filter")         # how to wake the thread, and its name in errors
mailbox.ask(lambda: core.handle(event, now_ns))     # in any thread: a Future of the result
mailbox.deliver()                                   # in the thread itself, between two batches
mailbox.close()                                     # in the thread itself, at its end: pending calls fail
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.base.errors import LocalProtocolError

T = TypeVar("T")


class Mailbox:
    def __init__(self, wake: Callable[[], None], owner: str) -> None:
        self._wake = wake
        self._owner = owner
        self._mail: deque[Callable[[], None]] = deque()
        self._asked: set[Future[Any]] = set()
        self._is_closed = False

    def __bool__(self) -> bool:
        """True if calls are waiting."""
        return bool(self._mail)

    # In any thread

    def post(self, call: Callable[[], None]) -> None:
        self._mail.append(call)
        if self._is_closed:
            self._refuse()
        else:
            self._wake()

    def ask(self, question: Callable[[], T]) -> "Future[T]":
        """Have the owner's thread call the function. Return a Future of its result."""
        answer: Future[T] = Future()

        def call() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(question())
            except Exception as error:  # the caller gets the error
                answer.set_exception(error)

        self._asked.add(answer)
        answer.add_done_callback(self._asked.discard)
        self.post(call)
        return answer

    # In the owner's thread

    def deliver(self) -> None:
        while self._mail:
            self._mail.popleft()()

    def close(self) -> None:
        """Refuse waiting and future calls."""
        self._is_closed = True
        self._refuse()

    def _refuse(self) -> None:
        self._mail.clear()
        while self._asked:
            try:
                answer = self._asked.pop()  # pop() is atomic: two threads may be here
            except KeyError:
                return
            if not answer.done() and answer.set_running_or_notify_cancel():
                answer.set_exception(LocalProtocolError(f"{self._owner} has stopped"))
