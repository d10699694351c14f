"""A filter module in its own process, for benches."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from penstock.bench.harness import cpu_seconds
from penstock.bench.transports import other_process
from penstock.filter.live.driver import LiveFilter
from penstock.filter.module_config import FilterAccess, FilterModuleConfig
from penstock.net.udp import Address


class RunningFilter:
    """A running filter module: `address` is that of its control connections."""

    def __init__(self, address: Address, process: int, orders: Connection) -> None:
        self.address = address
        self._process = process
        self._orders = orders

    def counters(self) -> dict[str, int]:
        """Return the counters of its core, summed over their causes."""
        self._orders.send("counters")
        counted: dict[str, int] = self._orders.recv()
        return counted

    def cpu_seconds(self) -> float:
        """Return the CPU time used so far."""
        return cpu_seconds(self._process)


@contextmanager
def running_filter(**values: Any) -> Iterator[RunningFilter]:
    config = FilterModuleConfig(**{"name": "bench", "control": FilterAccess(port=0), **values})
    with other_process(_serve, config) as orders:
        port, process = orders.recv()
        try:
            yield RunningFilter((config.control.host, port), process, orders)
        finally:
            orders.send("enough")


def _serve(config: FilterModuleConfig, orders: Connection) -> None:
    asyncio.run(_run(config, orders))


async def _run(config: FilterModuleConfig, orders: Connection) -> None:
    loop = asyncio.get_running_loop()
    module = LiveFilter(config)
    await module.node.start()
    stop = asyncio.Event()

    def hear() -> None:
        if orders.poll() and orders.recv() == "counters":
            orders.send({name: module.counters[name] for name, _, _ in module.counters})
        else:
            loop.remove_reader(orders.fileno())
            stop.set()

    loop.add_reader(orders.fileno(), hear)
    orders.send((module.control_port, os.getpid()))
    await module.node.run(stop)
