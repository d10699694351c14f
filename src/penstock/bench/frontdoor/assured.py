"""Assured messages from asyncio, compared with the blocking calls: publishing with one message and with many in flight,
and reading an endpoint.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from penstock.assured.client import Assured, AssuredEndpoint, AssuredPublisher, open_assured
from penstock.bench.assured.process import (
    CONDITIONS,
    IN_FLIGHT,
    ORDERS,
    PAYLOAD_SIZE,
    TOPIC,
    RouterProcess,
    disk_folder,
)
from penstock.bench.harness import Result, result, rounds
from penstock.bench.transports import PATIENCE_SECONDS, check

SINGLE_ROUNDS = 15
SINGLE_SECONDS = 0.2
MANY_ROUNDS = 9
MANY_MESSAGES = 100_000
READ_ROUNDS = 5
ROUNDS_SECONDS = 20.0
READ_MESSAGES = 100_000
GOALS = {"publish_async_single_ratio": 0.6, "publish_async_256_ratio": 0.8, "endpoint_async_for_ratio": 0.75}


def run() -> Iterator[Result]:
    payload = os.urandom(PAYLOAD_SIZE)
    with disk_folder() as folder:
        yield _single(folder, payload)
    with disk_folder() as folder:
        yield _many(folder, payload)
    with disk_folder() as folder:
        yield _read(folder, payload)


def _single(folder: Path, payload: bytes) -> Result:
    def blocking(publisher: AssuredPublisher) -> float:
        started, count = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - started) < SINGLE_SECONDS:
            publisher.publish(TOPIC, payload)
            count += 1
        return count / elapsed

    async def in_loop(publisher: AssuredPublisher) -> float:
        started, count = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - started) < SINGLE_SECONDS:
            await publisher.publish_async(TOPIC, payload)
            count += 1
        return count / elapsed

    with ExitStack() as stack:
        router = stack.enter_context(RouterProcess(folder))
        publishers = [_publisher(stack, router) for _ in range(2)]
        loop = stack.enter_context(asyncio.Runner())
        rates = _in_turn(
            SINGLE_ROUNDS, lambda: blocking(publishers[0]), lambda: loop.run(in_loop(publishers[1])), lambda: None
        )
    return _ratio(
        "publish_async_single_ratio",
        rates,
        "await publish_async()",
        "publish()",
        f"one message at a time; sessions of their own; medians of up to {SINGLE_ROUNDS} rounds of {SINGLE_SECONDS} s "
        "in turn",
    )


def _many(folder: Path, payload: bytes) -> Result:
    def blocking(publisher: AssuredPublisher) -> float:
        send, started = publisher.send, time.perf_counter()
        for _ in range(MANY_MESSAGES):
            send(TOPIC, payload)
        check(publisher.flush(PATIENCE_SECONDS), "messages are not acknowledged")
        return MANY_MESSAGES / (time.perf_counter() - started)

    async def in_loop(publisher: AssuredPublisher) -> float:
        async def work() -> None:
            for _ in range(MANY_MESSAGES // IN_FLIGHT):
                await publisher.publish_async(TOPIC, payload)

        started = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        return MANY_MESSAGES // IN_FLIGHT * IN_FLIGHT / (time.perf_counter() - started)

    with ExitStack() as stack:
        router = stack.enter_context(RouterProcess(folder))
        assured = stack.enter_context(open_assured(router.place))
        publishers = [_publisher(stack, router) for _ in range(2)]
        loop = stack.enter_context(asyncio.Runner())
        rates = _in_turn(
            MANY_ROUNDS,
            lambda: blocking(publishers[0]),
            lambda: loop.run(in_loop(publishers[1])),
            lambda: assured.empty_endpoint(ORDERS.name),
        )
    return _ratio(
        "publish_async_256_ratio",
        rates,
        f"{IN_FLIGHT} tasks that await publish_async()",
        f"send() with a window of {IN_FLIGHT}",
        f"{MANY_MESSAGES} messages a round; sessions of their own; medians of up to {MANY_ROUNDS} rounds in turn",
    )


def _read(folder: Path, payload: bytes) -> Result:
    def fill(assured: Assured) -> None:
        with assured.publisher(window=4_096) as publisher:
            for _ in range(READ_MESSAGES):
                publisher.send(TOPIC, payload)

    def blocking(assured: Assured) -> float:
        with assured.endpoint(ORDERS.name) as queue:
            return _timed_reading(queue)

    async def in_loop(assured: Assured) -> float:
        with assured.endpoint(ORDERS.name) as queue:
            started, count = time.perf_counter(), 0
            async for message in queue:
                queue.ack(message)
                count += 1
                if count == READ_MESSAGES:
                    break
            return READ_MESSAGES / (time.perf_counter() - started)

    with ExitStack() as stack:
        router = stack.enter_context(RouterProcess(folder))
        assured = stack.enter_context(open_assured(router.place))
        writer = stack.enter_context(open_assured(router.place))
        loop = stack.enter_context(asyncio.Runner())

        def read(call: Callable[[], float]) -> float:
            fill(writer)
            return call()

        rates = _in_turn(
            READ_ROUNDS,
            lambda: read(lambda: blocking(assured)),
            lambda: read(lambda: loop.run(in_loop(assured))),
            lambda: assured.empty_endpoint(ORDERS.name),
        )
    return _ratio(
        "endpoint_async_for_ratio",
        rates,
        "async for and ack()",
        "for and ack()",
        f"{READ_MESSAGES} queued messages a round; medians of up to {READ_ROUNDS} rounds in turn",
    )


def _timed_reading(queue: AssuredEndpoint) -> float:
    started = time.perf_counter()
    for count, message in enumerate(queue, 1):
        queue.ack(message)
        if count == READ_MESSAGES:
            break
    return READ_MESSAGES / (time.perf_counter() - started)


def _publisher(stack: ExitStack, router: RouterProcess) -> AssuredPublisher:
    return stack.enter_context(stack.enter_context(open_assured(router.place)).publisher(window=IN_FLIGHT))


def _in_turn(
    count: int, blocking: Callable[[], float], in_loop: Callable[[], float], clear: Callable[[], None]
) -> tuple[float, float, float]:
    """Return the median rates, and the median of the ratios per round: the disk's speed varies. The rounds follow a
    warm-up; a busy machine gets fewer rounds.
    """

    def pair() -> list[float]:
        found = []
        for call in (blocking, in_loop):
            found.append(call())
            clear()
        return found

    pair()
    pairs = [pair() for _ in rounds(count, ROUNDS_SECONDS)]
    one, other = (statistics.median(each) for each in zip(*pairs, strict=True))
    return one, other, statistics.median(other / one for one, other in pairs)


def _ratio(metric: str, rates: tuple[float, float, float], what: str, against: str, conditions: str) -> Result:
    blocking, in_loop, ratio = rates
    return result(
        "frontdoor",
        metric,
        ratio,
        "ratio",
        against=f"the goal; {what}: {in_loop:.0f} messages/s, {against}: {blocking:.0f}",
        against_value=GOALS[metric],
        conditions=f"{CONDITIONS}; {conditions}",
    )
