"""Handles Ctrl-C, and SIGTERM from a service manager, for long-running commands."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Interrupt:
    """True after Ctrl-C or SIGTERM. Commands check it between steps, because an exception within a step could leave it
    half done.

    A second signal raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.is_wanted = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_wanted:
            raise KeyboardInterrupt
        self.is_wanted = True


@contextlib.contextmanager
def interruptible() -> Iterator[Interrupt]:
    interrupt = Interrupt()
    before = {number: signal.signal(number, interrupt.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
