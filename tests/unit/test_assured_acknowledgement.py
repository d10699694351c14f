"""The future of one published message, and a condition that tasks wait for."""

import asyncio
import contextvars
import threading
from collections.abc import Callable

import pytest
import uvloop

from penstock.assured.client._acknowledgement import Acknowledgement
from penstock.base.errors import LocalProtocolError
from penstock.net.live.loop_condition import LoopCondition
from waiting import PATIENCE_SECONDS

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
name = contextvars.ContextVar[str]("name")


async def awaited(future: Acknowledgement) -> tuple[int, int]:
    return await future


@LOOPS
def test_a_task_is_resumed_in_its_own_context(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        futures = [Acknowledgement(loop) for _ in range(3)]

        async def one(number: int) -> tuple[str, tuple[int, int]]:
            name.set(f"task {number}")
            result = await futures[number]
            assert asyncio.current_task() in tasks
            return name.get(), result

        tasks = [asyncio.create_task(one(number)) for number in range(3)]
        await asyncio.sleep(0)
        loop.call_soon(lambda: [future.answer(number, 1) for number, future in enumerate(futures)])
        assert await asyncio.gather(*tasks) == [(f"task {number}", (number, 1)) for number in range(3)]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work())


@LOOPS
def test_errors_and_cancellation(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        failed, cancelled, before = (Acknowledgement(loop) for _ in range(3))
        tasks = [asyncio.create_task(awaited(each)) for each in (failed, cancelled)]
        await asyncio.sleep(0)
        assert tasks[1].cancel("enough")
        loop.call_soon(failed.fail, LocalProtocolError("it is closed"))
        loop.call_soon(cancelled.answer, 1, 1)  # too late
        with pytest.raises(LocalProtocolError, match="closed"):
            await tasks[0]
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await tasks[1]
        before.answer(7, 3)
        assert before.done()
        assert not before.cancel()
        assert await awaited(before) == (7, 3), "answered before the await"

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work())


def test_a_task_can_be_cancelled_before_it_begins_to_wait() -> None:
    async def work() -> None:
        future = Acknowledgement(asyncio.get_running_loop())

        async def one() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await future

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(one())
        assert future.done()

    asyncio.run(work())


@LOOPS
def test_a_condition_wakes_tasks_from_other_threads(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    condition = LoopCondition()
    found: list[int] = []

    def work() -> None:
        for each in range(100):
            with condition:
                found.append(each)
                condition.notify_all()
                assert condition.wait_for(lambda: not found, PATIENCE_SECONDS)

    async def read() -> list[int]:
        taken: list[int] = []
        while len(taken) < 100:
            await condition.wait_in_loop(lambda: found)
            with condition:
                taken += found
                found.clear()
                condition.notify_all()
        return taken

    thread = threading.Thread(target=work)
    thread.start()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(asyncio.wait_for(read(), PATIENCE_SECONDS)) == list(range(100))
    thread.join(PATIENCE_SECONDS)


def test_a_condition_forgets_cancelled_tasks_and_tasks_of_closed_loops() -> None:
    condition = LoopCondition()

    async def wait() -> None:
        await asyncio.wait_for(condition.wait_in_loop(lambda: False), 0)

    with pytest.raises(TimeoutError):
        asyncio.run(wait())
    with condition:
        condition.notify_all()
    loop = asyncio.new_event_loop()
    task = loop.create_task(condition.wait_in_loop(lambda: False))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    with condition:
        condition.notify_all()
    assert not task.done()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
