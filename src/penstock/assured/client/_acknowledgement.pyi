import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any

from penstock.base.errors import PenstockError

class Acknowledgement:
    """Awaited once, by a task of this loop. All methods are called in the loop's thread. The result is (number,
    outcome)."""

    _asyncio_future_blocking: bool
    number: int

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None: ...
    def answer(self, number: int, outcome: int) -> None:
        """Resume the task, unless it was cancelled. In a callback of the loop, not in a task."""
    def fail(self, error: PenstockError | TypeError) -> None:
        """Resume the task with an exception, unless it was cancelled. In a callback of the loop, not in a task."""
    def __await__(self) -> Generator[Any, None, tuple[int, int]]: ...
    def get_loop(self) -> asyncio.AbstractEventLoop: ...
    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context) -> None: ...
    def cancel(self, msg: object = None) -> bool: ...
    def done(self) -> bool: ...
    def result(self) -> tuple[int, int]: ...
