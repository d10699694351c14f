"""The life of a node: the order of its parts; failures at start, of tasks and of threads; a bounded shutdown."""

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError, ProcessError
from penstock.base.status_page import Health
from penstock.net.page_access import PageAccessConfig
from penstock.runtime import node as runtime_node
from penstock.runtime.node import Node, in_thread

PATIENCE_SECONDS = 20.0


class SmallConfig(Config, frozen=True):
    name: str = "small"
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    metrics_access: PageAccessConfig = PageAccessConfig()


class Story:
    """A node whose parts record their calls."""

    def __init__(self, **values: Any) -> None:
        self.node = Node(SmallConfig(**values))
        self.told: list[str] = []

    def add(self, name: str, **steps: Callable[[], Awaitable[None] | None]) -> None:
        """A part that records each call and then does its own steps, if any."""

        def step(kind: str) -> Callable[[], Awaitable[None] | None]:
            def run() -> Awaitable[None] | None:
                self.told.append(f"{kind} {name}")
                return steps[kind]() if kind in steps else None

            return run

        self.node.add(name, start=step("start"), close=step("close"))


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await work()

    asyncio.run(bounded())


async def for_ever() -> None:
    await asyncio.Event().wait()


def fails() -> None:
    raise ConfigurationError("cannot start")


def fetched(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def can_bind(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def port_of(node: Node) -> int:
    return int(node.url.rpartition(":")[2])


def test_parts_start_in_order_and_close_in_reverse_order_after_the_tasks() -> None:
    async def work() -> None:
        story = Story()
        is_running = asyncio.Event()

        async def watch() -> None:
            story.told.append("task runs")
            is_running.set()
            try:
                await for_ever()
            finally:
                story.told.append("task ends")

        for name in "abc":
            story.add(name)
        story.node.add_task(watch)
        await story.node.start()
        await is_running.wait()
        stop = asyncio.Event()
        stop.set()
        await story.node.run(stop)
        assert story.told == [
            "start a", "start b", "start c", "task runs", "task ends", "close c", "close b", "close a"
        ]  # fmt: skip
        await story.node.close()
        assert story.told[-1] == "close a", "a second call does nothing"
        assert len(story.told) == 8

    run(work)


def test_the_page_shows_status_health_and_counters_until_the_end() -> None:
    async def work() -> None:
        story = Story()
        story.node.counters("some.part").add("packets_received", 3)
        story.node.show(lambda: {"size": 7}, lambda: Health(is_healthy=True, detail="fine"))
        story.add("server", close=in_thread(lambda: story.told.append(str(fetched(f"{url}/status")))))
        await story.node.start()
        url = story.node.url
        assert await asyncio.to_thread(fetched, f"{url}/status") == (200, {"size": 7})
        assert await asyncio.to_thread(fetched, f"{url}/health") == (200, {"is_healthy": True, "detail": "fine"})
        metrics = story.node.page.answer("/metrics")[2].decode()
        assert 'penstock_packets_received_total{cause="",component="some.part",node="small"} 3.0' in metrics
        port = port_of(story.node)
        await story.node.close()
        assert story.told[-1] == "(200, {'size': 7})", "served while the parts close"
        assert can_bind(port)

    run(work)


def test_a_failed_node_is_unhealthy_whatever_its_parts_report() -> None:
    async def work() -> None:
        story = Story()
        story.node.show(dict, lambda: Health(is_healthy=True, detail="fine"))
        await story.node.start()
        story.node.fail(ConfigurationError("broken"))
        await asyncio.sleep(0)
        assert await asyncio.to_thread(fetched, f"{story.node.url}/health") == (
            503,
            {"is_healthy": False, "detail": "fine"},
        )
        with pytest.raises(ConfigurationError, match="broken"):
            await story.node.run(asyncio.Event())

    run(work)


def test_a_failure_during_the_start_closes_everything() -> None:
    async def work() -> None:
        story = Story()
        ports: list[int] = []
        story.add("a", start=lambda: ports.append(port_of(story.node)))
        story.add("b", start=fails)
        story.add("c")  # may hold sockets since its construction
        story.node.add_task(for_ever)
        with pytest.raises(ConfigurationError, match="cannot start"):
            await story.node.start()
        assert story.told == ["start a", "start b", "close c", "close b", "close a"]
        assert can_bind(ports[0])
        assert len(asyncio.all_tasks()) == 1

    run(work)


def test_a_page_whose_port_is_in_use_fails_the_start_before_any_part() -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            story = Story(metrics_port=taken.getsockname()[1])
            story.add("a")
            with pytest.raises(ConfigurationError, match="cannot listen"):
                await story.node.start()
        assert story.told == ["close a"]

    run(work)


def test_a_task_that_fails_ends_the_node() -> None:
    async def work() -> None:
        story = Story()
        story.add("a")

        async def watch() -> None:
            fails()

        story.node.add_task(watch)
        await story.node.start()
        with pytest.raises(ConfigurationError, match="cannot start"):
            await story.node.run(asyncio.Event())
        assert story.told == ["start a", "close a"]

    run(work)


def test_a_failure_of_another_thread_ends_the_node_and_the_first_failure_counts() -> None:
    async def work() -> None:
        story = Story()
        await story.node.start()

        def fail_twice() -> None:
            story.node.fail(ConfigurationError("first"))
            story.node.fail(ConfigurationError("second"))

        threading.Thread(target=fail_twice).start()
        with pytest.raises(ConfigurationError, match="first"):
            await story.node.run(asyncio.Event())

    run(work)


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "closed"])
def test_a_stop_during_the_start_closes_everything(is_cancelled: bool) -> None:
    async def work() -> None:
        story = Story()
        is_waiting = asyncio.Event()

        async def recover() -> None:
            is_waiting.set()
            try:
                await for_ever()
            finally:
                story.told.append("b gives up")

        story.add("a")
        story.add("b", start=recover)
        story.add("c")
        starting = asyncio.ensure_future(story.node.start())
        await is_waiting.wait()
        if is_cancelled:
            starting.cancel()
        else:
            await story.node.close()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert story.told == ["start a", "start b", "b gives up", "close c", "close b", "close a"]

    run(work)


