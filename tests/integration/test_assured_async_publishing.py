"""Tasks of an asyncio loop that publish: the loop uses the session's link itself, or the session's thread does."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from integration.assured_kit import RouterProcess, client_of, router_config, router_process
from penstock.assured import EndpointConfig, Want
from penstock.assured.client import Assured, AssuredPublisher, inline_commit
from penstock.base.errors import LocalProtocolError, RefusedError
from waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture(autouse=True)
def on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_commit, "STREAK_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(inline_commit, "IDLE_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RouterProcess]:
    with router_process(router_config(tmp_path / "state"), tmp_path) as router:
        yield router


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


def is_handed_over(client: Assured) -> bool:
    return client._running.inline_commit.is_handed_over


async def hand_over(client: Assured, publisher: AssuredPublisher) -> int:
    """Publish until the link is the loop's; how many messages that took."""
    for count in range(1_000):
        if is_handed_over(client):
            return count
        await publisher.publish_async("orders.new", b"%d" % count)
    raise AssertionError("the link is not handed over")


def check_queue(client: Assured, count: int) -> None:
    """These many messages are in the queue, once and in order."""
    with client.endpoint("orders", prefetch=count) as queue:
        found: list[int] = []
        while len(found) < count and (more := queue.take(count - len(found), PATIENCE_SECONDS)):
            found += [int(each.payload) for each in more]
    assert found == list(range(count))
    assert client.endpoints("orders")[0].messages == count


@pytest.mark.spec("REPL-1")
def test_messages_are_stored_once_and_in_the_order_of_the_calls(router: RouterProcess, run: Any) -> None:
    """One at a time, then more at a time than the window holds."""

    async def work() -> int:
        count = await hand_over(client, publisher)
        for _ in range(100):
            await publisher.publish_async("orders.new", b"%d" % count)
            count += 1
        calls = [publisher.publish_async("orders.new", b"%d" % each) for each in range(count, count + 2_000)]
        assert set(await asyncio.gather(*calls)) == {"stored"}
        assert is_handed_over(client)
        return count + 2_000

    with client_of(router.place) as client, client.publisher(window=64) as publisher:
        check_queue(client, run(work()))
        assert not is_handed_over(client), "a consumer needs the session's thread"


def test_the_link_is_handed_over_while_messages_are_on_their_way(router: RouterProcess, run: Any) -> None:
    async def work() -> None:
        async def some() -> None:
            for _ in range(100):
                assert await publisher.publish_async("orders.new", b"x") == "stored"

        await asyncio.gather(*(some() for _ in range(32)))
        assert is_handed_over(client)

    with client_of(router.place) as client, client.publisher() as publisher:
        run(work())
        assert client.endpoints("orders")[0].messages == 3_200


def test_a_session_that_consumes_too_publishes_by_its_own_thread(router: RouterProcess, run: Any) -> None:
    async def work() -> None:
        sent = asyncio.gather(*(publisher.publish_async("orders.new", b"%d" % each) for each in range(600)))
        found = 0
        async for message in queue:
            assert int(message.payload) == found
            message.ack()
            found += 1
            if found == 600:
                break
        assert set(await sent) == {"stored"}

    with client_of(router.place) as client, client.publisher() as publisher, client.endpoint("orders") as queue:
        run(work())


