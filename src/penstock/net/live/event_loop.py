"""The event loop of nodes (asyncio on uvloop, with an orderly shutdown), and the driver of any core.

async def main(stop: asyncio.Event) -> None:
    runner = CoreRunner(core, carry_out)
    ...                                   # sockets that call runner.handle(event)
    await runner.run(stop)

sys.exit(run_agent(main, name="filter"))
"""

import asyncio
import contextlib
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sized
from contextlib import AbstractContextManager
from typing import Any, Generic, ParamSpec, TypeVar

import uvloop

from penstock.base.clock import NS_PER_SECOND, Clock, SystemClock
from penstock.base.core import Core, Tick
from penstock.base.errors import LimitError, PenstockError
from penstock.base.log import logger
from penstock.base.memory import limit_allocator

EVENTS_PER_TURN = 64
EVENTS_MAX = 65_536
STORY_EVENTS = 8
STOP_SECONDS = 10.0

log = logger("agent")

E = TypeVar("E")
P = ParamSpec("P")
I = TypeVar("I")  # noqa: E741


async def stopped_or_failed(stop: asyncio.Event, failed: "asyncio.Future[Any]") -> None:
    """Wait until `stop` is set or `failed` is done. The caller checks the result of `failed`."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        either: list[asyncio.Future[Any]] = [stopped, failed]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()


class CoreRunner(Generic[E, I]):
    """Passes events to a core, carries out its instructions in order, and wakes it at its deadline.

    An exception of the core or of `carry_out` is logged with the preceding events; then nothing more is handled, and
    run() raises it. All calls are made in the thread of the running loop.
    """

    def __init__(
        self,
        core: Core[E | Tick, I],
        carry_out: Callable[[I], None],
        *,
        clock: Clock | None = None,
        events_per_turn: int = EVENTS_PER_TURN,
        events_max: int = EVENTS_MAX,
        after: Callable[[], None] | None = None,
        turn: AbstractContextManager[Any] | None = None,
    ) -> None:
        """`after` is called after each event, when its instructions have been carried out. `turn` is entered for each
        event: a lock, if other threads use the core between events."""
        self._core = core
        self._carry_out = carry_out
        self._after = after
        self._turn_taking = turn or contextlib.nullcontext()
        self._clock = clock or SystemClock()
        self._events_per_turn = events_per_turn
        self._events_max = events_max
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[E] = deque()
        self._answers: deque[E] = deque()
        self._is_carrying_out = False
        self._story: deque[Any] = deque(maxlen=STORY_EVENTS)
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._is_stopped = False
        self.failed: asyncio.Future[Exception] = self._loop.create_future()
        """Done when the core has raised an exception, with that exception."""

        self._arm()

    def handle(self, event: E) -> None:
        """Handle an event now, before waiting ones: for events whose buffers are reused.

        A PenstockError means that the core refused this event. The caller handles it; the core has not failed.
        """
        try:
            self._step(event, may_refuse=True)
        finally:
            self._arm()

    def give(self, event: E) -> None:
        """Handle an event in one of the loop's next turns, in the order of the calls."""
        if self._is_stopped:
            return
        if len(self._waiting) >= self._events_max:
            raise LimitError(f"{self._events_max} events wait for {type(self._core).__name__}")
        self._waiting.append(event)
        if self._turn is None:
            self._turn = self._loop.call_soon(self._take_turn)

    def answer(self, event: E) -> None:
        """Handle the result of an instruction: right after the current event if called by `carry_out`, otherwise
        soon."""
        if self._is_carrying_out:
            self._answers.append(event)
        else:
            self.give(event)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. Raise the core's exception, if any."""
        try:
            await stopped_or_failed(stop, self.failed)
        finally:
            self.stop()
        if self.failed.done():
            raise self.failed.result()

    def stop(self) -> None:
        """Stop handling events and drop the waiting ones."""
        self._is_stopped = True
        self._waiting.clear()
        self._answers.clear()
        for handle in (self._turn, self._timer):
            if handle is not None:
                handle.cancel()

    def _take_turn(self) -> None:
        """Handle a limited number of events, so that other sockets and timers get their turn."""
        self._turn = None
        for _ in range(min(self._events_per_turn, len(self._waiting))):
            self._step(self._waiting.popleft())
            if self._is_stopped:
                return
        if self._waiting:
            self._turn = self._loop.call_soon(self._take_turn)
        self._arm()

    def _step(self, event: E | Tick, *, may_refuse: bool = False) -> None:
        with self._turn_taking:
            self._take_step(event, may_refuse)

    def _take_step(self, event: E | Tick, may_refuse: bool) -> None:
        if self._is_stopped:
            return
        self._story.append(event)
        try:
            instructions = self._core.handle(event, self._clock.now_ns())
        except PenstockError as error:
            if may_refuse:
                raise
            self._fail(error)
        except Exception as error:
            self._fail(error)
        else:
            self._carry_out_all(instructions)
            while self._answers:
                self._step(self._answers.popleft())

    def _carry_out_all(self, instructions: list[I]) -> None:
        self._is_carrying_out = True
        try:
            for instruction in instructions:
                self._carry_out(instruction)
            if self._after is not None:
                self._after()
        except Exception as error:
            self._fail(error)
        finally:
            self._is_carrying_out = False

    def _fail(self, error: Exception) -> None:
        story = [_outline(event) for event in self._story]
        log.error("core_failed", core=type(self._core).__name__, error=repr(error), events=story)
        self.stop()
        if not self.failed.done():
            self.failed.set_result(error)

    def _arm(self) -> None:
        """Set the timer to no later than the core's deadline; an early call does no harm."""
        if self._is_stopped:
            return
        deadline_ns = self._core.next_deadline_ns()
        if deadline_ns is None or (self._timer is not None and self._timer_ns <= deadline_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = deadline_ns
        delay_ns = max(0, deadline_ns - self._clock.now_ns())
        self._timer = self._loop.call_later(delay_ns / NS_PER_SECOND, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        deadline_ns = self._core.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= self._clock.now_ns():
            self._step(Tick())
        self._arm()


def _outline(event: object) -> str:
    """Describe an event by its type and the sizes of its fields: the contents may be secret."""
    sizes = [
        f"{name}: {len(value)}"
        for name in getattr(event, "__struct_fields__", ())
        if isinstance(value := getattr(event, name), Sized)
    ]
    return f"{type(event).__name__}({', '.join(sizes)})"


def run_agent(
    main: Callable[[asyncio.Event], Awaitable[None]], *, name: str, stop_seconds: float = STOP_SECONDS
) -> int:
    """Run `main(stop)` until it returns. Return the exit status of the process.

    The first SIGINT or SIGTERM sets `stop`; main then has `stop_seconds` to shut down (status 0). A second signal,
    or the end of that time, cancels it (status 128 + the signal's number). An error is logged (status 1).
    """
    limit_allocator()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Agent(name, stop_seconds).run(main))


class _Agent:
    def __init__(self, name: str, stop_seconds: float) -> None:
        self._name = name
        self._stop_seconds = stop_seconds
        self._stop = asyncio.Event()
        self._signal: signal.Signals | None = None
        self._task: asyncio.Future[None] | None = None

    async def run(self, main: Callable[[asyncio.Event], Awaitable[None]]) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        log.info("agent_started", agent=self._name, loop=type(loop).__module__)
        status = 1
        try:
            self._task = asyncio.ensure_future(main(self._stop))
            status = await self._status_of(self._task)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            log.info("agent_stopped", agent=self._name, status=status)
        return status

    async def _status_of(self, task: "asyncio.Future[None]") -> int:
        try:
            await task
        except asyncio.CancelledError:
            if self._signal is None:
                raise
            log.warning("agent_did_not_stop_in_order", agent=self._name)
            return 128 + self._signal
        except PenstockError as error:
            log.error("agent_failed", agent=self._name, code=error.code, error=str(error))
            return 1
        except Exception as error:
            log.error("agent_failed", agent=self._name, error=repr(error))
            sys.excepthook(type(error), error, error.__traceback__)
            return 1
        return 0

    def _on_signal(self, number: signal.Signals) -> None:
        assert self._task is not None
        if self._signal is None:
            log.info("agent_stopping", agent=self._name, signal=number.name)
            asyncio.get_running_loop().call_later(self._stop_seconds, self._task.cancel)
        else:
            self._task.cancel()
            signal.signal(number, signal.SIG_DFL)  # a third signal ends the process at once
        self._signal = number
        self._stop.set()