async def heedless() -> None:
    """A task that ignores its cancellation."""
    while True:
        try:
            await for_ever()
        except asyncio.CancelledError:
            if not runtime_node.CLOSE_SECONDS:  # the test has ended
                raise


def test_hanging_parts_and_tasks_do_not_prevent_the_others_from_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_node, "CLOSE_SECONDS", 0.05)
    is_over = threading.Event()

    async def work() -> None:
        story = Story()
        story.add("a")
        story.add("blocks", close=in_thread(lambda: _wait(is_over)))
        story.add("b")
        story.add("waits", close=heedless)
        story.add("c", close=fails)
        story.node.add_task(heedless)
        await story.node.start()
        await asyncio.sleep(0)
        stop = asyncio.Event()
        stop.set()
        with pytest.raises(ProcessError, match=r"small: task heedless did not close within 0.05 s"):
            await story.node.run(stop)
        assert story.told[5:] == ["close c", "close waits", "close b", "close blocks", "close a"]
        monkeypatch.setattr(runtime_node, "CLOSE_SECONDS", 0)

    try:
        run(work)
    finally:
        is_over.set()


def _wait(event: threading.Event) -> None:
    event.wait(PATIENCE_SECONDS)


def test_the_failure_of_a_node_precedes_an_error_of_its_shutdown() -> None:
    async def work() -> None:
        story = Story()

        def broken() -> None:
            raise ProcessError("not closed")

        story.add("a", close=broken)
        await story.node.start()
        story.node.fail(ConfigurationError("the reason"))
        with pytest.raises(ConfigurationError, match="the reason"):
            await story.node.run(asyncio.Event())

        other = Story()
        other.add("a", close=broken)
        await other.node.start()
        with pytest.raises(ProcessError, match="not closed"):
            await other.node.close()

    run(work)


def test_a_task_spawned_during_the_shutdown_does_not_run() -> None:
    async def work() -> None:
        story = Story()

        async def late() -> None:
            story.told.append("late")

        story.add("a", close=lambda: story.node.spawn(late()))
        await story.node.start()
        await story.node.close()
        await asyncio.sleep(0)
        assert story.told == ["start a", "close a"]

    run(work)