def test_cancelled_calls_do_not_disturb_others(router: RouterProcess, run: Any) -> None:
    async def work() -> None:
        await hand_over(client, publisher)
        router.pause()
        try:
            tasks = [asyncio.create_task(publisher.publish_async("orders.new", b"x")) for _ in range(40)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for each in tasks[::2]:
                assert each.cancel("no longer wanted")
            await asyncio.wait(tasks[::2])
            assert all(each.cancelled() for each in tasks[::2])
            assert not any(each.done() for each in tasks[1::2])
        finally:
            router.resume()
        assert set(await asyncio.gather(*tasks[1::2])) == {"stored"}
        assert await publisher.publish_async("orders.new", b"last") == "stored"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await publisher.publish_async("orders.new", b"too late")

    with client_of(router.place) as client, client.publisher(window=16) as publisher:
        run(work())
        assert publisher.flush(PATIENCE_SECONDS)
        stored = client.endpoints("orders")[0].messages
        # of those that waited for room, cancelled ones were not sent
        assert stored == publisher.part.window.next_number - 1


@pytest.mark.spec("REPL-1")
def test_a_router_that_is_killed_under_the_loop(router: RouterProcess, run: Any) -> None:
    async def work() -> None:
        await hand_over(client, publisher)
        router.pause()
        calls = [asyncio.create_task(publisher.publish_async("orders.new", b"x")) for _ in range(50)]
        await asyncio.sleep(0)
        await asyncio.to_thread(router.kill)
        await asyncio.to_thread(router.start)
        assert set(await asyncio.gather(*calls)) <= {"stored", "known"}
        await hand_over(client, publisher)

    with client_of(router.place) as client, client.publisher() as publisher:
        run(work())
        assert publisher.flush(PATIENCE_SECONDS)
        assert client.endpoints("orders")[0].messages == publisher.part.window.next_number - 1


def test_threads_and_two_loops_with_one_publisher(router: RouterProcess) -> None:
    raised: list[BaseException] = []

    def in_thread(call: Callable[[], object]) -> threading.Thread:
        def work() -> None:
            try:
                call()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    async def tasks() -> None:
        async def some() -> None:
            for _ in range(100):
                assert await publisher.publish_async("orders.new", b"x") == "stored"

        await asyncio.gather(*(some() for _ in range(8)))

    def block() -> None:
        for _ in range(100):
            assert publisher.publish("orders.new", b"x", timeout=PATIENCE_SECONDS) == "stored"
            publisher.send("orders.new", b"x")

    with client_of(router.place) as client, client.publisher(window=32) as publisher:
        threads = [in_thread(lambda: asyncio.run(tasks())), in_thread(lambda: asyncio.run(tasks())), in_thread(block)]
        for each in threads:
            each.join(PATIENCE_SECONDS)
            assert not each.is_alive()
        assert not raised
        assert publisher.flush(PATIENCE_SECONDS)
        assert client.endpoints("orders")[0].messages == 1_800


def test_a_loop_that_has_ended_leaves_the_link_to_others(
    router: RouterProcess, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_of(router.place) as client, client.publisher() as publisher:
        for _ in range(3):
            asyncio.run(hand_over(client, publisher))
            assert publisher.publish("orders.new", b"x", timeout=PATIENCE_SECONDS) == "stored"
            assert len(publisher._in_loops) == 1, "of loops that have ended nothing is kept"
        monkeypatch.setattr(inline_commit, "IDLE_SECONDS", 0.05)
        run(hand_over(client, publisher))  # a loop that is not run from now on
        publisher.send("orders.new", b"x")
        assert publisher.flush(PATIENCE_SECONDS)
        wait_until(lambda: not is_handed_over(client), "the link to come home")


def test_a_refusal_is_told_to_the_task_that_published(router: RouterProcess, run: Any) -> None:
    async def work() -> None:
        await hand_over(client, publisher)
        assert await publisher.publish_async("few", b"") == "stored"
        with pytest.raises(RefusedError, match="'few' is full"):
            await publisher.publish_async("few", b"")
        assert await publisher.publish_async("nobody.wants.it", b"") == "unmatched"
        with pytest.raises(LocalProtocolError, match="a topic is text"):
            await publisher.publish_async(7, b"")  # type: ignore[arg-type]
        assert await publisher.publish_async("orders.new", b"") == "stored"

    with client_of(router.place) as client, client.publisher() as publisher:
        client.create_endpoint(EndpointConfig(name="few", wants=(Want(topics=("few",)),), messages_max=1))
        run(work())
        assert publisher.flush(PATIENCE_SECONDS)


@pytest.mark.parametrize("what", ["publisher", "session"])
def test_closing_ends_the_calls_that_wait(router: RouterProcess, run: Any, what: str) -> None:
    async def work() -> None:
        await hand_over(client, publisher)
        router.pause()
        calls = [asyncio.create_task(publisher.publish_async("orders.new", b"x")) for _ in range(20)]
        await asyncio.sleep(0)
        await asyncio.to_thread((publisher if what == "publisher" else client).close)
        for each in calls:
            with pytest.raises(LocalProtocolError, match="closed"):
                await each
        with pytest.raises(LocalProtocolError, match="closed"):
            await publisher.publish_async("orders.new", b"x")

    with client_of(router.place) as client:
        publisher = client.publisher(window=8)
        try:
            run(work())
        finally:
            router.resume()


def test_ctrl_c_in_a_loop_that_publishes(router: RouterProcess) -> None:
    """The program goes on with the publisher."""

    async def work() -> None:
        await hand_over(client, publisher)
        router.pause()
        call = asyncio.create_task(publisher.publish_async("orders.new", b"x"))
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)
        await call

    with client_of(router.place) as client, client.publisher() as publisher:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(work())
        router.resume()
        assert publisher.flush(PATIENCE_SECONDS)
        assert publisher.publish("orders.new", b"x", timeout=PATIENCE_SECONDS) == "stored"
        asyncio.run(hand_over(client, publisher))


def test_a_forked_child_cannot_publish_and_does_not_disturb_its_parent(router: RouterProcess, run: Any) -> None:
    async def work() -> None:
        await hand_over(client, publisher)
        child = os.fork()
        if not child:
            status = 1
            try:
                with pytest.raises(LocalProtocolError, match="another process's"):
                    asyncio.run(publisher.publish_async("orders.new", b"x"))
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for _ in range(10):
            assert await publisher.publish_async("orders.new", b"x") == "stored"
        assert is_handed_over(client)

    with client_of(router.place) as client, client.publisher() as publisher:
        run(work())
