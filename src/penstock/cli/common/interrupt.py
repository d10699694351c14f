"""How a command that runs for long is ended: Ctrl-C, or SIGTERM from a service manager."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Interrupt:
    """Whether somebody asked for the end. It is read between steps: an exception in the midst of one would tear things.

    Who asks a second time does not want to wait: that raises KeyboardInterrupt.
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
