"""Mail for a thread that alone touches its core, sockets and rings: calls that others ask it to make.

mailbox = Mailbox(inlet.wake, "the filter")         # how to wake the thread, and who it is, for errors
mailbox.ask(lambda: core.handle(event, now_ns))     # in any thread: a Future of the answer
mailbox.deliver()                                   # in its own thread, between two batches
mailbox.close()                                     # there too, at its end: who asked in vain is told
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
        """Whether there is mail."""
        return bool(self._mail)

    # In any thread

    def post(self, call: Callable[[], None]) -> None:
        self._mail.append(call)
        if self._is_closed:
            self._refuse()
        else:
            self._wake()

    def ask(self, question: Callable[[], T]) -> "Future[T]":
        """What `question` answers in the owner's thread."""
        answer: Future[T] = Future()

        def call() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(question())
            except Exception as error:  # whoever asked is told
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
        """Nobody answers any more, nor reads the mail."""
        self._is_closed = True
        self._refuse()

    def _refuse(self) -> None:
        self._mail.clear()
        while self._asked:
            try:
                answer = self._asked.pop()  # in one go: two threads may be here
            except KeyError:
                return
            if not answer.done() and answer.set_running_or_notify_cancel():
                answer.set_exception(LocalProtocolError(f"{self._owner} has stopped"))
