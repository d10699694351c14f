"""Runs the driver of any subsystem: makes it, starts its node, reports that it runs, and waits until it is stopped."""

import asyncio
import signal
from collections.abc import Callable
from typing import Protocol, TypeVar

from penstock.runtime.node import Node


class Runnable(Protocol):
    """A driver of any subsystem: its node starts and closes it."""

    node: Node


L = TypeVar("L", bound=Runnable)

SWITCH_SECONDS = 0.0005
"""Switch interval of the interpreter (sys.setswitchinterval): how long the data thread or the loop's thread may hold
the interpreter while the other waits."""


async def run_live(
    make: Callable[[], L],
    stop: asyncio.Event,
    *,
    started: Callable[[L], object],
    on_hangup: Callable[[L], object] | None = None,
) -> L:
    """Run a driver until `stop` is set or its node fails; a failure is raised. `started` is called when the driver
    runs, `on_hangup` on SIGHUP. Return the closed driver."""
    live = make()
    await live.node.start()
    loop = asyncio.get_running_loop()
    if on_hangup is not None:
        loop.add_signal_handler(signal.SIGHUP, on_hangup, live)
    try:
        started(live)
        await live.node.run(stop)
    finally:
        if on_hangup is not None:
            loop.remove_signal_handler(signal.SIGHUP)
    return live
